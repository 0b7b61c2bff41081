"""Commands about machines: `farm detect`, `doctor`, `report`, `runners`, `clean`.

Engines take long to import: only the commands that talk to them do.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from farm.base import failures
from farm.base.errors import ExitCode, FarmError, UsageError
from farm.base.project import LOCAL, PROJECT_FILES, find_project
from farm.cli import show
from farm.cli.selection import journal_of, project_of, workspace_of
from farm.index.backends import open_store
from farm.machine.detect import Recommendation, choose, driver_problem, machine_of, with_published
from farm.machine.doctor import Site, examine, examine_project
from farm.machine.readings import OTHER, Machine, Readings, take
from farm.plan.build import resolve
from farm.plan.compat import official
from farm.plan.file import Plan
from farm.plan.matrix import Build, load_matrix
from farm.plan.options import Choice
from farm.plan.recommend import Own, own_builds
from farm.plan.selectors import Selectors
from farm.plan.settings import Github, github_if_any, load_github, load_runners
from farm.plan.variant import Variant
from farm.platforms.facts import WINDOWS
from farm.run.journal import EventKind, Journal
from farm.run.workspace import Workspace

if TYPE_CHECKING:
    import docker

    from farm.engines.github import GithubApi
    from farm.engines.slurm import SlurmEngine

MAX_BYTES = 256 << 20
MOST = 10
STEP = re.compile(r"^(?P<time>.*?) farm: (?P<text>.*)$", re.MULTILINE)
CACHED = re.compile(r"^(?P<name>[A-Za-z_][\w.-]*):[A-Z]+=(?P<value>.*)$", re.MULTILINE)
ON = {"1", "ON", "TRUE", "YES", "Y"}
IMAGES = "farm/toolchain"
LOGS = (".log", ".json", ".xml")
"""Endings of the logs and reports of a run."""
CACHES = (
    "sources",
    "toolchains",
    "smoke",
    "bundles",
    "host/farm",
    "host/farm-jobs",
    "host/farm-volumes",
)
"""Folders under `artifacts/` whose entries are made again when they are needed."""


def run_detect(args: argparse.Namespace) -> int:
    """Print the readings and the recommendation; 0 if there is a variant, else 3."""
    readings = take(Machine())
    project, settings = project_of(args)
    own, too_old = _builds(project, readings)
    found = choose(readings, own)
    if too_old and found.variant:
        found = found.model_copy(update={"warnings": (*found.warnings, too_old)})
    index = root = args.index or settings.index_at(project)
    if not index.startswith(("https://", "http://")):
        # The public address is that of the index in ci/farm.yaml: of one that was named it says
        # nothing.
        root = (None if args.index else settings.index_public_url) or open_store(index).url("")
    found = with_published(found, readings, index, root)
    others = list(_other_makers(readings))
    if args.json:
        models = {"readings": readings, "recommendation": found}
        document: dict[str, Any] = {
            name: each.model_dump(mode="json", by_alias=True) for name, each in models.items()
        }
        document["elsewhere"] = [
            dict(zip(("maker", "what", "install"), o, strict=True)) for o in others
        ]
        show.json_document(document)
    else:
        _print_detected(readings, found, others)
    return 0 if found.variant else 3


def _builds(project: Path, readings: Readings) -> tuple[list[Own], str | None]:
    """The builds for this machine as `farm why` and the site name them, and a fault.

    The fault is the driver's, where builds are for the machine and it runs none of them.
    """
    system = readings.os.system
    driver = readings.driver
    machine = machine_of(readings)
    own = own_builds(project, machine)
    newer = own or own_builds(project, replace(machine, driver=None), limit=1)
    if newer and not own:
        fault = driver_problem(newer[0].cuda, driver, system)
    else:
        fault = None
    return own, f"channel {newer[0].channel}: {fault}" if fault else None


def _other_makers(readings: Readings) -> Iterator[tuple[str, str, str]]:
    """Who else has a wheel for the cards, as `farm why --official` says: the maker, what it is, its
    install line.
    """
    machine, place = machine_of(readings), f"{readings.os.system}-{readings.cpu.machine}"
    if not machine.sms or place not in official.PLATFORMS:
        return
    question = official.Question(machine.sms, place, machine.driver)
    answer = official.best(question)
    if answer.runs and answer.wheel:
        without = "".join(f", without {text.partition(':')[0]}" for text in answer.without)
        yield (
            "PyTorch's own",
            f"torch {answer.wheel.torch}, CUDA {answer.wheel.cuda}{without}",
            answer.wheel.pip,
        )
    if answer.runs and not answer.without:
        return
    for row in official.others(question):
        yield (
            row.maker,
            f"torch {row.torch}, CUDA {row.cuda}; lacks {row.lacks}",
            official.install(row, question),
        )


def _print_detected(
    readings: Readings, found: Recommendation, others: list[tuple[str, str, str]]
) -> None:
    cpu = readings.cpu
    os = readings.os
    rows = [("system", f"{os.name} {os.version}" + (f", {os.libc}" if os.libc else ""))]
    names = [name for name in (cpu.name, cpu.microarchitecture, cpu.machine) if name]
    rows.append(("CPU", ", ".join(names)))
    for gpu in readings.gpus:
        facts = [gpu.name]
        if gpu.capability:
            facts.append(f"compute capability {gpu.capability}")
        if gpu.memory_mb is not None:
            facts.append(f"{gpu.memory_mb} MiB")
        rows.append(("GPU", f"{', '.join(facts)} ({gpu.source})"))
    if readings.driver:
        rows.append(("driver", readings.driver))
    rows += [
        (f"Python {python.name[2]}.{python.name[3:]}", python.path) for python in readings.pythons
    ]
    rows += [("not read", f"{item.what}: {item.why}") for item in readings.missing]
    show.table("", ("this machine", ""), rows, show.SCREEN)
    print()
    lines = [("variant", found.variant or "none")]
    if found.channel:
        lines.append(("channel", found.channel))
    if found.state:
        lines.append(("wheel", found.state))
    lines += [("tested", test) for test in found.tests]
    show.table("", ("the wheel for it", ""), lines, show.SCREEN)
    for kind, texts in (("why", found.reasons), ("warning", found.warnings)):
        for text in texts:
            words, command, options = text.partition(" farm submit ")
            show.prose(f"{kind}: {words}")
            if command:  # on a line of its own, to be copied
                show.say(f"  farm submit {options}")
    for maker, what, install in others:
        show.prose(f"{maker}: {what}")
        show.say(f"  {install}")
    if found.pip:
        print()
        show.say(found.pip)


def run_doctor(args: argparse.Namespace) -> int:
    """Print the findings; 0 if nothing is missing, else 4."""
    site = Site()
    readings = take(site)
    project = find_project(args.project or Path.cwd())
    named = args.variant or args.package or args.cuda or args.channel
    # Who has a project with a configuration of its own builds.
    build = args.build or bool(named) or any((project / file).is_file() for file in PROJECT_FILES)
    plan = _plan(args, project, readings) if build else None
    findings = examine(site, readings, plan, build=build)
    if build:
        findings = [*examine_project(project), *findings]
    if args.json:
        if plan:
            what = {"variant": plan.variant, "digest": plan.digest, "version": plan.version}
        else:
            what = None
        found = [finding.model_dump() for finding in findings]
        facts = readings.model_dump(mode="json", by_alias=True)
        show.json_document({"build": what, "findings": found, "readings": facts})
    else:
        title = "to install and use wheels (`farm doctor --build`: to build them):"
        if build:
            if plan:
                what_for = f"{plan.package} {plan.version}"
            else:
                what_for = "wheels (--variant names a certain build)"
            title = f"to build {what_for}:"
        rows = [(f.check, f.state, f.seen, f.todo) for f in findings]
        show.table(title, ("check", "", "found", "what to do"), rows)
    return 4 if any(finding.state == "missing" for finding in findings) else 0


def _own_build(project: Path, channel: str | None) -> Build | None:
    """The first build of a project's own first channel, or of `channel`; None where torch is what
    is built.
    """
    matrix = load_matrix(project)
    own = [matrix.channel(name) for name in ([channel] if channel else matrix.own())]
    if not own or any("torch" in one.packages for one in own):
        return None
    return next(iter(own[0].builds), None)


def _plan(args: argparse.Namespace, project: Path, readings: Readings) -> Plan | None:
    """The build that was named, or the one for this machine; None where there is no such build."""
    system = readings.os.system
    name = args.variant or choose(readings).variant
    if system == OTHER or name is None:
        return None
    try:
        options = {"cuda": Choice(args.cuda, "--cuda")} if args.cuda else {}
        own = None if args.package else _own_build(project, args.channel)
        if args.variant or own is None:
            variant = Variant.parse(name)
        else:
            variant = own.variant
        package = own.package if own else args.package or "torch"
        return resolve(
            project,
            Selectors(variant, package, platform=system, channel=args.channel, options=options),
        )
    except FarmError:
        if args.variant or args.package or args.cuda or args.channel:
            raise  # what was asked for by name must be possible
        return None


def run_report(args: argparse.Namespace) -> int:
    """Machine, steps, what failed first, and where CMake's settings are not the plan's."""
    texts = read_report(args.zip)
    try:
        plan: dict[str, Any] = json.loads(texts["plan.json"])
        env = dict(plan["env"])
        version = f"{plan['package']} {plan['version']} for {plan['variant']}"
        windows = dict(plan[WINDOWS])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(
            f"{args.zip}: its plan.json is no plan", hint="give the zip that report.cmd wrote"
        ) from None
    show.say(version)
    for line in texts["farm-report.txt"].splitlines():
        if re.match(
            r"Microsoft Windows|cores:|build\.cmd|git version|installationPath|displayName",
            line.strip(),
        ):
            show.say(f"  {line.strip()}")
    log = texts["build.log"]
    for step in STEP.finditer(log):
        show.say(f"{step['time'].strip()}  {step['text'].strip()}")
    _print_failures(log.splitlines())
    found = {
        match["name"]: match["value"].strip() for match in CACHED.finditer(texts["CMakeCache.txt"])
    }
    if not found:
        show.say("CMake: not configured")
        return 0
    rows = list(settings_unlike(env, windows, found))
    show.table("CMake beside the plan" if rows else "", ("setting", "plan", "CMake"), rows)
    if not rows:
        show.say(f"CMake: configured, with all that the plan says ({len(found)} settings)")
    return 0


def _print_failures(log: list[str]) -> None:
    """Print the error lines of a build's log, the cause of the first and what to do."""
    errors = failures.errors(log)
    first = f", the first {MOST}:" if len(errors) > MOST else ""
    show.say(f"failures in the log: {len(errors)}{first}")
    for line in errors[:MOST]:
        show.say(f"  {line[:300]}")
    if not errors:
        return
    failure = failures.read(log, build=True, machine=True)
    if failure.cause is None:
        show.say("cause: not known; the first line above is what the tool itself says")
        return
    show.say(f"cause: {failure.cause}")
    show.say(f"what to do: {failure.advice}")


def read_report(path: Path) -> dict[str, str]:
    """The texts of a report by name; empty, where it has none of that name."""
    names = ("plan.json", "farm-report.txt", "build.log", "CMakeCache.txt")
    try:
        with zipfile.ZipFile(path) as archive:
            texts = dict.fromkeys(names, "")
            for name in sorted(set(names) & set(archive.namelist())):
                with archive.open(name) as member:
                    content = member.read(MAX_BYTES + 1)
                if len(content) > MAX_BYTES:
                    raise UsageError(f"{path}: {name} is larger than {MAX_BYTES >> 20} MiB")
                texts[name] = content.decode(errors="replace").replace("\r\n", "\n")
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UsageError(
            f"{path}: cannot be read: {error}", hint="give the zip that report.cmd wrote"
        ) from None
    return texts


def settings_unlike(
    env: dict[str, str], windows: dict[str, Any], found: dict[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Switches of PyTorch and its OpenMP library that are not what the plan says; absent settings
    are not compared.
    """
    wanted = {
        name: value
        for name, value in env.items()
        if name.startswith(("USE_", "BUILD_")) or name == "BLAS"
    }
    wanted["OpenMP_libomp_LIBRARY"] = str(windows.get("openmp", ""))
    for name, value in wanted.items():
        seen = found.get(name)
        switch = name.startswith(("USE_", "BUILD_"))
        same = seen == value or (switch and (str(seen).upper() in ON) == (value.upper() in ON))
        if seen is not None and not same:
            yield name, value, seen


def run_runners(args: argparse.Namespace) -> int:
    """0: every runner is online and as written; else 4."""
    from farm.run.backends import ask, differences

    project = find_project(args.project or Path.cwd())
    runners = load_runners(project)
    github = github_if_any(project)
    reported = ask(runners, lambda: _connect(load_github(project)))
    differing = {name: differences(runners[name], reported[name]) for name in runners}
    # Without a repository there are no settings that could be missing.
    if github and github.repository:
        unsafe = _unsafe(github)
    else:
        unsafe = []
    if args.json:
        documents = {
            name: {**vars(found), "differences": differing[name]}
            for name, found in reported.items()
        }
        show.json_document({"runners": documents, "settings_missing": unsafe})
    else:
        rows = []
        for name, found in reported.items():
            if found.online:
                if found.busy:
                    state = "busy"
                else:
                    state = "online"
            else:
                state = "offline"
            words = [*([found.why] if found.why else []), *differing[name]]
            rows.append((name, state, "; ".join(words) or "as written"))
        show.table("", ("runner", "state", "engine says"), rows)
        for line in unsafe:
            show.say(f"unsafe: {line}")
    fine = not (unsafe or any(differing.values())) and all(
        found.online for found in reported.values()
    )
    return 0 if fine else ExitCode.NO_RUNNER


def _connect(github: Github) -> "GithubApi":
    from farm.engines.github import connect

    return connect(github.api_url, github.repository, os.environ)


def _unsafe(github: Github) -> list[str]:
    """The settings at GitHub that are missing; where they cannot be read, that."""
    from farm.engines.github import missing_settings

    try:
        with contextlib.closing(_connect(github)) as api:
            return missing_settings(api)
    except FarmError as error:
        return [f"whether pull requests can reach the runners is not known: {error}"]


# --- farm clean ---

# A Docker engine serves many projects, so only this project's containers, images and volumes are
# removed: a container carries its run as a label and an image the project that made it, a build
# tree is named after the digest of its plan, a compiler cache after the project. The index and runs
# that have not ended are never touched.


@dataclass(frozen=True)
class Leftover:
    """Something of ended runs at an engine. `size` in bytes; 0: not known without reading it
    all.
    """

    engine: str
    kind: Literal["container", "image", "volume", "folder"]
    name: str
    size: int = 0

    def __str__(self) -> str:
        if self.kind == "folder":
            return f"Slurm: {self.name}"
        return (
            f"Docker{'' if self.engine == LOCAL else f' ({self.engine})'}: {self.kind} {self.name}"
        )


def run_clean(args: argparse.Namespace) -> int:
    workspace = workspace_of(args)
    before = datetime.now(UTC) - args.older_than
    with journal_of(args) as journal:
        paths = sorted(leftovers(workspace, journal, before, args))
        engines = [
            (
                client,
                in_docker(name, client, before, workspace, journal, caches=args.compiler_caches),
            )
            for name, client in engines_of(workspace)
        ]
        shared = in_slurm(before, workspace, journal, caches=args.compiler_caches)
    rows = [(str(path), size_of(path)) for path in paths]
    rows += [
        (str(each), each.size)
        for found in (*(found for _, found in engines), shared)
        for each in found
    ]
    if not args.json:
        for what, size in rows:
            show.say(f"{size / 1e6:10.1f} MB  {what}")
    asks = (
        rows
        and not (args.dry_run or args.yes or args.json)
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )
    answer = input(f"remove these {len(rows)}? [y/N] ") if asks else "yes"
    removes = not args.dry_run and answer.strip().lower() in ("y", "yes")
    if removes:
        for client, found in engines:
            remove_from_docker(client, found)
        if shared:
            _slurm(workspace).remove(each.name for each in shared)
        for path in paths:
            # Of a link the link itself, not what it leads to.
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if args.json:
        show.json_document(
            {"removed": removes, "found": [{"what": what, "bytes": size} for what, size in rows]}
        )
        return 0
    kept = {
        "unpublished wheels (--unpublished)": args.unpublished,
        "logs of failures (--logs)": args.logs,
        "compiler caches (--compiler-caches)": args.compiler_caches,
    }
    names = ", ".join(["the index", *(name for name, goes in kept.items() if not goes)])
    verb = "removed" if removes else "would be removed"
    show.say(f"{sum(size for _, size in rows) / 1e6:10.1f} MB  {verb}; kept: {names}")
    return 0


def leftovers(
    workspace: Workspace, journal: Journal | None, before: datetime, args: argparse.Namespace
) -> Iterator[Path]:
    """Folders of runs that ended before, and caches and build trees that nothing changed since."""
    artifacts = workspace.artifacts
    kept = {run.id for run in journal.open_runs()} if journal else set()
    for folder in (artifacts / "runs").glob("*"):
        if folder.name not in kept and modification_time(folder) <= before:
            yield from _of_run(folder, journal, unpublished=args.unpublished, logs=args.logs)
    # A run that is under way uses the caches.
    for entry in (
        (entry for cache in CACHES for entry in (artifacts / cache).glob("*")) if not kept else ()
    ):
        stays = _is_compiler_cache(entry) and not args.compiler_caches
        if (
            not stays
            and modification_time(entry) <= before
            and not _holds_index(entry, workspace.index_url)
        ):
            yield entry


def _is_compiler_cache(entry: Path) -> bool:
    """True for a compiler cache of the host engine, in its place or put away, and for the file that
    names it.
    """
    from farm.run.build import CACHE
    from farm.run.build import CACHES as COMPILER_CACHES

    return (
        entry.name.startswith(COMPILER_CACHES)
        or entry.name.removesuffix(".volume") == Path(CACHE).name
    )


def _of_run(
    folder: Path, journal: Journal | None, *, unpublished: bool, logs: bool
) -> Iterator[Path]:
    """The folder of an ended run, or the parts of it that can go."""
    failed = True
    published = False
    with contextlib.suppress(UsageError):  # a run that is not in the journal
        if journal is not None:
            run = journal.run(folder.name)
            steps = [event.data for event in journal.events(run.id) if event.kind == EventKind.STEP]
            failed = run.result != "success"
            published = any(
                step["name"] == "publish" and step["outcome"] == "done" for step in steps
            )
    kept = {
        path
        for path in folder.glob("*")
        if failed and not logs and path.suffix in LOGS and path.is_file()
    }
    if not (published or unpublished):
        wheels = [
            folder / name for name in ("repaired", "built") if any((folder / name).rglob("*.whl"))
        ]
        kept |= (
            {*wheels} if failed else {*wheels[:1]}
        )  # `farm retry` goes on from the one that was built
    yield from (path for path in folder.glob("*") if path not in kept) if kept else (folder,)


def _holds_index(entry: Path, index: str) -> bool:
    """An index that someone put there is not a leftover."""
    return "://" not in index and Path(index).resolve().is_relative_to(entry.resolve())


def modification_time(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files under a folder; links are not followed."""
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    return sum(
        file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink()
    )


def engines_of(workspace: Workspace) -> "Iterator[tuple[str, docker.DockerClient]]":
    """This machine's Docker engine and those of ci/runners.yaml, as far as they answer."""
    from farm.engines.docker import connect
    from farm.run.backends import docker_runners

    urls = {LOCAL: None, **{name: runner.url for name, runner in docker_runners(workspace).items()}}
    for name, url in urls.items():
        try:
            client = connect(url)
        except FarmError as error:
            if url is not None or name != LOCAL:
                show.note(f"runner {name} is left as it is: {error}")
            continue
        with contextlib.closing(client):
            yield name, client


def in_docker(
    name: str,
    client: "docker.DockerClient",
    before: datetime,
    workspace: Workspace,
    journal: Journal | None,
    *,
    caches: bool,
) -> list[Leftover]:
    """Leftovers of ended runs on one engine: containers, then images and volumes that nothing else
    uses.
    """
    from farm.engines.images import PROJECT_LABEL

    containers = client.containers.list(all=True, ignore_removed=True)
    ended = journal.ended() if journal else frozenset()
    # A controller that was killed leaves them. One that runs is someone's: it stays.
    old = [
        container
        for container in containers
        if container.labels.get("farm.run") in ended
        and container.status not in ("running", "paused", "restarting")
        and datetime.fromisoformat(container.attrs["Created"]) <= before
    ]
    found = [Leftover(name, "container", str(container.short_id)) for container in old]
    # An image is used by name before there is a container of it, so none is touched while a run is
    # open.
    if journal and journal.open_runs():
        return found
    others = [container for container in containers if container not in old]
    # Containers that have ended count too: Docker refuses to remove their image.
    used = {container.attrs["Image"] for container in others}
    # Not client.images.list: it asks for each image anew, and fails where someone has removed one
    # meanwhile.
    for image in client.api.images(name=IMAGES):
        ours = (image["Labels"] or {}).get(PROJECT_LABEL) == workspace.id
        if (
            ours
            and image["Id"] not in used
            and datetime.fromtimestamp(image["Created"], UTC) <= before
        ):
            tags = image["RepoTags"] or []
            found += [
                Leftover(name, "image", t, int(image["Size"]))
                for t in tags
                if t.startswith(f"{IMAGES}:")
            ]
    mounted = {
        mount.get("Name") for container in others for mount in container.attrs.get("Mounts", ())
    }
    wanted = volumes_of(workspace, journal, caches=caches)
    for volume in client.volumes.list():
        free = re.fullmatch(wanted, volume.name) and volume.name not in mounted
        if free and datetime.fromisoformat(volume.attrs["CreatedAt"]) <= before:
            found.append(Leftover(name, "volume", volume.name))
    return found


def in_slurm(
    before: datetime, workspace: Workspace, journal: Journal | None, *, caches: bool
) -> list[Leftover]:
    """Leftovers in the folder that a cluster shares: jobs of ended runs; the rest where no run is
    open.
    """
    if workspace.settings.slurm is None or journal is None:
        return []
    try:
        folders = _slurm(workspace).folders()
    except FarmError as error:
        show.note(f"the folder of the cluster is left as it is: {error}")
        return []
    ended = journal.handles()
    free = not journal.open_runs()
    volumes = volumes_of(workspace, journal, caches=caches)
    found = []
    for folder in folders:
        kind, _, name = folder.path.partition("/")
        if kind == "toolchains":
            own = folder.project == workspace.id
        else:
            own = re.fullmatch(volumes, name) is not None
        if (name in ended if kind == "jobs" else free and own) and folder.changed <= before:
            found.append(Leftover("slurm", "folder", folder.path, folder.size))
    return found


def _slurm(workspace: Workspace) -> "SlurmEngine":
    from farm.engines.slurm import SlurmEngine
    from farm.run.backends import open_backend

    engine = open_backend(workspace, "slurm").engine
    assert isinstance(engine, SlurmEngine)
    return engine


def volumes_of(workspace: Workspace, journal: Journal | None, *, caches: bool) -> str:
    """A pattern for the names of build trees, with `caches` for compiler caches as well."""
    from farm.run.build import CACHES as COMPILER_CACHES
    from farm.run.build import tree_volume

    if journal:
        names = [tree_volume(digest) for digest in journal.plan_digests()]
    else:
        names = []
    return "|".join([*names, *([f"{COMPILER_CACHES}{workspace.id}-.*"] if caches else [])])


def remove_from_docker(client: "docker.DockerClient", found: Sequence[Leftover]) -> None:
    """Remove leftovers of one engine; what someone else removed or uses by now is passed over."""
    from docker.errors import APIError

    for each in found:
        try:
            if each.kind == "container":
                client.containers.get(each.name).remove(v=True)
            elif each.kind == "volume":
                client.volumes.get(each.name).remove()
            else:
                client.images.remove(each.name)
        except APIError as error:
            if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
