"""Writes docs/reference/features.md: PyTorch's features beside those of the official wheel,
conda-forge and Spack.

    python -m tools.features_page [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import textwrap
from pathlib import Path

from farm import catalog
from farm.plan.build_variables import is_official
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from tools.generated import write

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "reference" / "features.md"
VARIANTS = ("sm35-avx-py311", "cpu-avx2-py311")
PAGE = """\
# Features of PyTorch 2.6.0

Of channel `debian-2.6.0` and others for Linux (-: PyTorch's default). `--without kineto,nccl`
leaves features out.
`make generate` makes this table of `farm/catalog/features.yaml`.

| | {heads} | official | conda-forge | Spack |
|---|{lines}---|---|---|
{rows}

Measured beside the official wheel of 2.6.0 ([how](../evidence/torch-2.6.0-whole.md#speed)):

{lacks}
"""


def page() -> str:
    plans = [
        resolve(ROOT, BuildRequest(Variant.parse(variant), "torch", channel="debian-2.6.0"))
        for variant in VARIANTS
    ]
    rows = []
    for name, feature in catalog.features().items():
        cells = ["on" if name in plan.features else plan.without.get(name, "off") for plan in plans]
        if is_official(feature, "linux", "2.6.0", gpu=True):
            official = "on"
        else:
            official = "off"
        rows.append(
            " | ".join(
                [feature.title, *cells, official, feature.conda_forge or "-", feature.spack or "-"]
            )
        )
    heads = " | ".join(f"`{variant}`" for variant in VARIANTS)
    lacks = []
    for feature in catalog.features().values():
        if feature.lack:
            line = f"- without {feature.title}: {feature.lack}"
            lacks.append(textwrap.fill(line, 100, subsequent_indent="  "))
    return PAGE.format(
        heads=heads,
        lines="---|" * len(VARIANTS),
        rows="\n".join(f"| {row} |" for row in rows),
        lacks="\n".join(lacks),
    )


def main() -> None:
    write(__doc__, OUT, page())


if __name__ == "__main__":
    main()
