"""Common parts of the subcommands of `farm index`: the index, the key that signs, a change of one wheel's state."""

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.index.admission import Admission
    from farm.index.events import Kind
    from farm.index.signing import Signer
    from farm.index.stores import Store, Stored
    from farm.plan.settings import Settings


def add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")


def add_single_writer(parser: argparse.ArgumentParser) -> None:
    text = "accept a store that ignores conditions: you promise to be the only writer"
    parser.add_argument("--single-writer", action="store_true", help=text)


def add_allow(parser: argparse.ArgumentParser) -> None:
    text = "take what PyPI refuses: Requires-Dist with a URL, or a new name that looks like another project's"
    parser.add_argument("--allow", action="append", default=[], choices=["direct-urls", "similar-names"], help=text)


def policy_of(args: argparse.Namespace) -> "Admission":
    """The value of `--allow`."""
    from farm.index.admission import Admission

    return Admission("direct-urls" in args.allow, "similar-names" in args.allow)


def add_signing_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signing-key", type=Path, metavar="FILE", help="signs the pages that change (default: ci/farm.yaml)"
    )


def add_wheels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheels", nargs="+", metavar="WHEEL", help="file names")


def wheels_of(args: argparse.Namespace) -> list[str]:
    """The wheels that `add_wheels` takes, each once."""
    return list(dict.fromkeys(args.wheels))


def add_writing(parser: argparse.ArgumentParser) -> None:
    """The options of a command that changes the index: which one, who signs, who else writes there, or a dry run."""
    add_index(parser)
    add_signing_key(parser)
    add_single_writer(parser)
    add_dry_run(parser)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--dry-run", action="store_true", help="print what would change, and change nothing")


def index_url(args: argparse.Namespace) -> str:
    """`--index`, else the index of ci/farm.yaml."""
    if args.index:
        return str(args.index)
    from farm.base.errors import UsageError
    from farm.base.project import find_project
    from farm.plan.settings import load_settings

    try:
        project = find_project(args.project or Path.cwd())
    except UsageError as error:
        raise UsageError(str(error), hint="name the store: --index URL") from error
    index = load_settings(project).index
    return index if "://" in index else str(project / index)


def settings_of(args: argparse.Namespace) -> "Settings":
    """The settings of ci/farm.yaml."""
    from farm.base.project import find_project
    from farm.plan.settings import load_settings

    return load_settings(find_project(args.project or Path.cwd()))


def store_of(args: argparse.Namespace) -> "Store":
    """The index, to be read."""
    from farm.index.backends import open_store

    return open_store(index_url(args))


def opened_to_change(args: argparse.Namespace) -> "tuple[Store, Stored | None]":
    """The index, to be changed, and its catalogue: whether the store keeps conditional writes is known then.

    In a dry run it is only read, and nothing is tried out there.
    """
    from farm.index.catalogue import CATALOGUE_KEY
    from farm.index.probe import proved_catalogue
    from farm.index.rehearsal import Rehearsal

    store = store_of(args)
    if args.dry_run:
        return Rehearsal(store), store.get(CATALOGUE_KEY)
    return store, proved_catalogue(store, single_writer=args.single_writer)


def signer_of(args: argparse.Namespace) -> "Signer | None":
    """`--signing-key`, else the key of ci/farm.yaml where there is one; None: nothing is signed.

    A project is not needed when `--index` says where the index is.
    """
    from farm.base.errors import UsageError
    from farm.base.project import find_project
    from farm.index.signing import load_signer
    from farm.plan.settings import load_settings
    from farm.run.workspace import configured_signer

    if args.signing_key:
        return load_signer(args.signing_key)
    try:
        project = find_project(args.project or Path.cwd())
    except UsageError:
        if args.index and not args.project:
            return None
        raise
    return configured_signer(project, load_settings(project))


def changing(args: argparse.Namespace) -> "tuple[Store, Signer | None]":
    """The index, to be changed, and who signs."""
    store, catalogue = opened_to_change(args)
    return store, signer_over(args, catalogue)


def signer_over(args: argparse.Namespace, catalogue: "Stored | None") -> "Signer | None":
    """`signer_of` for an index that will be changed, with a warning where a signed one will not be signed."""
    from farm.cli import show
    from farm.index.catalogue import parse_catalogue
    from farm.index.pages import ForeignObjectError
    from farm.index.roles import UNSIGNED

    signer = signer_of(args)
    if signer is None:
        with contextlib.suppress(ForeignObjectError):  # whoever needs it reports it
            if parse_catalogue(catalogue.data if catalogue else None).keys is not None:
                show.note(f"farm: {UNSIGNED}")
    return signer


def add_event(args: argparse.Namespace, kind: "Kind", mirrors: Sequence[str] | None = None) -> int:
    """Says that something happened to `args.target`, shows it on all pages, signs these and prints them."""
    from farm.cli import show
    from farm.index.lifecycle import record_event

    store, signer = changing(args)
    changed = sorted(record_event(store, args.target, kind, args.reason, mirrors=mirrors, signer=signer))
    if args.json:
        show.json_document({"pages": changed})
    else:
        for key in changed:
            show.say(f"{'would change' if args.dry_run else 'changed'}: {key}")
    return 0


def print_wheels(args: argparse.Namespace, wheels: Sequence[str], done: str) -> int:
    """Prints the names of wheels, and how many of them are `done`, or would be."""
    from farm.cli import show

    if args.json:
        show.json_document({"wheels": list(wheels), "dry_run": args.dry_run})
    else:
        for wheel in wheels:
            show.say(wheel)
        show.say(f"{len(wheels)} {'would be ' if args.dry_run else ''}{done}")
    return 0
