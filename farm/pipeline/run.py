"""The main job: from a plan to a smoke-tested wheel in the index, every step in the journal.

A run whose controller was killed is found again by its plan: the container that still builds, or the wheel that
was collected, is taken up; the short steps after it are done again, since each is idempotent.
"""

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Never

from farm import catalog
from farm.engines import images
from farm.engines.base import Engine
from farm.engines.docker import DockerEngine, connect
from farm.errors import BuildFailedError, FarmError, NoRunnerError, SmokeFailedError
from farm.pipeline import build
from farm.pipeline.check import check_wheel, summary
from farm.pipeline.release import pip_line, pip_source, publish_wheel
from farm.pipeline.report import Outcomes, Watcher
from farm.pipeline.setting import Setting, open_journal
from farm.pipeline.smoke import smoke
from farm.plan import Plan
from farm.render import render
from farm.runs import Attempt, Journal, Result, Run
from farm.settings import load_runners
from farm.variant import Variant
from farm.wheel.repair import repair

RUNNER = "local"
INTERRUPTED = 130
INFRASTRUCTURE = 9


def submit(
    setting: Setting, plan: Plan, *, selectors: Mapping[str, Any], with_publish: bool = True, with_smoke: bool = True
) -> Outcomes:
    """Do everything for one plan; the journal keeps what happened whatever happens.

    Raises:
        FarmError: A step failed; the class says which, the text says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the container was removed.
    """
    outcomes = Outcomes()
    with open_journal(setting.project, setting.settings) as journal:
        run = _take_up(journal, plan) or journal.create_run(plan.digest, selectors, json.loads(plan.to_json()))
        outcomes.run = run.id
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            _steps(setting, plan, journal, run, outcomes, with_publish=with_publish, with_smoke=with_smoke)
        except FarmError as error:
            result: Result = "infra" if error.exit_code in (NoRunnerError.exit_code, INFRASTRUCTURE) else "failure"
            journal.event(run.id, "error", text=str(error)[:8000], hint=error.hint)
            journal.finish_run(run.id, result, error.exit_code)
            raise
        except KeyboardInterrupt:
            journal.finish_run(run.id, "infra", INTERRUPTED)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            for step in outcomes.steps:
                journal.event(
                    run.id, "step", name=step.name, seconds=round(step.seconds, 3), outcome=step.outcome,
                    result=step.result,
                )  # fmt: skip
        journal.finish_run(run.id, "success", 0)
    return outcomes


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _take_up(journal: Journal, plan: Plan) -> Run | None:
    """The run of a killed controller with the same plan, now ours."""
    run = journal.unfinished(plan.digest)
    return run if run is not None and journal.claim(run.id) else None


def _steps(
    setting: Setting,
    plan: Plan,
    journal: Journal,
    run: Run,
    outcomes: Outcomes,
    *,
    with_publish: bool,
    with_smoke: bool,
) -> None:
    folder = setting.run_folder(run.id)
    watcher = setting.watcher
    folder.mkdir(parents=True, exist_ok=True)
    built = _build(setting, plan, journal, run, outcomes)
    with outcomes.timed("repair", watcher) as step:
        fixed = folder / "repaired"
        shutil.rmtree(fixed, ignore_errors=True)
        fixed.mkdir()
        result = repair(
            build.the_wheel(built / "wheel"),
            fixed,
            lib_dirs=[built / "lib"],
            vendor_into=plan.vendor_into,
            exclude=plan.exclude,
            version=plan.version,
        )
        vendored = ", ".join(Path(item.path).name for item in result.vendored) or "nothing"
        step.result = f"added {vendored}; {result.tags[0]}"
        outcomes.wheel = str(result.wheel)
    with outcomes.timed("verify", watcher) as step:
        report = check_wheel(result.wheel, plan, folder / "verify.json")
        step.result = summary(report)
    if not with_publish:
        return
    with outcomes.timed("publish", watcher) as step:
        published = publish_wheel(setting, plan, result.wheel, report)
        step.result = ("published" if published.changed else "already there") + f": {published.wheel_url}"
    requirement = f"{plan.package}=={plan.version}"
    source = pip_source(setting, Variant.parse(plan.variant).group)
    outcomes.pip_line = pip_line(requirement, source)
    if with_smoke:
        _smoke(setting, plan, journal, run, outcomes, requirement, source)


def _build(setting: Setting, plan: Plan, journal: Journal, run: Run, outcomes: Outcomes) -> Path:
    """The folder with what the build left: `wheel/` and `lib/`."""
    watcher, folder = setting.watcher, setting.run_folder(run.id)
    done = folder / "built"
    job = next((job for job in journal.jobs(run.id) if job.kind == "build"), None) or journal.create_job(
        run.id, "build"
    )
    if done.is_dir():
        with outcomes.timed("build", watcher) as step:
            step.result = "taken up: the wheel was collected before"
        return done
    engine, image = _engine_and_image(setting, plan, run, outcomes)
    with outcomes.timed("build", watcher) as step:
        last = job.attempts[-1] if job.attempts else None
        if last and last.handle and engine.observe(last.handle).state in ("running", "done"):
            step.result = "taken up; "
            attempt, handle = last, last.handle
        else:
            attempt = journal.create_attempt(job.id, engine.name, RUNNER)
            handle = _start(setting, plan, journal, run, engine, image, attempt)
        try:
            _finish_build(journal, engine, attempt, handle, done, folder / "build.log", watcher)
        except KeyboardInterrupt:
            engine.cancel(handle)
            journal.set_state(attempt.id, "cancelled", why="interrupted")
            engine.release(handle)
            raise
        wheel = build.the_wheel(done / "wheel")
        step.result += f"{wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB)"
    return done


def _engine_and_image(setting: Setting, plan: Plan, run: Run, outcomes: Outcomes) -> tuple[DockerEngine, str]:
    watcher, folder, settings = setting.watcher, setting.run_folder(run.id), setting.settings
    rendered = render(setting.project, plan)
    with outcomes.timed("render", watcher) as step:
        files = rendered.write(folder / "context")
        step.result = f"{len(files)} files in {(folder / 'context').relative_to(setting.project)}"
    runner = load_runners(setting.project)[RUNNER]
    client = connect(runner.url)
    memory = int(runner.memory_gb * 1e9) if runner.memory_gb else None
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
            log=folder / "image.log",
            line=watcher.line,
        )
        step.result = f"{image.tag}, {'reused' if image.reused else 'built'}"
    return DockerEngine(client, cpus=runner.cpus, memory=memory), image.tag


def _start(
    setting: Setting, plan: Plan, journal: Journal, run: Run, engine: Engine, image: str, attempt: Attempt
) -> str:
    folder = setting.run_folder(run.id)
    with build.source_tree(plan, setting.artifacts / "sources", setting.watcher) as source:
        job = build.make_job(
            plan,
            image=image,
            context=folder / "context" / "job",
            source=source,
            capacity=engine.capacity(),
            labels={"farm.run": run.id, "farm.kind": "build"},
        )
        journal.set_state(attempt.id, "starting")
        handle = engine.submit(job)
    journal.set_handle(attempt.id, handle)
    journal.set_state(attempt.id, "running")
    return handle


def _finish_build(
    journal: Journal, engine: Engine, attempt: Attempt, handle: str, done: Path, log: Path, watcher: Watcher
) -> None:
    """Follow the container to its end and take the wheel; the container is gone afterwards, whatever came."""
    seen = build.follow(engine, handle, log, watcher)
    try:
        build.judge(seen, log)
        part = done.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        engine.collect(handle, part, build.MAX_OUTPUT)
        part.rename(done)
        journal.set_state(attempt.id, "done", "success")
    except BuildFailedError as error:
        journal.set_state(attempt.id, "done", "failure", why=str(error))
        raise
    except FarmError as error:
        journal.set_state(attempt.id, "lost", "infra", why=str(error))
        raise
    finally:
        engine.release(handle)


def _smoke(
    setting: Setting,
    plan: Plan,
    journal: Journal,
    run: Run,
    outcomes: Outcomes,
    requirement: str,
    source: tuple[str, ...],
) -> None:
    job = journal.create_job(run.id, "smoke")
    attempt = journal.create_attempt(job.id, "host", RUNNER)
    journal.set_state(attempt.id, "running")
    try:
        failed = smoke(setting, plan, setting.run_folder(run.id), outcomes, requirement, source)
    except FarmError as error:
        journal.set_state(attempt.id, "done", "failure", why=str(error))
        raise
    except BaseException:
        journal.set_state(attempt.id, "cancelled", why="interrupted")
        raise
    journal.set_state(attempt.id, "done", "failure" if failed else "success")
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {setting.run_folder(run.id)}/smoke*.json")
