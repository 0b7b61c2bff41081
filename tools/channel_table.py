"""Writes README's table of channels: what is proved, by ci/evidence.yaml, and what is planned.

    python -m tools.channel_table [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import argparse
import re
from pathlib import Path

from farm.plan.evidence import ProvedWheel, load_evidence
from farm.plan.matrix import load_matrix

ROOT = Path(__file__).parent.parent
OUT = ROOT / "README.md"
_BLOCK = re.compile(r"(?<=<!-- channels -->\n).*?(?=<!-- end of channels -->)", re.DOTALL)


def table() -> str:
    """The channels, those with a proof first; of each the variants that were built, and how far they were run.

    Of the wheels of a variant that which was run furthest counts; one in which something is wrong, only as long as
    there is no other.
    """
    matrix, evidence = load_matrix(ROOT), load_evidence(ROOT)
    rows = ["| channel | package | proved |", "|---|---|---|"]
    groups: dict[tuple[str, str], list[ProvedWheel]] = {}
    for wheel in evidence.wheels:
        groups.setdefault((wheel.channel, wheel.package), []).append(wheel)
    for (channel, package), wheels in groups.items():
        furthest: dict[str, ProvedWheel] = {}
        for wheel in sorted(wheels, key=_rank):  # the later of two takes the place
            furthest[wheel.variant] = wheel
        told: dict[str, list[str]] = {}
        for variant in dict.fromkeys(wheel.variant for wheel in wheels):
            told.setdefault(_told(furthest[variant]), []).append(f"`{variant}`")
        proved = "; ".join(f"{', '.join(variants)} {how}" for how, variants in told.items())
        version = wheels[0].version.partition("+")[0]
        rows.append(f"| `{channel}` | {package} {version} | {proved} ([evidence]({wheels[0].page})) |")
    planned = [name for name in matrix.channels if not any(wheel.channel == name for wheel in evidence.wheels)]
    rows.append(f"| {', '.join(f'`{name}`' for name in planned)} | | nothing: planned |")
    return "\n".join(rows) + "\n"


def _rank(wheel: ProvedWheel) -> tuple[bool, bool, bool]:
    return not wheel.mended, any(run.card for run in wheel.runs), bool(wheel.runs)


def _told(wheel: ProvedWheel) -> str:
    mended = f" (wrong in it, mended since: {'; '.join(wheel.mended)})" if wheel.mended else ""
    return f"{wheel.state}{mended}"


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
