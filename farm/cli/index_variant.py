"""`farm index variant`: a wheel into the tree of wheel variants (drafts of PEP 825), beside its own root."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_writing, signer_of, writable_store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    import tempfile

    from farm.cli import show
    from farm.index.listing import Listing
    from farm.index.roles import sign_pages
    from farm.index.variants import properties, publish_variant, variant_json
    from farm.variant import Variant
    from farm.wheel.archive import Archive
    from farm.wheel.label import label_wheel
    from farm.wheel.metadata import parse_wheel_name, read_dist_info

    variant = Variant.parse(args.variant)
    label, labelled = properties(variant.gpu, variant.sms, variant.cpu)
    store, signer = writable_store_of(args), signer_of(args)
    # Before anything is written: it refuses a key that may not sign here.
    listing = Listing(store, signer)
    with tempfile.TemporaryDirectory(prefix="farm-variant-") as folder:
        path, metadata = label_wheel(args.wheel, Path(folder), label, variant_json({label: labelled}))
        with Archive(args.wheel) as archive:
            requires_python = read_dist_info(archive).requires_python
        name = parse_wheel_name(args.wheel.name)
        shown = publish_variant(
            store,
            path,
            project=name.name,
            version=name.version.partition("+")[0],
            label=label,
            labelled=labelled,
            metadata=metadata,
            requires_python=requires_python,
        )
        filename = path.name
    if signer is not None:
        sign_pages(store, signer, shown)
    # Last: the catalogue lists the group when its pages are there.
    listing.add_group("variant")
    if args.json:
        show.json_document({"wheel": filename, "label": label, "pages": sorted(shown)})
    else:
        show.say(f"{filename}: {label}")
        show.say(
            "UV_PREVIEW_FEATURES=wheel-variants uv pip install "
            f"--index-url {store.url('whl/variant/simple/')} {name.name}"
        )
    return 0
