"""What else `farm why` can be asked: a card, a driver, compilers, an arch list, numpy, PyTorch's switches."""

import argparse
import re
from typing import Any

from farm import catalog
from farm.catalog import gpus
from farm.cli.options import SWITCHES, switch
from farm.compat.host import parse_msvc
from farm.errors import UsageError
from farm.variant import Variant


def questions(args: argparse.Namespace, variant: Variant) -> dict[str, Any]:
    """The fields of a stack that were asked about.

    Raises:
        UsageError: A card, a compiler or a version is not known.
    """
    asked = {name: getattr(args, name) for name in ("driver", "arch_list", "gcc", "numpy")}
    asked["msvc"] = parse_msvc(args.msvc) if args.msvc is not None else None
    if args.gpu is not None:
        asked["gpu"] = _sm(args.gpu, variant)
        asked["gpu_name"] = args.gpu
    on = {switch(name) for name in SWITCHES if getattr(args, name.replace("-", "_"))}
    return {name: value for name, value in asked.items() if value is not None} | {"switches": frozenset(on)}


def _sm(name: str, variant: Variant) -> int:
    """The SM of a card by name or number; of a name with several chips, the one of the variant."""
    number = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", name.strip().lower(), re.ASCII)
    if number and f"sm{number[1]}{number[2]}" in catalog.architectures().architectures:
        return int(number[1] + number[2])
    known = {gpus.gpus().renamed.get(card.sm, card.sm) for card in gpus.find(name)}
    if not known:
        near = gpus.nearest_names(name)
        raise UsageError(
            f"no card of the catalogue is called {name!r}",
            hint=f"nearest: {', '.join(near)}; or give its SM: --gpu sm_86" if near else "give its SM: --gpu sm_86",
        )
    ours = known & set(variant.architectures)
    if len(known) > 1 and not ours:
        raise UsageError(
            f"{name!r} was sold with several chips: {', '.join(sorted(known))}",
            hint="give its SM, as nvidia-smi --query-gpu=compute_cap says: --gpu sm_35",
        )
    return int(min(ours or known).removeprefix("sm"))
