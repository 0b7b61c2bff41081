"""Writes README's table of channels: what is proved, by ci/evidence.yaml, and what is planned.

    python -m tools.channel_table [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import argparse
import re
from itertools import groupby
from pathlib import Path

from farm.evidence import ProvedWheel, load_evidence
from farm.matrix import load_matrix

ROOT = Path(__file__).parent.parent
OUT = ROOT / "README.md"
_BLOCK = re.compile(r"(?<=<!-- channels -->\n).*?(?=<!-- end of channels -->)", re.DOTALL)


def table() -> str:
    """The channels, those with a proof first; of each the wheels that were built, and how far they were run.

    A wheel in which something is wrong counts only as long as no other one of its variant is without it.
    """
    matrix, evidence = load_matrix(ROOT), load_evidence(ROOT)
    rows = ["| channel | package | proved |", "|---|---|---|"]
    for (channel, package), group in groupby(evidence.wheels, key=lambda wheel: (wheel.channel, wheel.package)):
        wheels = list(group)
        sound = {wheel.variant for wheel in wheels if not wheel.mended}
        wheels = [wheel for wheel in wheels if not (wheel.mended and wheel.variant in sound)]
        told = "; ".join(dict.fromkeys(_told(wheel) for wheel in wheels))
        version = wheels[0].version.partition("+")[0]
        rows.append(f"| `{channel}` | {package} {version} | {told} ([evidence]({wheels[0].page})) |")
    planned = [name for name in matrix.channels if not any(wheel.channel == name for wheel in evidence.wheels)]
    rows.append(f"| {', '.join(f'`{name}`' for name in planned)} | | nothing: planned |")
    return "\n".join(rows) + "\n"


def _told(wheel: ProvedWheel) -> str:
    mended = f" (wrong in it, mended since: {'; '.join(wheel.mended)})" if wheel.mended else ""
    return f"`{wheel.variant}` {wheel.state}{mended}"


def written(text: str) -> str:
    """README's `text` with the table of now."""
    return _BLOCK.sub(lambda _: table(), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    out.write_text(written(OUT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
