"""Commands about the hosted index: `farm publish`, `farm index …`, `farm site build`.

The steps of a build take long to import: only the commands that need them do.
"""

import argparse
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from farm.base.errors import ExitCode, FarmError, UsageError
from farm.base.safe_files import read_small
from farm.base.temporary import temporary_folder
from farm.cli import show
from farm.cli.selection import plan_of, project_of
from farm.index.admission import Admission
from farm.index.batch import Offer, in_folders, in_index, publish_all
from farm.index.changes import record_event
from farm.index.check import Problem, Trial, check
from farm.index.layout import parse_wheel_name
from farm.index.mirror import copy_index
from farm.index.pages import check_there
from farm.index.public import check_public
from farm.index.reader import KEY, HttpReader, open_reader
from farm.index.reconcile import Reconciled, reconcile
from farm.index.signatures import (
    MAX_ROLE_BYTES,
    load_public,
    load_signer,
    root_key,
    set_keys,
    sign,
    verify_index,
)
from farm.index.store_urls import open_store
from farm.index.stores import Store
from farm.index.variants import (
    ROOT,
    build_of,
    cuda_of,
    follow,
    properties,
    publish_variant,
    published,
    variant_json,
    with_driver,
)
from farm.plan.variant import Variant
from farm.wheel.archive import Archive
from farm.wheel.metadata import read_dist_info
from farm.wheel.rewrite import label_wheel
from farm.wheel.verify import verify


def run_publish(args: argparse.Namespace) -> int:
    """Print what was published; 7 when wheels were left out."""
    if args.variant and not args.to and not args.sources and len(args.wheels) == 1:
        args.wheel = args.wheels[0]
        return _verified(args)
    _check_places(args)
    offers, left_out = _offers(args)
    progress: Callable[[str], None] = show.say
    if args.json or args.quiet:
        progress = _say_nothing
    store = _store(args)
    done = publish_all(store, offers, policy=policy_of(args), progress=progress)
    if done.wheels:
        _refresh_site(args, store, done.wheels)
    left_out |= done.left_out
    lines = [f"left out: {why}" for why in left_out.values()]
    count = f"{len(done.wheels)} published, {len(left_out)} left out"
    show.answer(args, {"wheels": list(done.wheels), "left_out": left_out}, [*lines, count])
    return _refused(bool(left_out))


def _check_places(args: argparse.Namespace) -> None:
    """Refuse what is neither wheels for a group nor the wheels of another index."""
    from_files = args.wheels and args.to and not args.sources
    from_index = args.sources and not args.wheels
    if args.variant or not (from_files or from_index):
        raise UsageError(
            "publish one wheel by its --variant, or wheels and folders --to a group, or all "
            "wheels --from an index",
            hint="farm publish WHEEL --variant sm35-avx-py311; farm publish dist/ --to sm35-avx",
        )


def _offers(args: argparse.Namespace) -> tuple[list[Offer], dict[str, str]]:
    """The wheels that are to be published, and why others are left out."""
    if args.wheels:
        return in_folders(args.wheels, args.to, args.channel)
    offers: list[Offer] = []
    left_out: dict[str, str] = {}
    for place in args.sources:
        source = open_store(place)
        check_there(source)
        source_offers, without = in_index(source, args.to)
        offers += source_offers
        left_out |= without
    return offers, left_out


def _say_nothing(_name: str) -> None:
    """Takes the place of progress."""


def _refused(refused: bool) -> int:
    """The exit code of a command that left wheels out."""
    if refused:
        return ExitCode.PUBLISH_REFUSED
    return ExitCode.DONE


def _verified(args: argparse.Namespace) -> int:
    from farm.cli.progress import watching
    from farm.cli.wheels import waivers_of
    from farm.run.build_inputs import BuildInputs, read_inputs
    from farm.run.pip_commands import pip_line, pip_request
    from farm.run.publish_step import publish_wheel
    from farm.run.verify_step import refusal, summary
    from farm.run.workspace import Outcomes, Workspace

    project, settings, plan = plan_of(args)
    if args.index:
        settings = settings.with_index(args.index)
    with watching(args) as watcher:
        workspace = Workspace(project, settings, watcher)
        outcomes = Outcomes()
        with outcomes.timed("verify", watcher) as step:
            # Whatever verified it before: this very file is what goes into the index.
            report = verify(
                args.wheel, plan.verify, waivers=waivers_of(args), dependencies=args.dependency
            )
            if not report.passed:
                raise refusal(report)
            step.result = summary(report)
        inputs = BuildInputs()
        if args.inputs:
            inputs = read_inputs(args.inputs)
        with outcomes.timed("publish", watcher) as step:
            mib = args.wheel.stat().st_size >> 20

            def draw(done: int, mib: int = mib) -> None:
                if mib:
                    watcher.progress(done >> 20, mib)

            result = publish_wheel(
                workspace,
                plan,
                args.wheel,
                report,
                given=inputs,
                policy=policy_of(args),
                progress=draw,
            )
            step.result = result.wheel_url
    line = pip_line(*pip_request(workspace, plan, args.wheel.name))
    lines = [line]
    if not args.quiet:
        outcome = "already there: nothing to do"
        if result.changed:
            outcome = "published"
        lines.insert(0, outcome)
    show.answer(args, {"changed": result.changed, "wheel": result.wheel_url, "pip": line}, lines)
    return 0


def run_index(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.index_command](args)


def policy_of(args: argparse.Namespace) -> Admission:
    """The value of `--allow`."""
    return Admission("direct-urls" in args.allow, "similar-names" in args.allow)


def index_url(args: argparse.Namespace) -> str:
    """`--index`, else the index of ci/farm.yaml."""
    if args.index:
        return str(args.index)
    try:
        project, settings = project_of(args)
    except UsageError as error:
        raise UsageError(str(error), hint="name the store: --index URL") from error
    return settings.index_at(project)


def _store(args: argparse.Namespace) -> Store:
    return open_store(index_url(args))


def _refresh_site(
    args: argparse.Namespace, store: Store, wheels: Iterable[str] | None = None
) -> list[str]:
    """Write the pages for people after a change of wheels; None: of the whole index.

    Returns:
        The keys of those that changed.
    """
    if store.get(KEY) is None:  # there is no site, and it may be outside of a project
        return []
    from farm.cli.site import index_workspace
    from farm.run.site_step import refresh_site

    projects = None
    if wheels is not None:
        projects = {parse_wheel_name(name)[0] for name in wheels}
    try:
        workspace = index_workspace(args)
    except FarmError as error:
        show.note(f"the pages for people are as before: {error}; farm site build writes them")
        return []
    return refresh_site(workspace, projects)


def _site_problems(args: argparse.Namespace, store: Store) -> list[Problem]:
    if store.get(KEY) is None:
        return []
    from farm.cli.site import site_problems

    return site_problems(args, store)


def _check(args: argparse.Namespace) -> int:
    """Print the problems; 6 when a client can trip over one, 1 when work is unfinished, 0
    otherwise.
    """
    store = _store(args)
    check_there(store)
    if args.public is not None:
        return _report_problems(args, _public_problems(args, store), PUBLIC_ADVICE)
    problems = check(store)
    trial = Trial(store)
    follow(trial)
    for key in trial.noted:
        problems.append(Problem(key, "is not what records and events say of copies", broken=True))
    problems += _site_problems(args, store)
    return _report_problems(args, problems, CHECK_ADVICE)


CHECK_ADVICE = (
    "farm index reconcile writes pages from the records; docs/how-to/index-upkeep.md says what "
    "else may help"
)
PUBLIC_ADVICE = "docs/how-to/index-servers.md has configurations that pass"


def _public_problems(args: argparse.Namespace, store: Store) -> list[Problem]:
    """What clients of the public address get that is not as in the store."""
    url = args.public
    if not url:
        _project, settings = project_of(args)
        url = settings.index_public_url
    if not url:
        raise UsageError(
            "the public address of the index is not known",
            hint="name it: --public URL, or index_public_url in ci/farm.yaml",
        )
    reader = open_reader(url)
    if not isinstance(reader, HttpReader):
        raise UsageError(f"{url} is no address of a web server", hint="--public https://host/path")
    return check_public(store, reader, wheels=args.wheels)


def _report_problems(args: argparse.Namespace, problems: list[Problem], advice: str) -> int:
    broken = sum(problem.broken for problem in problems)
    if args.json:
        show.json_document(list(map(asdict, problems)))
    else:
        rows = []
        for problem in problems:
            kind = "unfinished"
            if problem.broken:
                kind = "broken"
            rows.append((kind, problem.key, problem.what))
        if rows:
            show.table("", ("", "object", "what"), rows)
        show.say(f"{broken} broken, {len(problems) - broken} unfinished")
        if problems:
            show.say(advice)
    if broken:
        return ExitCode.VERIFICATION_FAILED
    return int(bool(problems))


def _reconcile(args: argparse.Namespace) -> int:
    """Print what was written; 7 when a wheel's bytes are missing."""
    store = _store(args)
    done = reconcile(store, take_back=args.take_back)
    written = [*done.written, *follow(store), *_refresh_site(args, store)]
    document = {
        "written": written,
        "missing": list(done.missing),
        "differing": list(done.differing),
        "orphans": list(done.orphans),
    }
    show.answer(args, document, _reconciled(done, written, deleted=args.take_back))
    return _refused(bool(done.missing or done.differing))


def _reconciled(done: Reconciled, written: list[str], *, deleted: bool) -> Iterator[str]:
    """The lines that say what was written, left out and removed."""
    for key in written:
        yield f"written: {key}"
    for name in done.missing:
        yield f"left out: {name} was claimed, and its bytes are not there; publish it again"
    for name in done.differing:
        yield (
            f"left out: {name}: its files have other bytes than its record says; bring back the "
            "file from a backup"
        )
    verb = "without a record (--take-back deletes it)"
    if deleted:
        verb = "deleted"
    for key in done.orphans:
        yield f"{verb}: {key}"
    yield f"{len(written)} pages written"


def _copy(args: argparse.Namespace) -> int:
    """Copy the index; print how much was new."""
    source = _store(args)
    check_there(source)
    copied = copy_index(source, open_store(args.to))
    line = f"copied: {copied.files} files, {copied.records} records, {copied.pages} pages"
    show.answer(args, copied._asdict(), [line])
    return 0


def _event(args: argparse.Namespace) -> int:
    """Add an event to wheels; print the pages that show it, with those of their labelled copies."""
    store = _store(args)
    group = getattr(args, "to", None)
    wheels, changed = record_event(
        store, args.wheels, args.index_command, getattr(args, "reason", ""), group=group
    )
    pages = sorted({*changed, *follow(store), *_refresh_site(args, store, wheels)})
    lines = [
        *(f"changed: {key}" for key in pages),
        f"{len(wheels)} wheels, {len(pages)} pages changed",
    ]
    show.answer(args, {"wheels": wheels, "pages": pages}, lines)
    return 0


def _variant(args: argparse.Namespace) -> int:
    variant = Variant.parse(args.variant)
    label, labelled = properties(variant.gpu, variant.sms, variant.cpu)
    store = _store(args)
    record = published(store, args.wheel)
    labelled = with_driver(labelled, _cuda_of(args.wheel))
    with temporary_folder("farm-variant-") as folder:
        content = variant_json({label: labelled})
        build = build_of(record)
        path, metadata = label_wheel(args.wheel, folder, label, content, build)
        pages = publish_variant(store, path, record, label, labelled, metadata)
    root = store.url(f"{ROOT}simple/")
    command = f"UV_PREVIEW_FEATURES=wheel-variants uv pip install --index-url {root}"
    lines = [f"{path.name}: {label}", f"{command} {record.project}"]
    show.answer(args, {"wheel": path.name, "label": label, "pages": pages}, lines)
    return 0


def _cuda_of(wheel: Path) -> str | None:
    with Archive(wheel) as archive:
        requires = read_dist_info(archive).requires_dist
        return cuda_of(parse_wheel_name(wheel.name)[1], archive.members, requires)


def _sign(args: argparse.Namespace) -> int:
    pages, wheels, expires = sign(_store(args), _signer(args), trust_clock=args.trust_clock)
    line = f"signed {pages} pages and {wheels} wheels; that counts until {expires:%Y-%m-%d}"
    show.answer(args, {"pages": pages, "wheels": wheels, "expires": expires.isoformat()}, [line])
    return 0


def _signer(args: argparse.Namespace) -> CryptoSigner:
    """`--signing-key`, else the key of ci/farm.yaml; UsageError if there is none."""
    if args.signing_key:
        return load_signer(args.signing_key)
    project, settings = project_of(args)
    where = settings.signing_key
    if where is None:
        raise UsageError(
            "no key to sign with", hint="--signing-key FILE, or signing_key in ci/farm.yaml"
        )
    if where.startswith("env:"):
        return load_signer(where)
    return load_signer(project / where)


def _verify(args: argparse.Namespace) -> int:
    """Print what was found; 6 when something is not as signed."""
    try:
        root = read_small(args.root, MAX_ROLE_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the trusted root {args.root}: {error.strerror}") from error
    # As the XDG base directory specification has it; for each trusted root, which an index and its
    # mirrors share.
    state_root = (
        Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        / "torch-farm"
        / "verified"
    )
    state = state_root / hashlib.sha256(root).hexdigest()[:32]
    done = verify_index(open_reader(args.url), root, state=state, wheels=args.wheels)
    result = "all as signed"
    code = ExitCode.DONE
    if done.problems:
        result = f"{len(done.problems)} problems"
        code = ExitCode.VERIFICATION_FAILED
    line = f"{result}: {done.pages} pages, {done.wheels} wheels, signed {done.time}"
    show.answer(args, done._asdict(), [*done.problems, line])
    return code


def _keys(args: argparse.Namespace) -> int:
    store = _store(args)
    successor = None
    if args.new_root_key:
        successor = load_signer(args.new_root_key)
    public_keys = list(map(load_public, args.public))
    number, data = set_keys(store, load_signer(args.root_key), public_keys, successor)
    digest = hashlib.sha256(data).hexdigest()
    lines = [
        (
            f"root {number} counts from now on; next, with a key that may sign: farm index check, "
            "farm index sign"
        )
    ]
    if number == 1:
        lines.insert(
            0,
            f"give {store.url(root_key(1))} to users (sha256 {digest}), and keep the root key "
            "offline",
        )
    show.answer(args, {"root": number, "sha256": digest}, lines)
    return 0


EVENTS = dict.fromkeys(("yank", "unyank", "remove", "promote"), _event)
SUBCOMMANDS = {
    "check": _check,
    "reconcile": _reconcile,
    "copy": _copy,
    **EVENTS,
    "variant": _variant,
    "verify": _verify,
}
SUBCOMMANDS |= {"sign": _sign, "keys": _keys}
