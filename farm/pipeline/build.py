"""The build job: source and script into a container, wheel out; goes on where a killed controller stopped."""

import os
import re
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from farm.engines.base import FINAL, Capacity, Engine, Job, Observation
from farm.errors import BuildFailedError, InfrastructureError
from farm.pipeline.report import Watcher
from farm.plan import Plan, source_folder
from farm.text import plain

MAX_OUTPUT = 16 << 30
TAIL = 30
NINJA = re.compile(r"\[([0-9]{1,6})/([0-9]{1,6})\]")


def make_job(
    plan: Plan,
    *,
    image: str,
    context: Path,
    source: Path,
    capacity: Capacity,
    labels: dict[str, str],
    runner: str | None = None,
    excluded: tuple[str, ...] = (),
) -> Job:
    """The job of a plan: `context` is the rendered job folder, `source` the source tree; `runner` as in Job."""
    by_memory = int(capacity.memory / (plan.memory_per_job_gb * 1e9))
    return Job(
        name=f"{plan.package}-{plan.variant}",
        image=image,
        command=("bash", "/farm/job/build.sh"),
        inputs={"/farm/job": context, "/farm/src": source},
        output="/farm/out",
        environment={"FARM_JOBS": str(max(1, min(int(capacity.cpus), by_memory)))},
        limits=capacity,
        timeout_s=plan.timeout_minutes * 60,
        labels=labels,
        platform=plan.platform,
        runner=runner,
        excluded=excluded,
    )


@contextmanager
def source_tree(plan: Plan, cache: Path, watcher: Watcher) -> Iterator[Path]:
    """The source tree of a plan; a git source is fetched once into `cache`, at the pinned commit.

    Raises:
        UsageError: A folder beside the recipe is not what the plan was made from.
        InfrastructureError: The repository cannot be reached.
        BuildFailedError: The tag is not the commit that the plan names.
    """
    if plan.source.kind == "path":
        yield source_folder(plan)
        return
    commit, tag, url = plan.source.commit, plan.source.tag, plan.source.url
    assert commit is not None
    assert tag is not None
    assert url is not None
    packed = cache / f"{plan.package}-{commit}.tar"
    if not packed.exists():
        _fetch(url, tag, commit, packed, watcher)
    with tempfile.TemporaryDirectory(prefix="farm-source-") as folder:
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="tar")
        yield Path(folder)


def _fetch(url: str, tag: str, commit: str, packed: Path, watcher: Watcher) -> None:
    packed.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clone-", dir=packed.parent) as folder:
        tree = Path(folder, "tree")
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, "--recurse-submodules"]
        command += ["--shallow-submodules", "--", url, str(tree)]
        watcher.line("+ " + " ".join(command))
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}  # a farm has nobody to type a password
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, env=environment
            )
        except FileNotFoundError as error:
            raise InfrastructureError(f"{url} cannot be fetched: there is no git here", hint="install git") from error
        if result.returncode:
            tail = "\n".join(plain(line) for line in result.stderr.splitlines()[-5:])
            raise InfrastructureError(f"git clone of {url} at {tag} failed:\n{tail}", hint="is the host reachable?")
        head = subprocess.run(
            ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if head != commit:
            raise BuildFailedError(
                f"{url}: tag {tag} is commit {head}, the catalogue says {commit}",
                hint="if upstream moved the tag on purpose, change the commit in farm/catalog/torch.yaml",
            )
        part = Path(folder, "packed.tar")
        with tarfile.open(part, "w") as archive:
            archive.add(tree, arcname=".")
        part.replace(packed)


def follow(engine: Engine, handle: str, log: Path, watcher: Watcher) -> Observation:
    """Write the job's output to `log` and show it, until the job has ended; returns how it ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        for text in _lines(engine, handle, stream.write):
            shown = plain(text)
            match = NINJA.match(shown)
            if match:
                watcher.progress(int(match[1]), int(match[2]))
            watcher.line(shown)
    while (seen := engine.observe(handle)).state not in FINAL:
        time.sleep(0.05)  # the output ends a moment before the engine notes the end
    return seen


def _lines(engine: Engine, handle: str, keep: Callable[[bytes], object]) -> Iterator[str]:
    rest = b""
    for piece in engine.logs(handle):
        keep(piece)
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[-65536:]
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def judge(seen: Observation, log: Path) -> None:
    """Raise what the end of a build means; a success returns.

    Raises:
        BuildFailedError: The build's own fault, with the last lines of the failing step and where the log is.
        InfrastructureError: The engine lost it.
    """
    if seen.state != "done":
        raise InfrastructureError(f"the build was {seen.state}: {seen.why}", hint="run the same command again")
    if seen.exit_code != 0:
        why = f" ({seen.why})" if seen.why else ""
        lines = "\n".join("    " + line for line in failing_lines(log))
        raise BuildFailedError(
            f"the build failed with exit code {seen.exit_code}{why}; its last lines:\n{lines}",
            hint=f"the whole log: {log}",
        )


def failing_lines(log: Path) -> list[str]:
    """The lines that matter: from ninja's first FAILED on, else the last ones."""
    size = log.stat().st_size
    with log.open("rb") as stream:
        stream.seek(max(0, size - (1 << 20)))
        lines = [plain(line) for line in stream.read().decode("utf-8", "replace").splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith("FAILED:")), None)
    return lines[start : start + TAIL] if start is not None else lines[-TAIL:]


def the_wheel(folder: Path) -> Path:
    """The one wheel that a build left in `folder`."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildFailedError(f"the build left {len(wheels)} wheels in {folder}, expected one")
    return wheels[0]
