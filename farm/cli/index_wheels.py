"""`farm index yank | unyank | remove | promote | variant`: what happens to wheels after they were published."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_index, store_of


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
    if name == "variant":
        parser.add_argument("wheel", type=Path)
        parser.add_argument("--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for")
    add_index(parser)


def run(args: argparse.Namespace) -> int:
    """Add an event to wheels; print the pages that show it, with those of their labelled copies."""
    if args.index_command == "variant":
        return _variant(args)
    from farm.cli import show
    from farm.index.lifecycle import record_event
    from farm.index.variants import follow

    store, group = store_of(args), getattr(args, "to", None)
    wheels, changed = record_event(store, args.wheels, args.index_command, getattr(args, "reason", ""), group=group)
    pages = sorted({*changed, *follow(store)})
    if args.json:
        show.json_document({"wheels": wheels, "pages": pages})
    else:
        for key in pages:
            show.say(f"changed: {key}")
        show.say(f"{len(wheels)} wheels, {len(pages)} pages changed")
    return 0


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
