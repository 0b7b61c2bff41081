"""Where a build runs: an engine, and the toolchain on it."""

import subprocess
import sys
from pathlib import Path

from farm import catalog
from farm.engines import images
from farm.engines.docker import DockerEngine, connect
from farm.engines.host import HostEngine
from farm.errors import NoRunnerError, UsageError
from farm.pipeline.report import Outcomes
from farm.pipeline.setting import Setting
from farm.plan import Plan
from farm.render import Rendered
from farm.settings import Runner, load_runners
from farm.variant import Variant

RUNNER = "local"
PROVE_S = 300


def runner_of(setting: Setting) -> Runner:
    """The runner of this machine; see `load_runners` for what it raises."""
    return load_runners(setting.project)[RUNNER]


def docker_place(
    setting: Setting, plan: Plan, rendered: Rendered, log: Path, outcomes: Outcomes
) -> tuple[DockerEngine, str]:
    """The Docker engine of the local runner and the tag of the plan's toolchain image, which is made if need be.

    Raises:
        NoRunnerError: No engine answers, or it is for other machines.
        InfrastructureError: The image cannot be made.
    """
    settings, watcher = setting.settings, setting.watcher
    runner = runner_of(setting)
    if plan.base is None:
        raise NoRunnerError(
            f"{plan.variant} is built on a {plan.platform} host, and no runner of the farm is one",
            hint="`farm render` writes job/build.sh, which builds it on a Mac",
        )
    client = connect(runner.url)
    images.check_machine(client, plan.machine)
    with outcomes.timed("image", watcher) as step:
        base = images.base_image(
            client,
            plan.base,
            catalog.debian_releases()[plan.base],
            pull_timeout_s=settings.pull_timeout_s,
            mirror=settings.debian_mirror,
            line=watcher.line,
        )
        image = images.ensure_image(
            client,
            repository="farm/toolchain",
            context=rendered.image,
            context_digest=rendered.image_digest,
            base=base,
            labels={"farm.base": plan.base, "farm.channel": plan.channel},
            log=log,
            line=watcher.line,
        )
        step.result = f"{image.tag}, {'reused' if image.reused else 'built'}"
    memory = int(runner.memory_gb * 1e9) if runner.memory_gb else None
    return DockerEngine(client, cpus=runner.cpus, memory=memory), image.tag


def host_engine(setting: Setting) -> HostEngine:
    """The engine of this very machine."""
    runner = runner_of(setting)
    memory = int(runner.memory_gb * 1e9) if runner.memory_gb else None
    return HostEngine(setting.artifacts / "host", cpus=runner.cpus, memory=memory)


def prove_host(setting: Setting, plan: Plan, script: Path, outcomes: Outcomes) -> None:
    """This machine has the plan's Python and compilers, and they work.

    Raises:
        NoRunnerError: Something is missing; the message says what.
        UsageError: The plan is for another platform.
    """
    if plan.platform != {"linux": "linux", "darwin": "macos"}.get(sys.platform):
        raise UsageError(f"the plan is for {plan.platform}, this machine runs {sys.platform}")
    wanted = Variant.parse(plan.variant).python_version
    with outcomes.timed("toolchain", setting.watcher) as step:
        told = _run(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        if told.strip() != wanted:
            raise NoRunnerError(
                f"the plan is for Python {wanted}; python3 here is {told.strip()}",
                hint=f"put a python3 that is {wanted} first into PATH, with python3-dev, build, setuptools and wheel",
            )
        command = ["python3", str(script), "--cxx", plan.env["CXX"]]
        if plan.toolkit:
            command += ["--sm", str(min(plan.verify.sass))]
        _run(command)
        step.result = f"Python {wanted}, {plan.env['CXX']}" + (f", CUDA {plan.toolkit.cuda}" if plan.toolkit else "")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROVE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRunnerError(f"{command[0]} cannot be run here: {error}") from error
    if done.returncode:
        raise NoRunnerError(
            f"this machine's toolchain does not work: {(done.stderr or done.stdout).strip()[-500:]}",
            hint="install the compilers that `farm plan` names, or build in a container: --on docker",
        )
    return done.stdout
