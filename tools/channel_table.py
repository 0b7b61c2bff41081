"""Writes the table of channels in docs/evidence/README.md: what was tested, by ci/evidence.yaml.

    python -m tools.channel_table [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import argparse
import re
from pathlib import Path

from farm import catalog
from farm.plan.evidence import ProvedWheel, load_evidence
from farm.plan.matrix import load_matrix
from farm.plan.recipe import job_files

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "evidence" / "README.md"
_BLOCK = re.compile(r"(?<=<!-- channels -->\n).*?(?=<!-- end of channels -->)", re.DOTALL)


def table() -> str:
    """The channels, those that were tested first; of each the variants that were built, and how far
    they were run.

    Of the wheels of a variant that which was run furthest counts.
    """
    matrix = load_matrix(ROOT)
    evidence = load_evidence(ROOT)
    rows = ["| channel | package | tested | known security faults |", "|---|---|---|---|"]
    groups: dict[tuple[str, str], list[ProvedWheel]] = {}
    for wheel in evidence.wheels:
        groups.setdefault((wheel.channel, wheel.package), []).append(wheel)
    for (channel, package), wheels in groups.items():
        furthest: dict[str, ProvedWheel] = {}
        for wheel in sorted(wheels, key=_rank):  # the later of two takes the place
            furthest[wheel.variant] = wheel
        states: dict[str, list[str]] = {}
        for variant in dict.fromkeys(wheel.variant for wheel in wheels):
            states.setdefault(furthest[variant].state, []).append(f"`{variant}`")
        tested = "; ".join(f"{', '.join(variants)} {how}" for how, variants in states.items())
        version = wheels[0].version.partition("+")[0]
        pages = dict.fromkeys(
            wheel.page.removeprefix("docs/evidence/") for wheel in furthest.values()
        )
        links = ", ".join(f"[{page.removesuffix('.md')}]({page})" for page in pages)
        faults = ""
        if package == "torch":
            faults = _faults(version, matrix.channels[channel].text.recipe_of(package))
        rows.append(f"| `{channel}` | {package} {version} | {tested} ({links}) | {faults} |")
    untested = [
        name
        for name in matrix.channels
        if not any(wheel.channel == name for wheel in evidence.wheels)
    ]
    rows.append(f"| {', '.join(f'`{name}`' for name in untested)} | | nothing | |")
    return "\n".join(rows) + "\n"


def _faults(torch: str, recipe: str) -> str:
    """The faults of farm/catalog/security.yaml that a release has, and the recipe's patches."""
    texts = []
    for fault in catalog.security_faults(torch):
        text = f"fixed in {fault.fixed}"
        for patch in job_files(recipe):
            if fault.id in patch:
                text += f"; in wheels built with `{patch.removeprefix('patches/')}`"
        texts.append(f"{fault.id} ({text})")
    return ", ".join(texts) or "none"


def _rank(wheel: ProvedWheel) -> tuple[bool, bool]:
    return any(run.card for run in wheel.runs), bool(wheel.runs)


def written(text: str) -> str:
    """The page's `text` with the current table."""
    return _BLOCK.sub(lambda _: table(), text)


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    out.write_text(written(OUT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
