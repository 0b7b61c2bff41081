"""`farm index …`: the hosted index: its pages, what happens to wheels after they were published, and its signatures."""

import argparse
import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

    from farm.index.admission import Admission
    from farm.index.stores import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    for name, (text, add, _) in COMMANDS.items():
        one = below.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.add_argument("--json", action="store_true", help="print one JSON document on stdout")
        add(one)


def run(args: argparse.Namespace) -> int:
    return COMMANDS[args.index_command][2](args)


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
    from farm.cli.project import project_of

    try:
        project, settings = project_of(args)
    except UsageError as error:
        raise UsageError(str(error), hint="name the store: --index URL") from error
    return settings.index_at(project)


def _store(args: argparse.Namespace) -> "Store":
    from farm.index.backends import open_store

    return open_store(index_url(args))


# --- pages ---


def _add_reconcile(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    text = "also take back a yank or removal that pages show and no event says (any more)"
    parser.add_argument("--take-back", action="store_true", help=text)


def _check(args: argparse.Namespace) -> int:
    """Print the problems; 6 when a client can trip over one, 1 when work is unfinished, 0 otherwise."""
    from farm.cli import show
    from farm.index.check import Problem, Trial, check
    from farm.index.pages import check_there
    from farm.index.variants import follow

    store = _store(args)
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

    store = _store(args)
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


# --- wheels after they were published ---


def _add_event(parser: argparse.ArgumentParser, reason: str | None = None, *, required: bool = True) -> None:
    parser.add_argument("wheels", nargs="+", metavar="WHEEL", help="file names")
    if reason is not None:
        parser.add_argument("--reason", required=required, default="", help=reason)
    else:
        parser.add_argument("--to", required=True, metavar="GROUP", help="for example sm35-avx")
    add_index(parser)


def _event(args: argparse.Namespace) -> int:
    """Add an event to wheels; print the pages that show it, with those of their labelled copies."""
    from farm.cli import show
    from farm.index.lifecycle import record_event
    from farm.index.variants import follow

    store, group = _store(args), getattr(args, "to", None)
    wheels, changed = record_event(store, args.wheels, args.index_command, getattr(args, "reason", ""), group=group)
    pages = sorted({*changed, *follow(store)})
    if args.json:
        show.json_document({"wheels": wheels, "pages": pages})
    else:
        for key in pages:
            show.say(f"changed: {key}")
        show.say(f"{len(wheels)} wheels, {len(pages)} pages changed")
    return 0


def _add_variant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--variant", required=True, metavar="GPU-CPU-PYTHON", help="what the wheel is for")
    add_index(parser)


def _variant(args: argparse.Namespace) -> int:
    from farm.base.temporary import temporary_folder
    from farm.cli import show
    from farm.index.variants import ROOT, build_of, properties, publish_variant, published, variant_json
    from farm.plan.variant import Variant
    from farm.wheel.rewrite import label_wheel

    variant = Variant.parse(args.variant)
    label, labelled = properties(variant.gpu, variant.sms, variant.cpu)
    store = _store(args)
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


# --- signatures ---


def _add_sign(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    parser.add_argument("--signing-key", metavar="FILE", help="an online key, or env:NAME (default: ci/farm.yaml)")
    text = "sign although this machine's clock and the newest signature disagree"
    parser.add_argument("--trust-clock", action="store_true", help=text)


def _sign(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.sign import sign

    pages, wheels, expires = sign(_store(args), _signer(args), trust_clock=args.trust_clock)
    if args.json:
        show.json_document({"pages": pages, "wheels": wheels, "expires": expires.isoformat()})
    else:
        show.say(f"signed {pages} pages and {wheels} wheels; that counts until {expires:%Y-%m-%d}")
    return 0


def _signer(args: argparse.Namespace) -> "CryptoSigner":
    """`--signing-key`, else the key of ci/farm.yaml; UsageError if there is none."""
    from farm.base.errors import UsageError
    from farm.cli.project import project_of
    from farm.index.sign import load_signer

    if args.signing_key:
        return load_signer(args.signing_key)
    project, settings = project_of(args)
    where = settings.signing_key
    if where is None:
        raise UsageError("no key to sign with", hint="--signing-key FILE, or signing_key in ci/farm.yaml")
    return load_signer(where if where.startswith("env:") else project / where)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the root of the index: https://…, a folder or s3://…")
    text = "the root that you trust, tuf/1.root.json or a later one, as its owner gave it to you"
    parser.add_argument("--root", type=Path, required=True, metavar="FILE", help=text)
    parser.add_argument("--wheels", action="store_true", help="download and hash the wheels as well")


def _verify(args: argparse.Namespace) -> int:
    """Print what was found; 6 when something is not as signed."""
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.reader import open_reader
    from farm.index.verify import verify_index

    try:
        root = args.root.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the trusted root {args.root}: {error.strerror}") from error
    # As the XDG base directory specification has it; for each trusted root, which an index and its mirrors share.
    seen = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "torch-farm" / "verified"
    state = seen / hashlib.sha256(root).hexdigest()[:32]
    done = verify_index(open_reader(args.url), root, state=state, wheels=args.wheels)
    if args.json:
        show.json_document(done._asdict())
    else:
        for problem in done.problems:
            show.say(problem)
        found = f"{len(done.problems)} problems" if done.problems else "all as signed"
        show.say(f"{found}: {done.pages} pages, {done.wheels} wheels, signed {done.time}")
    return 6 if done.problems else 0


def _add_keys(parser: argparse.ArgumentParser) -> None:
    text = "all public keys that may sign from now on (default: those that may sign now)"
    parser.add_argument("public", type=Path, nargs="*", metavar="ONLINE.pub", help=text)
    parser.add_argument("--root-key", type=Path, required=True, metavar="FILE", help="the private root key")
    parser.add_argument("--new-root-key", type=Path, metavar="FILE", help="the private root key from now on")
    add_index(parser)


def _keys(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.sign import load_public, load_signer, root_key, set_keys

    store = _store(args)
    successor = load_signer(args.new_root_key) if args.new_root_key else None
    number, data = set_keys(store, load_signer(args.root_key), [load_public(path) for path in args.public], successor)
    digest = hashlib.sha256(data).hexdigest()
    if args.json:
        show.json_document({"root": number, "sha256": digest})
    else:
        if number == 1:
            show.say(f"give {store.url(root_key(1))} to users (sha256 {digest}), and keep the root key offline")
        show.say(f"root {number} counts from now on; next, with a key that may sign: farm index check, farm index sign")
    return 0


COMMANDS = {
    "check": (
        "read the whole index as a client does, hash every wheel, and report what is broken or unfinished",
        add_index,
        _check,
    ),
    "reconcile": ("write every page anew from the records and events", _add_reconcile, _reconcile),
    "yank": (
        "have installers skip wheels unless their exact version is asked for (PEP 592)",
        lambda parser: _add_event(parser, "shown to whoever installs it anyway"),
        _event,
    ),
    "unyank": ("take a yank back", lambda parser: _add_event(parser, "kept in the event", required=False), _event),
    "remove": (
        "delete wheels for good; their names stay taken (a yank can be undone)",
        lambda parser: _add_event(parser, "kept in the event"),
        _event,
    ),
    "promote": ("list wheels in a further group, without copying them", _add_event, _event),
    "variant": (
        "put a labelled copy of a wheel into whl/variant/, where uv's preview of wheel variants finds it",
        _add_variant,
        _variant,
    ),
    "verify": (
        "compare an index with what its owner signed, and name pages that are not signed",
        _add_verify,
        _verify,
    ),
    "sign": ("sign all pages and wheels as they are (TUF)", _add_sign, _sign),
    "keys": ("say which keys may sign the index, and no others, for a year", _add_keys, _keys),
}
"""The subcommands: a line of help, what adds the arguments, what carries it out."""
