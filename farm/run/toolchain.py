"""The toolchain of a build: this machine's own, proved; or an image, made, pushed, or unpacked
where Docker is not.
"""

import contextlib
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import docker
import docker.errors
from pydantic import Field

from farm import catalog
from farm.base import processes, resources
from farm.base.errors import BuildFailedError, InfrastructureError, NoRunnerError, UsageError
from farm.base.locks import retry_while_open
from farm.base.temporary import temporary_folder
from farm.base.yamlfile import Model, load
from farm.engines import base_images, emulators, images
from farm.engines.base import Engine, Job
from farm.engines.docker import ERRORS, ISOLATION, DockerEngine, host_version
from farm.engines.slurm import SlurmEngine
from farm.plan.file import Plan
from farm.plan.platforms.base import platform
from farm.plan.recipe import recipe
from farm.plan.render import Rendered, render
from farm.run.backends import Backend, open_backend, this_machine
from farm.run.build_job import completed
from farm.run.download import fetch
from farm.run.job_inputs import SCRIPTS
from farm.run.workspace import Outcomes, Workspace

TAIL_BYTES = 2000
MAX_TREE = 8 << 30
MAX_UNPACKED = 1 << 40
PACK_TIMEOUT_S = 3600
PROVE_S = 300
PUSH_ATTEMPTS = 10
IMAGE = "image.id"  # the file of a run that says in which image it was built


def run_to_end(
    engine: Engine,
    job: Job,
    dest: Path,
    limit: int,
    line: Callable[[str], object] = lambda _text: None,
) -> None:
    """Run a job to its end and put its output, of at most `limit` bytes, into `dest`;
    BuildFailedError: it failed. `line` gets each line of its log.
    """
    with completed(engine, job, line) as (handle, log, observed):
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
    if packed.exists() and _facts_of(packed).exists():
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
    run_to_end(engine, job, part, MAX_TREE, workspace.watcher.line)
    retry_while_open((part / "packed.json").replace, _facts_of(packed))
    retry_while_open((part / "tree.tar.xz").replace, packed)
    return packed


def _facts_of(packed: Path) -> Path:
    """The file beside a packed toolchain that says how much it is."""
    return packed.with_name(packed.name.removesuffix(".tar.xz") + ".json")


class Packed(Model):
    """What `pack_toolchain.py` says of a file system that it packed: `bytes` when unpacked."""

    files: int = Field(ge=0)
    bytes: int = Field(ge=0, le=MAX_UNPACKED)
    stubs: list[str] = []


def unpacked_size(packed: Path) -> int:
    """Return the bytes of a packed toolchain when it is unpacked."""
    return load(_facts_of(packed), Packed).bytes


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
    python_version = plan.parsed_variant.python_version
    # The `python3` of the build's own PATH, not this interpreter: it is the one that builds.
    version, *absent = _output(["python3", "-c", LOOK], environment).split()
    if version != python_version:
        raise NoRunnerError(
            f"the plan is for Python {python_version}; python3 here is {version}",
            hint=f"put a python3 that is {python_version} first into PATH, with python3-dev, "
            "build, "
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
    return f"Python {python_version}, {plan.env['CXX']}" + (
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
    if backend.builder is None or not emulators.emulates(backend.builder, plan.machine):
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
    images.check_system(client, plan.platform)
    if plan.base is None:
        return _pulled_image(workspace, backend, client, plan, rendered, folder, outcomes)
    emulated = emulates(backend, plan)
    if emulated:
        watcher.note(
            f"{plan.machine} is emulated by qemu on this engine: image, build and test take far "
            "longer"
        )
    with outcomes.timed("image", watcher) as step, backend.lock:
        base = base_images.base_image(
            client,
            plan.base,
            catalog.debian_releases()[plan.base],
            emulated=plan.machine if emulated else None,
            pull_timeout_s=settings.pull_timeout_s,
            mirror=settings.debian_mirror,
            line=watcher.line,
            note=watcher.note,
        )
        toolchain_image = images.Toolchain(
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
            client, toolchain_image, log=folder / "image.log", line=watcher.line, note=watcher.note
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


def _pulled_image(
    workspace: Workspace,
    backend: Backend,
    client: docker.DockerClient,
    plan: Plan,
    rendered: Rendered,
    folder: Path,
    outcomes: Outcomes,
) -> str:
    """Make the image of a platform whose base images come from its maker, as for Windows."""
    watcher = workspace.watcher
    bases = platform(plan.platform).container_bases(plan, host_version(client))
    with outcomes.timed("image", watcher) as step, backend.lock:
        base = base_images.pulled_base(
            client,
            bases,
            pull_timeout_s=workspace.settings.pull_timeout_s,
            line=watcher.line,
            note=watcher.note,
        )
        memory = backend.engine.capacity().memory
        toolchain = images.Toolchain(
            repository="farm/toolchain",
            context=rendered.image,
            digest=rendered.image_digest,
            base=base,
            labels={"farm.channel": plan.channel, images.PROJECT_LABEL: workspace.id},
            archives=workspace.settings.archives_url,
            system=plan.platform,
            options={"isolation": ISOLATION, "container_limits": {"memory": memory}},
        )
        image = images.ensure_image(
            client, toolchain, log=folder / "image.log", line=watcher.line, note=watcher.note
        )
        (folder / IMAGE).write_text(image.id, encoding="utf-8")  # for the provenance
        step.result = f"{image.tag}, {'reused' if image.reused else 'built'}"
        return image.tag


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
    engine.check_folder(recipe(plan.recipe).disk_gb * 1e9)  # before minutes of packing
    if unpacked := engine.image(image):
        with outcomes.timed("image", workspace.watcher) as step:
            (folder / IMAGE).write_text(
                unpacked["id"], encoding="utf-8"
            )  # for the provenance, as in `_image`
            step.result = f"{image}, in {engine.folder}"
        return image
    with contextlib.closing(open_backend(workspace, "docker")) as maker:
        assert isinstance(maker.engine, DockerEngine)
        image_tag = _image(workspace, maker, plan, rendered, folder, outcomes)
        with outcomes.timed("unpack", workspace.watcher) as step:
            packed = pack_toolchain(workspace, maker.engine, image_tag, whole=True)
            image_id = (folder / IMAGE).read_text(encoding="utf-8")
            engine.add_toolchain(
                image, packed, image_id, maker.engine.image_environment(image_tag), workspace.id
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
        str(wheel.file): fetch(wheel, cache, mirror=None, line=workspace.watcher.line)
        for wheel in wheels
    }


def push(client: docker.DockerClient, tag: str, registry: str) -> bool:
    """Pushes an image; False where the registry has it already; InfrastructureError: the registry
    refuses it.
    """
    repository, _, name = tag.partition(":")
    remote_name = f"{registry}/{repository}"
    problem = None
    try:
        for _ in range(PUSH_ATTEMPTS):
            # In the loop: runs that push the same image give it the same name, and the first that
            # is done removes it.
            client.images.get(tag).tag(remote_name, name)
            events = list(client.images.push(remote_name, name, stream=True, decode=True))
            with contextlib.suppress(
                docker.errors.APIError
            ):  # it is gone, or in use: a name that stays does no harm
                client.images.remove(f"{remote_name}:{name}")
            problem = next((event["error"] for event in events if "error" in event), None)
            if problem is None:
                return any(event.get("status") == "Pushed" for event in events)
            if "does not exist" not in problem:
                break
    except ERRORS as error:
        problem = str(error)
    raise InfrastructureError(
        f"{remote_name}:{name} cannot be pushed: {problem}", hint="is the registry up?"
    )
