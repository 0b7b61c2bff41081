"""`farm index ...`: the commands about the index itself."""

import argparse
from collections.abc import Callable
from pathlib import Path

from farm.errors import PublishRefusedError, UsageError


def add_index(index: argparse.ArgumentParser) -> None:
    """The subcommands."""
    index.description = "The hosted wheel index: is its store fit, is it whole?"
    commands = index.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    text = (
        "prove on scratch keys that a store keeps conditional writes, also under concurrency, and say what it is like"
    )
    probe = commands.add_parser("probe", help=text, description=text[0].upper() + text[1:] + ".")
    probe.add_argument("--json", action="store_true", help="one JSON document on stdout, everything else on stderr")
    add_store(probe)
    add_single_writer(probe)


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")


def add_single_writer(parser: argparse.ArgumentParser) -> None:
    text = "accept a store that ignores conditions: you promise that nobody else writes there at the same time"
    parser.add_argument("--single-writer", action="store_true", help=text)


def store_url(args: argparse.Namespace) -> str:
    """`--index`, else `index:` of ci/farm.yaml.

    Raises:
        UsageError: Neither is there.
    """
    from farm.settings import find_project, load_settings

    if args.index:
        return str(args.index)
    try:
        project = find_project(args.project or Path.cwd())
    except UsageError as error:
        error.hint = "name the store: --index URL"
        raise
    index = load_settings(project).index
    return index if "://" in index else str(project / index)


def cmd_probe(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from farm.cli import show
    from farm.index.probe import accept, examine
    from farm.index.stores import open_store

    store = open_store(store_url(args))
    findings = examine(store, traits=True)
    try:
        accept(store, findings, single_writer=args.single_writer)
        refused = None
    except PublishRefusedError as error:
        refused = error
    if args.json:
        said = {"store": store.url(""), "proved": refused is None, **asdict(store.quirks)}
        print(json.dumps({**said, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        rows = [("yes" if each.good else "NO" if each.needed else "no", each.what, each.seen) for each in findings]
        show.table(store.url(""), ("", "tried", "seen"), rows)
        if refused is None:
            show.say(
                "only one writer at a time may publish here" if store.quirks.reads_first else "fit to publish into"
            )
    if refused is not None:
        show.explain(refused)
        return refused.exit_code
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {"probe": cmd_probe}


def cmd_index(args: argparse.Namespace) -> int:
    """Carry out the subcommand that was parsed."""
    return COMMANDS[args.index_command](args)
