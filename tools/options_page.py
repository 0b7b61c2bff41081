"""Writes the table of docs/options.md from the farm's own table of options.

    python -m tools.options_page [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import argparse
from pathlib import Path

from farm.options import markdown

OUT = Path(__file__).parent.parent / "docs" / "options.md"

PAGE = """\
# Options of a build

What a channel of `ci/matrix.yaml` pins can be overridden for one build. The nearest place wins: the command line, then
the variable, then `options:` in `ci/farm.yaml`, then the channel, then the option's default. `farm plan` prints each
value with its origin.

{table}
This table is written by `make generate` from `farm/options.py`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.parse_args().out.write_text(PAGE.format(table=markdown()), encoding="utf-8")


if __name__ == "__main__":
    main()
