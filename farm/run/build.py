"""The build job and its toolchain: source and script into a container, wheel out.

The toolchain is this machine's own, proved; or an image, made, pushed, and unpacked where Docker is
not.
"""

import contextlib
import hashlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

import docker
import docker.errors

from farm import catalog
from farm.base import failures, processes, resources
from farm.base.errors import BuildFailedError, InfrastructureError, NoRunnerError, UsageError
from farm.base.interrupts import deferred_interrupts
from farm.base.locks import retry_while_open
from farm.base.temporary import temporary_folder
from farm.base.text import log_line
from farm.engines import images
from farm.engines.base import FINAL, Capacity, Cause, Engine, Job, Observation
from farm.engines.docker import ERRORS, DockerEngine
from farm.engines.slurm import SlurmEngine
from farm.engines.transfer import storing
from farm.plan.file import Plan
from farm.plan.render import Rendered, render
from farm.platforms.base import platform
from farm.platforms.facts import DEFAULT
from farm.run.backends import Backend, open_backend, this_machine
from farm.run.inputs import SCRIPTS, fetch
from farm.run.journal import EVERY_S
from farm.run.workspace import Outcomes, Watcher, Workspace

MAX_LOG = 256 << 20
LOG_TAIL = 1 << 20  # bytes at the end of a log that are searched for the error
ADVICE = {
    Cause.OUT_OF_MEMORY: "raise memory_per_job_gb in the recipe so that fewer compilers run at once, or "
    "memory_gb of the runner in ci/runners.yaml",
    Cause.TIME_LIMIT: "raise timeout_minutes in the recipe; the next build continues with what is compiled",
}
"""Hints for an end that the engine itself explains."""
NOTED = ("+ ", "farm: step", "farm: waits")
"""How build.sh marks what it does: the shell's trace of its commands, its own steps, and the run
that it waits for.
"""
NINJA = re.compile(r"\[([0-9]{1,6})/([0-9]{1,6})\]")

TREE = "/farm/src"
CACHE = "/farm/ccache"
TREES = "farm-tree-"
CACHES = "farm-ccache-"  # how the names of their volumes begin


def tree_volume(digest: str) -> str:
    """The volume with the build tree of the plan that has this digest."""
    return f"{TREES}{digest[:24]}"


def cache_volume(plan: Plan, project: str) -> str | None:
    """The compiler cache of one package of one project, which no other may find; None where the
    recipe has none.
    """
    if "ccache" in plan.apt:
        return f"{CACHES}{project}-{plan.package}"
    return None


def kept(plan: Plan, project: str) -> dict[str, str]:
    """Folders that outlive an attempt, and their volumes: the plan's own build tree, the package's
    compiler cache.
    """
    cache = cache_volume(plan, project)
    return {TREE: tree_volume(plan.digest), **({CACHE: cache} if cache else {})}


def make_job(
    plan: Plan,
    *,
    image: str,
    inputs: dict[str, Path],
    capacity: Capacity,
    labels: dict[str, str],
    volumes: dict[str, str] | None = None,
    holder: str = "",
) -> Job:
    """The job of a plan. `inputs`: the rendered job as /farm/job, the gathered sources as
    /farm/source.

    `holder`: the run and its log, for another build that waits for the same tree. The others are as
    in Job.
    """
    system = platform(plan.platform)
    output = system.host_output(plan)
    own = {name: os.environ[name] for name in system.variables if name in os.environ}
    # So many compilers at a time that each has its memory, and not more than there are cores.
    by_memory = int(capacity.memory / (plan.memory_per_job_gb * 1e9))
    return Job(
        name=f"{plan.package}-{plan.variant}",
        image=image,
        command=system.host_command(output),
        inputs=inputs,
        output=output,
        environment={
            "FARM_JOBS": str(max(1, min(int(capacity.cpus), by_memory))),
            **({"FARM_RUN": holder} if holder else {}),
            **own,
        },
        limits=capacity,
        timeout_s=plan.timeout_minutes * 60,
        labels=labels,
        volumes=volumes or {},
        platform=plan.platform,
        machine=plan.machine,
    )


@contextlib.contextmanager
def completed(engine: Engine, job: Job) -> Iterator[tuple[str, bytes, Observation]]:
    """A short job that has run to its end: its handle, its log and how it ended; the engine forgets
    it afterwards.
    """
    with contextlib.ExitStack() as stack:
        with deferred_interrupts():
            handle = engine.submit(job)
            stack.callback(engine.release, handle)
        # `logs` ends with the job: nothing else waits for it.
        log = b"".join(engine.logs(handle))
        yield handle, log, engine.observe(handle)


def follow(
    engine: Engine,
    handle: str,
    log: Path,
    watcher: Watcher,
    note: Callable[[int, int], object] = lambda *_: None,
    saw: Callable[[Observation], object] = lambda _: None,
) -> Observation:
    """Write the job's output to `log` and show it until its end, which is returned; `note` gets
    steps, `saw` states.
    """
    saw(observed := engine.observe(handle))
    while observed.state in ("queued", "starting"):
        time.sleep(engine.poll_s)
        saw(observed := engine.observe(handle))
    noted = float("-inf")
    with storing("the build's log", log):
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open(
            "wb", buffering=0
        )  # a full disk fails the write itself, not the close at the end
    # Closed where this machine's disk fails as well: else the engine's own stream would stay open.
    with stream, contextlib.closing(_lines(engine, handle, stream)) as lines:
        for text in lines:
            shown = log_line(text)
            match = NINJA.match(shown)
            if match:
                watcher.progress(int(match[1]), int(match[2]))
                if time.monotonic() - noted >= EVERY_S or match[1] == match[2]:
                    noted = time.monotonic()
                    note(int(match[1]), int(match[2]))
            (watcher.note if shown.startswith(NOTED) else watcher.line)(shown)
    while (observed := engine.observe(handle)).state not in FINAL:
        time.sleep(0.05)  # the output ends a moment before the engine notes the end
    return observed


def _lines(engine: Engine, handle: str, stream: FileIO) -> Generator[str, None, None]:
    """The lines of a build's output, of which so much as there may be goes to `stream`, too."""
    rest = b""
    left = MAX_LOG
    for piece in engine.logs(handle):
        with storing("the build's log", Path(str(stream.name))):
            stream.write(piece[: max(0, left)])
            if 0 < left < len(piece):
                stream.write(b"\n[the log is longer than the farm keeps]\n")
        left -= len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        # A line without end would fill the memory: of it the end is shown.
        rest = rest[-65536:]
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def judge(observed: Observation, log: Path, platform_name: str = DEFAULT) -> None:
    """Raise what the end of a build means; a success returns.

    NoRunnerError: the machine lacks something, in the script's own words; BuildFailedError: the
    build's own fault, with its first error and the cause where known; InfrastructureError: the
    engine lost it, or it was killed from outside.
    """
    if observed.state != "done":
        raise InfrastructureError(
            f"the build was {observed.state}: {observed.text}", hint="run the same command again"
        )
    if observed.cause is Cause.KILLED:
        raise InfrastructureError(
            f"the build was {observed.text}",
            hint="run the same command again: it continues with what is compiled",
        )
    # A script reserves some exit codes for what its machine lacks; with a cause the code is the
    # engine's.
    failure = platform(platform_name).failures.get(observed.exit_code or 0)
    if failure is not None and observed.cause is None:
        text = "\n".join("    " + line for line in log_end(log)[-5:])
        script = platform(platform_name).entry
        raise failure(
            f"{script} ended with {observed.exit_code}; its last lines:\n{text}",
            hint=f"the whole log: {log}",
        )
    if observed.exit_code != 0:
        why = f" ({observed.text})" if observed.text else ""
        found = failures.read(
            log_end(log), build=True, machine=platform(platform_name).self_contained
        )
        if observed.cause in ADVICE:
            found = replace(found, advice=ADVICE[observed.cause])
        raise BuildFailedError(
            f"the build failed with exit code {observed.exit_code}{why}:\n{found.text}",
            hint=found.hint(log),
        )


def log_end(log: Path) -> list[str]:
    """The last lines of a log, at most a megabyte, made safe to print."""
    size = log.stat().st_size
    with log.open("rb") as stream:
        stream.seek(max(0, size - LOG_TAIL))
        return [log_line(line) for line in stream.read().decode("utf-8", "replace").splitlines()]


def the_wheel(folder: Path) -> Path:
    """The one wheel that a build left in `folder`."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildFailedError(f"the build left {len(wheels)} wheels in {folder}, expected one")
    return wheels[0]


TAIL_BYTES = 2000
MAX_TREE = 8 << 30
PACK_TIMEOUT_S = 3600
PROVE_S = 300
PUSH_ATTEMPTS = 10
IMAGE = "image.id"  # the file of a run that says in which image it was built


def run_to_end(engine: Engine, job: Job, dest: Path, limit: int) -> None:
    """Run a job to its end and put its output, of at most `limit` bytes, into `dest`;
    BuildFailedError: it failed.
    """
    with completed(engine, job) as (handle, log, observed):
        if observed.state != "done" or observed.exit_code:
            tail = log[-TAIL_BYTES:].decode("utf-8", "replace")
            raise BuildFailedError(
                f"{job.name} failed ({observed.text or observed.exit_code}):\n{tail}"
            )
        engine.collect(handle, dest, limit)


def pack_toolchain(
    workspace: Workspace, engine: Engine, image: str, *, whole: bool = False
) -> Path:
    """The file system of an image as a compressed tar, packed once; CUDA's big libraries `whole`,
    else stand-ins.
    """
    script = resources.path(workspace.project, SCRIPTS) / "pack_toolchain.py"
    cache = workspace.artifacts / "toolchains"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    packed = cache / f"{image.rpartition(':')[2]}-{version}{'-whole' if whole else ''}.tar.xz"
    if packed.exists():
        return packed
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{packed.stem}.job"
    folder.mkdir(exist_ok=True)
    (folder / script.name).write_bytes(script.read_bytes())
    job = Job(
        name=f"pack {image}",
        image=image,
        command=(
            "python3",
            f"/farm/job/{script.name}",
            "/farm/out",
            *(["--whole"] if whole else []),
        ),
        inputs={"/farm/job": folder},
        output="/farm/out",
        environment={},
        limits=engine.capacity(),
        timeout_s=PACK_TIMEOUT_S,
        labels={"farm.pack": packed.stem},
    )
    part = cache / f"{packed.stem}.part"
    # It gets its name when it is whole: a bundle that was interrupted packs it again.
    run_to_end(engine, job, part, MAX_TREE)
    retry_while_open((part / "tree.tar.xz").replace, packed)
    return packed


LOOK = """
import importlib.util, sys
version = "%d.%d" % sys.version_info[:2] + "t" * ("t" in sys.abiflags)
print(version, *(m for m in ("build", "setuptools", "wheel") if not importlib.util.find_spec(m)))
"""


def prove_host(workspace: Workspace, plan: Plan, script: Path, outcomes: Outcomes) -> None:
    """NoRunnerError where this machine lacks the plan's Python or compilers; a self-contained
    script looks itself.
    """
    system, _ = this_machine()
    if plan.platform != system.facts.name:
        raise UsageError(f"the plan is for {plan.platform}, this machine runs {system.facts.name}")
    with outcomes.timed("toolchain", workspace.watcher) as step, temporary_folder() as home:
        environment = processes.environment(str(home), tree=False)  # what the build gets
        if system.self_contained:
            step.result = f"{system.entry} looks for it"
        else:
            step.result = _prove(plan, script, environment)


def _prove(plan: Plan, script: Path, environment: dict[str, str]) -> str:
    """Returns what was found."""
    wanted = plan.parsed_variant.python_version
    # The `python3` of the build's own PATH, not this interpreter: it is the one that builds.
    version, *absent = _output(["python3", "-c", LOOK], environment).split()
    if version != wanted:
        raise NoRunnerError(
            f"the plan is for Python {wanted}; python3 here is {version}",
            hint=f"put a python3 that is {wanted} first into PATH, with python3-dev, build, "
            "setuptools and wheel",
        )
    if absent:
        names = " ".join(absent)
        raise NoRunnerError(
            f"python3 here lacks {', '.join(absent)}",
            # A distribution's own Python refuses `pip install` (PEP 668); a virtual environment
            # never does.
            hint=f"python3 -m venv ~/farm-python && ~/farm-python/bin/pip install {names}, then "
            "put "
            "~/farm-python/bin first into PATH; or Debian's packages: apt-get install "
            + " ".join(f"python3-{name}" for name in absent),
        )
    command = ["python3", str(script), "--cxx", plan.env["CXX"]]
    if plan.toolkit:
        # The lowest is the first that a newer nvcc no longer knows. The variant's: `device_code:
        # false` promises none.
        command += ["--sm", str(min(plan.parsed_variant.sms))]
    _output(command, environment)
    return f"Python {wanted}, {plan.env['CXX']}" + (
        f", CUDA {plan.toolkit.cuda}" if plan.toolkit else ""
    )


def _output(command: list[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROVE_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRunnerError(f"{command[0]} cannot be run here: {error}") from error
    if done.returncode:
        raise NoRunnerError(
            "this machine's toolchain does not work: "
            f"{(done.stderr or done.stdout).strip()[-500:]}",
            hint="install the compilers that `farm plan` names, or build in a container: --on "
            "docker",
        )
    return done.stdout


def emulates(backend: Backend, plan: Plan) -> bool:
    """True if the engine emulates the plan's machine; NoRunnerError: it cannot, or makes images for
    a swarm.
    """
    if backend.builder is None or not images.emulates(backend.builder, plan.machine):
        return False
    if backend.swarm is not None:
        raise NoRunnerError(
            f"the plan is for {plan.machine}, and so must be the Docker engine that makes images "
            "for a swarm",
            hint="set DOCKER_HOST to such an engine, or submit with --on docker",
        )
    return True


def write_context(workspace: Workspace, plan: Plan, folder: Path, outcomes: Outcomes) -> Rendered:
    """Renders a plan into `folder/context`. It needs no engine: what can be read of a plan is there
    without one.
    """
    context = folder / "context"
    with outcomes.timed("render", workspace.watcher) as step:
        rendered = render(workspace.project, plan)
        files = rendered.write(context)
        inside = context.is_relative_to(
            workspace.project
        )  # `artifacts:` may name a folder anywhere
        step.result = (
            f"{len(files)} files in {context.relative_to(workspace.project) if inside else context}"
        )
    return rendered


def toolchain(
    workspace: Workspace,
    backend: Backend,
    plan: Plan,
    rendered: Rendered,
    folder: Path,
    outcomes: Outcomes,
) -> str:
    """Makes the toolchain of a rendered plan: the image's name that the runners know, or "".

    InfrastructureError: it cannot be made, pushed or unpacked. NoRunnerError: another machine's, or
    no compiler.
    """
    traits = backend.engine.traits
    if traits.gathers:  # `farm build` on the runner makes it
        return ""
    if traits.unpacks:
        return unpacked_toolchain(workspace, backend.engine, plan, rendered, folder, outcomes)
    if traits.on_this_machine:
        prove_host(
            workspace,
            plan,
            resources.path(workspace.project, SCRIPTS) / "prove_toolchain.py",
            outcomes,
        )
    if backend.builder is None:
        return ""
    return _image(workspace, backend, plan, rendered, folder, outcomes)


def _image(
    workspace: Workspace,
    backend: Backend,
    plan: Plan,
    rendered: Rendered,
    folder: Path,
    outcomes: Outcomes,
) -> str:
    watcher = workspace.watcher
    settings = workspace.settings
    client = backend.builder
    assert client is not None
    emulated = emulates(backend, plan)
    assert plan.base  # submit refuses the others
    if emulated:
        watcher.note(
            f"{plan.machine} is emulated by qemu on this engine: image, build and test take far "
            "longer"
        )
    with outcomes.timed("image", watcher) as step, backend.lock:
        base = images.base_image(
            client,
            plan.base,
            catalog.debian_releases()[plan.base],
            emulated=plan.machine if emulated else None,
            pull_timeout_s=settings.pull_timeout_s,
            mirror=settings.debian_mirror,
            line=watcher.line,
            note=watcher.note,
        )
        wanted = images.Toolchain(
            repository="farm/toolchain",
            context=rendered.image,
            digest=rendered.image_digest,
            base=base,
            labels={
                "farm.base": plan.base,
                "farm.channel": plan.channel,
                images.PROJECT_LABEL: workspace.id,
            },
            archives=settings.archives_url,
            emulated=emulated,
            wheels=lambda: _toolkit_wheels(workspace, plan),
        )
        image = images.ensure_image(
            client, wanted, log=folder / "image.log", line=watcher.line, note=watcher.note
        )
        # For the provenance: the journal does not hold it.
        (folder / IMAGE).write_text(image.id, encoding="utf-8")
        step.result = (
            f"{image.tag}, "
            f"{'reused' if image.reused else 'built'}{', emulated' if emulated else ''}"
        )
        if backend.swarm is None or backend.swarm.registry is None:
            return image.tag
        pushed = push(client, image.tag, backend.swarm.push or backend.swarm.registry)
        step.result += f", {'pushed' if pushed else 'in the registry'}"
        # Nodes may know the registry under another address than the machine that pushes.
        return f"{backend.swarm.registry}/{image.tag}"


def unpacked_toolchain(
    workspace: Workspace,
    engine: Engine,
    plan: Plan,
    rendered: Rendered,
    folder: Path,
    outcomes: Outcomes,
) -> str:
    """Makes sure that an engine has the file system of a plan's image; only the first time needs a
    Docker engine.
    """
    assert isinstance(engine, SlurmEngine)
    image = f"toolchain-{rendered.image_digest[:24]}"
    if there := engine.image(image):
        with outcomes.timed("image", workspace.watcher) as step:
            (folder / IMAGE).write_text(
                there["id"], encoding="utf-8"
            )  # for the provenance, as in `_image`
            step.result = f"{image}, in {engine.folder}"
        return image
    with contextlib.closing(open_backend(workspace, "docker")) as maker:
        assert isinstance(maker.engine, DockerEngine)
        made = _image(workspace, maker, plan, rendered, folder, outcomes)
        with outcomes.timed("unpack", workspace.watcher) as step:
            packed = pack_toolchain(workspace, maker.engine, made, whole=True)
            image_id = (folder / IMAGE).read_text(encoding="utf-8")
            engine.add_toolchain(
                image, packed, image_id, maker.engine.image_environment(made), workspace.id
            )
            step.result = f"{image} into {engine.folder}"
    return image


def _toolkit_wheels(workspace: Workspace, plan: Plan) -> dict[str, Path]:
    """The wheels that the toolkit takes something from, by file name; fetched when they are not
    here.
    """
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    wheels = plan.toolkit.wheels if plan.toolkit else []
    return {
        str(each.file): fetch(each, cache, mirror=None, line=workspace.watcher.line)
        for each in wheels
    }


def push(client: docker.DockerClient, tag: str, registry: str) -> bool:
    """Pushes an image; False where the registry has it already; InfrastructureError: the registry
    refuses it.
    """
    repository, _, name = tag.partition(":")
    there = f"{registry}/{repository}"
    problem = None
    try:
        for _ in range(PUSH_ATTEMPTS):
            # In the loop: runs that push the same image give it the same name, and the first that
            # is done removes it.
            client.images.get(tag).tag(there, name)
            events = list(client.images.push(there, name, stream=True, decode=True))
            with contextlib.suppress(
                docker.errors.APIError
            ):  # it is gone, or in use: a name that stays does no harm
                client.images.remove(f"{there}:{name}")
            problem = next((event["error"] for event in events if "error" in event), None)
            if problem is None:
                return any(event.get("status") == "Pushed" for event in events)
            if "does not exist" not in problem:
                break
    except ERRORS as error:
        problem = str(error)
    raise InfrastructureError(
        f"{there}:{name} cannot be pushed: {problem}", hint="is the registry up?"
    )
