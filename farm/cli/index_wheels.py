"""`farm index yank | unyank | remove | promote | prune | variant`: what happens to wheels after they were published."""

import argparse
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from farm.base.text import parse_age
from farm.cli.index_options import add_index, print_changed, print_wheels, store_of

if TYPE_CHECKING:
    from farm.index.lifecycle import Retention
    from farm.index.records import Kind


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    if name in {"yank", "unyank", "remove", "promote"}:
        parser.add_argument("wheels", nargs="+", metavar="WHEEL", help="file names")
    if name in {"yank", "remove"}:
        text = "shown to whoever installs it anyway" if name == "yank" else "kept in the event"
        parser.add_argument("--reason", required=True, help=text)
    if name == "unyank":
        parser.add_argument("--reason", default="", help="kept in the event")
    if name == "promote":
        parser.add_argument("--to", required=True, metavar="GROUP", help="for example sm35-avx")
    if name == "prune":
        _add_rules(parser)
    if name == "variant":
        parser.add_argument("wheel", type=Path)
        parser.add_argument("--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for")
    add_index(parser)


def run(args: argparse.Namespace) -> int:
    if args.index_command == "prune":
        return _prune(args)
    if args.index_command == "variant":
        return _variant(args)
    wheels, pages = _recorded(args, args.wheels, args.index_command)
    if args.index_command == "promote":
        return print_wheels(args, wheels, f"listed in {args.to}")
    return print_wheels(args, wheels, "removed") if args.index_command == "remove" else print_changed(args, pages)


def _recorded(args: argparse.Namespace, wheels: Sequence[str], kind: "Kind") -> tuple[list[str], list[str]]:
    """Adds an event to wheels; gives them and the pages that show it, with those of their labelled copies."""
    from farm.index.lifecycle import record_event
    from farm.index.variants import follow

    store = store_of(args)
    files, pages = record_event(store, wheels, kind, getattr(args, "reason", ""), group=getattr(args, "to", None))
    return files, sorted({*pages, *follow(store)})


def _add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=int, metavar="N", help="how many of the newest stay, at least 1 (default: ci/farm.yaml)"
    )
    parser.add_argument(
        "--older-than", type=_age, metavar="AGE", help="published that long ago: 90d, 12w (default: 0d)"
    )
    parser.add_argument("--pre", action="store_true", help="of each project, pre-releases alone")
    text = "of each version and tag, wheels that a newer rebuild replaces"
    parser.add_argument("--rebuilds", action="store_true", help=text)
    parser.add_argument("--group", help="one group alone, for example sm35-avx (default: all)")
    parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be removed, and remove nothing")


def _prune(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import prunable, prune
    from farm.index.variants import follow

    rules = list(_rules(args))
    wheels: list[str] = []
    if rules:
        store = store_of(args)
        # A set: two rules may name the same wheel.
        wheels = sorted({name for rule, group in rules for name in prunable(store, rule, group=group)})
        if wheels and not args.dry_run:
            wheels = prune(store, wheels)
            follow(store)
    return print_wheels(args, wheels, "removed", dry_run=args.dry_run)


def _rules(args: argparse.Namespace) -> "Iterator[tuple[Retention, str | None]]":
    """The rule of the command line, else those of ci/farm.yaml, each with its group."""
    from farm.base.errors import UsageError
    from farm.base.project import find_project
    from farm.cli import show
    from farm.index.lifecycle import Retention
    from farm.plan.settings import load_settings

    if args.keep is not None:
        yield Retention(args.keep, args.older_than or timedelta(0), args.pre, args.rebuilds), args.group
        return
    if args.older_than is not None or args.pre or args.rebuilds or args.group:
        raise UsageError(
            "--keep N is missing: how many versions to keep", hint="without options, the rules of ci/farm.yaml count"
        )
    rules = load_settings(find_project(args.project or Path.cwd())).retention
    if not rules:
        show.note("ci/farm.yaml has no rules (retention): nothing is removed")
    for rule in rules:
        yield Retention(rule.keep, rule.older_than, rule.pre, rule.rebuilds), rule.group


def _age(text: str) -> timedelta:
    try:
        return parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _variant(args: argparse.Namespace) -> int:
    from farm.base.temporary import temporary_folder
    from farm.cli import show
    from farm.index.variants import ROOT, build_of, properties, publish_variant, published, variant_json
    from farm.plan.variant import Variant
    from farm.wheel.label import label_wheel

    variant = Variant.parse(args.variant)
    label, labelled = properties(variant.gpu, variant.sms, variant.cpu)
    store = store_of(args)
    record = published(store, args.wheel)
    with temporary_folder("farm-variant-") as folder:
        content, build = variant_json({label: labelled}), build_of(record)
        path, metadata = label_wheel(args.wheel, folder, label, content, build)
        pages = publish_variant(store, path, record, label, labelled, metadata)
    if args.json:
        show.json_document({"wheel": path.name, "label": label, "pages": pages})
    else:
        root = store.url(f"{ROOT}simple/")
        show.say(f"{path.name}: {label}")
        show.say(f"UV_PREVIEW_FEATURES=wheel-variants uv pip install --index-url {root} {record.project}")
    return 0
