"""`farm index variant`: a wheel into the tree of wheel variants (drafts of PEP 825), beside its own root."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_writing, changing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.base.temporary import temporary_folder
    from farm.cli import show
    from farm.index.labels import properties, variant_json
    from farm.index.variants import build_of, publish_variant, published
    from farm.plan.variant import Variant
    from farm.wheel.label import label_wheel

    variant = Variant.parse(args.variant)
    label, labelled = properties(variant.gpu, variant.sms, variant.cpu)
    store, signer = changing(args)
    record = published(store, args.wheel)
    with temporary_folder("farm-variant-") as folder:
        content, build = variant_json({label: labelled}), build_of(record)
        path, metadata = label_wheel(args.wheel, folder, label, content, build)
        done = publish_variant(store, path, record, labelled, metadata, signer)
    if args.json:
        show.json_document({"wheel": done.record.filename, "label": label, "pages": list(done.pages)})
    else:
        show.say(f"{done.record.filename}: {label}")
        show.say(f"UV_PREVIEW_FEATURES=wheel-variants uv pip install --index-url {done.index_url} {record.project}")
    return 0
