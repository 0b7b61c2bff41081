"""Writes the table of `--on` in docs/how-to/dispatch.md from the engines.

    python -m tools.engine_table [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import re
from pathlib import Path

from farm.engines import NAMES
from tools.generated import write

OUT = Path(__file__).parent.parent / "docs" / "how-to" / "dispatch.md"
_BLOCK = re.compile(r"(?<=<!-- engines -->\n).*?(?=<!-- end of engines -->)", re.DOTALL)


def written(text: str) -> str:
    """The page's `text` with the current table."""
    rows = ["| `--on` | where a build runs | needs |", "|---|---|---|"]
    rows += [f"| `{name}` | {where} | {needs} |" for name, (where, needs) in NAMES.items()]
    return _BLOCK.sub(lambda _: "\n".join(rows) + "\n", text)


def main() -> None:
    write(__doc__, OUT, written(OUT.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
