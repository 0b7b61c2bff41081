"""Common parts of the subcommands of `farm index`: the index, the key that signs, what is printed."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

    from farm.index.admission import Admission
    from farm.index.stores import Store


def add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")


def add_allow(parser: argparse.ArgumentParser) -> None:
    text = "take what PyPI refuses: Requires-Dist with a URL, or a new name that looks like another project's"
    parser.add_argument("--allow", action="append", default=[], choices=["direct-urls", "similar-names"], help=text)


def policy_of(args: argparse.Namespace) -> "Admission":
    """The value of `--allow`."""
    from farm.index.admission import Admission

    return Admission("direct-urls" in args.allow, "similar-names" in args.allow)


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


def store_of(args: argparse.Namespace) -> "Store":
    from farm.index.backends import open_store

    return open_store(index_url(args))


def signer_of(args: argparse.Namespace) -> "CryptoSigner":
    """`--signing-key`, else the key of ci/farm.yaml; UsageError if there is none."""
    from farm.base.errors import UsageError
    from farm.base.project import find_project
    from farm.index.sign import load_signer
    from farm.plan.settings import load_settings

    if args.signing_key:
        return load_signer(args.signing_key)
    project = find_project(args.project or Path.cwd())
    where = load_settings(project).signing_key
    if where is None:
        raise UsageError("no key to sign with", hint="--signing-key FILE, or signing_key in ci/farm.yaml")
    return load_signer(where if where.startswith("env:") else project / where)
