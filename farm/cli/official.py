"""`farm why --official`: does PyTorch's own wheel run on a card? If not, the farm's variant for it."""

import argparse
import platform as system
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus
from farm.cli import show
from farm.cli.cards import sm_of
from farm.plan.compat import official
from farm.plan.compat.official import Answer
from farm.plan.compat.stack import number
from farm.plan.variant import PYTHONS, Variant, python_word

NEWER_ARM = 90
"""The first SM beside cores of Armv9: Grace; Orin's are Armv8.2."""
TOO_OLD = 3
"""The exit code for "no": nothing that upstream publishes runs on the card."""


def run(args: argparse.Namespace) -> int:
    """Answer with a pip line, or with the variant to build.

    Raises:
        UsageError: The card or the release is not known, or upstream has nothing for the platform.
    """
    if args.gpu is None:
        raise UsageError("--official asks about a card: name it with --gpu", hint="an example: --gpu 'GTX 1080 Ti'")
    variant = Variant.parse(args.variant) if args.variant else None
    sm = sm_of(args.gpu, variant.architectures if variant else ())
    machine = variant.machine if variant else gpus.machine(args.gpu, sm)
    where = f"{args.platform}-{machine}"
    known = catalog.torch_releases()
    python = _python(args.python) or (variant.python if variant else None)
    asked = catalog.find(known, args.torch) if args.torch else None
    if args.torch and asked is None:
        raise UsageError(
            f"torch {args.torch} is not in the catalogue",
            hint=f"known: {', '.join(known)}; newer ones: tools/refresh-catalogue torch official",
        )
    if not any(official.rows(torch, where) for torch in known):
        raise UsageError(f"PyTorch publishes no CUDA wheels for {where}", hint="--platform linux or windows")
    newest = official.newest(sm, where, args.driver, python)
    about = official.answer(asked, sm, where, args.driver, python) if asked else newest
    cpu = variant.cpu if variant else "avx2" if machine == "x86_64" else "armv8_2" if sm < NEWER_ARM else "armv9"
    missing = gpus.without_variant(sm)
    ours = None if missing else f"sm{sm}-{cpu}-{_built_for(python)}"
    if args.json:
        show.json_document(
            {
                "gpu": args.gpu,
                "sm": f"sm{sm}",
                "answer": _to_json(about),
                "newest": _to_json(newest),
                "variant": ours,
                "no_variant": missing,
            }
        )
    else:
        _explain(args, sm, about, newest)
        if about is None or not about.runs:
            if ours:
                torch = f" --torch {about.torch}" if about else ""
                show.say(f"a wheel of your own: farm why --variant {ours}{torch}")
                for channel in _channels(args, Variant.parse(ours)):
                    show.say(channel)
            else:
                show.say(f"no wheel of your own either: {missing}")
    return 0 if about is not None and about.runs else TOO_OLD


def _channels(args: argparse.Namespace, variant: Variant) -> list[str]:
    """The channels that offer the card a torch, newest torch first, as options of `farm why`."""
    from farm.base.project import find_project
    from farm.plan.matrix import load_matrix

    # By version as numbers: 2.10 comes after 2.9.
    found = {
        (number(str(channel.text.options["torch"])), channel.name): channel
        for channel in load_matrix(find_project(args.project or Path.cwd())).channels.values()
        if "torch" in channel.packages and args.platform in channel.platforms
        if variant.gpu in channel.gpus and variant.cpu in channel.cpus
    }
    return [
        f"  --channel {channel.name}: torch {channel.text.options['torch']}, CUDA {', '.join(channel.cuda)}"
        for _, channel in sorted(found.items(), reverse=True)[:3]
    ]


def _python(name: str | None) -> str | None:
    """The Python that was asked for, also as 3.12, cp312 or python3.12.

    Raises:
        UsageError: No release of the catalogue has wheels for it.
    """
    known = {word for release in catalog.torch_releases().values() for word in release.pythons.linux}
    if name is None:
        return None
    if (word := python_word(name)) in known:
        return word
    names = sorted(known, key=lambda word: (int(word[3:].removesuffix("t")), word))
    raise UsageError(
        f"no release of PyTorch in the catalogue has wheels for {name!r}", hint=f"known: {', '.join(names)}"
    )


def _built_for(python: str | None) -> str:
    """The Python of the farm's variant: the same, with the lock where the farm builds none without, else this one."""
    wanted = (python or "").removesuffix("t")
    return wanted if wanted in PYTHONS else f"py3{system.python_version_tuple()[1]}"


def _to_json(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    row = answer.row
    return {
        "torch": answer.torch,
        "runs": answer.runs,
        "cuda": row.cuda if row else None,
        "sm": row.sm if row else [],
        "driver": answer.driver,
        "problem": answer.problem,
        "pip": answer.pip,
        "source": official.source(row) if row else None,
        "sha256": row.sha256 if row else None,
        "others": [{"cuda": each.cuda, "sm": each.sm} for each in answer.others],
    }


def _explain(args: argparse.Namespace, sm: int, about: Answer | None, newest: Answer | None) -> None:
    name = f"{args.gpu} (sm_{sm})"
    if about is None:
        show.say(f"no: none of PyTorch's own wheels in the catalogue has code for {name}")
    elif about.runs and about.row:
        show.say(f"yes: PyTorch's own wheel of torch {about.torch} runs on {name}")
        show.say(f"it has CUDA {about.row.cuda} and code for sm {', '.join(map(str, about.row.sm))}")
        if about.driver:
            show.say(f"it needs driver {official.drivers(about.row, sm)}")
        show.say(f"source: {official.source(about.row)}")
        show.say(str(about.pip))
    else:
        _refuse(name, about)
    for row in about.others if about else ():
        left = official.left_behind(about.torch, str(row.cuda), sm) if about else None
        show.say(
            f"not with CUDA {row.cuda}: code for sm {', '.join(map(str, row.sm))} alone"
            + (f"; {left.text} ({left.source})" if left else "")
        )
    if (about is None or not about.runs) and newest is not None and newest.runs:
        show.say(f"the newest that runs: torch {newest.torch}: {newest.pip}")


def _refuse(name: str, about: Answer) -> None:
    if about.problem:
        show.say(f"no: {about.problem}")
        if about.update:
            show.say(f"another driver is enough: {about.update}, then {about.pip}")
    elif about.others:
        show.say(f"no: none of PyTorch's own wheels of torch {about.torch} has code for {name}")
    else:
        show.say(
            f"no: PyTorch publishes no CUDA wheel of torch {about.torch} for this platform that is in the catalogue"
        )
