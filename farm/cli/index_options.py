"""What the subcommands of `farm index` share: which index, and which key signs."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.index.admission import Admission
    from farm.index.signing import Signer
    from farm.index.stores import Store
    from farm.settings import Settings

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def command(
    commands: "Commands", name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A subcommand that `run` carries out."""
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, everything else on stderr")
    parser.set_defaults(index_run=run)
    return parser


def add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")


def add_single_writer(parser: argparse.ArgumentParser) -> None:
    text = "accept a store that ignores conditions: you promise that nobody else writes there at the same time"
    parser.add_argument("--single-writer", action="store_true", help=text)


def add_allow(parser: argparse.ArgumentParser) -> None:
    text = "take what PyPI refuses: Requires-Dist with a URL, or a new name that looks like another project's"
    parser.add_argument("--allow", action="append", default=[], choices=["direct-urls", "similar-names"], help=text)


def policy_of(args: argparse.Namespace) -> "Admission":
    """What `--allow` says."""
    from farm.index.admission import Admission

    return Admission("direct-urls" in args.allow, "similar-names" in args.allow)


def add_signing_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signing-key", type=Path, metavar="FILE", help="signs the pages that change (default: ci/farm.yaml)"
    )


def index_url(args: argparse.Namespace) -> str:
    """`--index`, else the index of ci/farm.yaml."""
    if args.index:
        return str(args.index)
    from farm.errors import UsageError
    from farm.settings import find_project, load_settings

    try:
        project = find_project(args.project or Path.cwd())
    except UsageError as error:
        raise UsageError(str(error), hint="name the store: --index URL") from error
    index = load_settings(project).index
    return index if "://" in index else str(project / index)


def settings_of(args: argparse.Namespace) -> "Settings":
    """What ci/farm.yaml says."""
    from farm.settings import find_project, load_settings

    return load_settings(find_project(args.project or Path.cwd()))


def store_of(args: argparse.Namespace) -> "Store":
    from farm.index.backends import open_store

    return open_store(index_url(args))


def signer_of(args: argparse.Namespace) -> "Signer | None":
    """`--signing-key`, else the key of ci/farm.yaml where there is one; None: nothing is signed.

    A project is not needed when `--index` says where the index is.
    """
    from farm.errors import UsageError
    from farm.index.signing import load_signer
    from farm.pipeline.workspace import configured_signer
    from farm.settings import find_project, load_settings

    if args.signing_key:
        return load_signer(args.signing_key)
    try:
        project = find_project(args.project or Path.cwd())
    except UsageError:
        if args.index and not args.project:
            return None
        raise
    return configured_signer(project, load_settings(project))
