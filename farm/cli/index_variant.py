"""`farm index variant`: a wheel into the tree of wheel variants (drafts of PEP 825), beside its own root."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_writing, signer_of, writable_store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.listing import Listing
    from farm.index.variant_tree import variant_json
    from farm.index.variants import properties, publish_variant, published
    from farm.temporary import temporary_folder
    from farm.variant import Variant
    from farm.wheel.label import label_wheel

    variant = Variant.parse(args.variant)
    label, labelled = properties(variant.gpu, variant.sms, variant.cpu)
    store, signer = writable_store_of(args), signer_of(args)
    # Before anything is written: it refuses a key that may not sign here.
    listing = Listing(store, signer)
    record = published(store, args.wheel)
    with temporary_folder("farm-variant-") as folder:
        path, metadata = label_wheel(args.wheel, folder, label, variant_json({label: labelled}))
        shown = publish_variant(store, path, record, label=label, labelled=labelled, metadata=metadata, signer=signer)
        filename = path.name
    # Last: the catalogue lists the group when its pages are there.
    listing.add_group("variant")
    if args.json:
        show.json_document({"wheel": filename, "label": label, "pages": list(shown)})
    else:
        show.say(f"{filename}: {label}")
        show.say(
            "UV_PREVIEW_FEATURES=wheel-variants uv pip install "
            f"--index-url {store.url('whl/variant/simple/')} {record.project}"
        )
    return 0
