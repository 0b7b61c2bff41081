"""`farm index check | reconcile`: the pages of the whole index."""

import argparse
from dataclasses import asdict

from farm.cli.index_options import add_index, store_of


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    if name == "reconcile":
        text = "also take back a yank or removal that pages show and no event says (any more)"
        parser.add_argument("--take-back", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    return {"check": _check, "reconcile": _reconcile}[args.index_command](args)


def _check(args: argparse.Namespace) -> int:
    """Print the problems; 6 when a client can trip over one, 1 when work is unfinished, 0 otherwise."""
    from farm.cli import show
    from farm.index.check import Problem, Trial, check
    from farm.index.pages import check_there
    from farm.index.variants import follow

    store = store_of(args)
    check_there(store)
    follow(trial := Trial(store))
    copies = [Problem(key, "is not what records and events say of copies", broken=True) for key in trial.noted]
    problems = check(store) + copies
    broken = sum(problem.broken for problem in problems)
    if args.json:
        show.json_document([asdict(problem) for problem in problems])
    else:
        rows = [("broken" if p.broken else "unfinished", p.key, p.what) for p in problems]
        if rows:
            show.table("", ("", "object", "what"), rows)
        show.say(f"{broken} broken, {len(problems) - broken} unfinished")
        if problems:
            show.say("farm index reconcile writes pages from the records; docs/wheel-index.md says what else may help")
    return 6 if broken else 1 if problems else 0


def _reconcile(args: argparse.Namespace) -> int:
    """Print what was written; 7 when a wheel's bytes are missing."""
    from farm.cli import show
    from farm.index.reconcile import reconcile
    from farm.index.variants import follow

    store = store_of(args)
    done = reconcile(store, take_back=args.take_back)
    written = [*done.written, *follow(store)]
    if args.json:
        show.json_document({"written": written, "missing": list(done.missing)})
    else:
        for key in written:
            show.say(f"written: {key}")
        for filename in done.missing:
            show.say(f"left out: {filename} was claimed, and its bytes are not there; publish it again")
        show.say(f"{len(written)} pages written")
    return 7 if done.missing else 0
