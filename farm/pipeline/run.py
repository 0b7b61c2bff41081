"""The main job: from a plan to a smoke-tested wheel in the index, every step in the journal.

A run whose controller was killed is found again by its plan: the container that still builds, or the wheel that
was collected, is taken up; the short steps after it are done again, since each is idempotent.
"""

import json
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Never

from farm import catalog
from farm.engines import images
from farm.engines.base import Engine
from farm.engines.docker import DockerEngine, connect
from farm.errors import (
    BuildFailedError,
    FarmError,
    InfrastructureError,
    NoRunnerError,
    SmokeFailedError,
    UsageError,
)
from farm.pipeline import build
from farm.pipeline.check import check_wheel, summary
from farm.pipeline.release import pip_line, pip_source, publish_wheel
from farm.pipeline.report import Outcomes
from farm.pipeline.setting import Setting, open_journal
from farm.pipeline.smoke import smoke
from farm.plan import Plan
from farm.render import render
from farm.runs import Attempt, Journal, Result, Run
from farm.settings import load_runners
from farm.variant import Variant
from farm.wheel.repair import repair

Until = Literal["build", "verify", "publish", "smoke"]

RUNNER = "local"
INTERRUPTED = 130
KEPT_TEXT = 8000


class _StillRunningError(InfrastructureError):
    """The engine failed while a build was under way; it may still be there for the next call."""


def submit(setting: Setting, plan: Plan, *, selectors: Mapping[str, Any], until: Until = "smoke") -> Outcomes:
    """Do everything for one plan up to a step; the journal keeps what happened whatever happens.

    Raises:
        FarmError: A step failed; the class says which, the text says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the container was removed.
    """
    _check_supported(plan)
    with open_journal(setting.project, setting.settings) as journal:
        run = _take_up(journal, plan) or journal.create_run(plan.digest, selectors, json.loads(plan.to_json()))
        job = _MainJob(setting, plan, journal, run, Outcomes(run=run.id))
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            job.steps(until)
        except FarmError as error:
            journal.event(run.id, "error", text=str(error)[:KEPT_TEXT], hint=error.hint)
            if not isinstance(error, _StillRunningError):
                infra = isinstance(error, InfrastructureError | NoRunnerError)
                result: Result = "infra" if infra else "failure"
                journal.finish_run(run.id, result, error.exit_code)
            raise
        except KeyboardInterrupt:
            journal.finish_run(run.id, "infra", INTERRUPTED)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            for step in job.outcomes.steps:
                data: dict[str, Any] = {
                    "name": step.name,
                    "seconds": round(step.seconds, 3),
                    "outcome": step.outcome,
                    "result": step.result,
                }
                journal.event(run.id, "step", None, None, **data)
        journal.finish_run(run.id, "success", 0)
        return job.outcomes


def _check_supported(plan: Plan) -> None:
    if plan.needs:
        raise UsageError(
            f"{plan.package} is built against {', '.join(plan.needs)}: build torch for this variant first",
            hint="not supported yet by submit; `farm render` writes the job, which takes its wheel from /farm/needs",
        )
    if plan.base is None:
        raise NoRunnerError(
            f"{plan.variant} is built on a {plan.platform} host, and no runner of the farm is one",
            hint="`farm render` writes job/build.sh, which builds it on a Mac",
        )


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _take_up(journal: Journal, plan: Plan) -> Run | None:
    """The run of a dead controller with the same plan, now ours."""
    run = journal.unfinished(plan.digest)
    return run if run is not None and journal.claim(run.id) else None


@dataclass(frozen=True)
class _MainJob:
    """One run: the steps and what they share."""

    setting: Setting
    plan: Plan
    journal: Journal
    run: Run
    outcomes: Outcomes

    @property
    def folder(self) -> Path:
        return self.setting.run_folder(self.run.id)

    def steps(self, until: Until) -> None:
        plan, watcher = self.plan, self.setting.watcher
        self.folder.mkdir(parents=True, exist_ok=True)
        built = self.build()
        if until == "build":
            return
        with self.outcomes.timed("repair", watcher) as step:
            fixed = self.folder / "repaired"
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
            self.outcomes.wheel = str(result.wheel)
        with self.outcomes.timed("verify", watcher) as step:
            report = check_wheel(result.wheel, plan, self.folder / "verify.json")
            step.result = summary(report)
        if until == "verify":
            return
        with self.outcomes.timed("publish", watcher) as step:
            mib = result.wheel.stat().st_size >> 20
            published = publish_wheel(
                self.setting,
                plan,
                result.wheel,
                report,
                progress=lambda done: watcher.progress(done >> 20, mib) if mib else None,
            )
            step.result = ("published" if published.changed else "already there") + f": {published.wheel_url}"
        requirement = f"{plan.package}=={plan.version}"
        source = pip_source(self.setting, Variant.parse(plan.variant).group)
        self.outcomes.pip_line = pip_line(requirement, source)
        if until == "smoke":
            self.smoke(requirement, source)

    def build(self) -> Path:
        """The folder with what the build left: `wheel/` and `lib/`."""
        done = self.folder / "built"
        jobs = self.journal.jobs(self.run.id)
        job = next((j for j in jobs if j.kind == "build"), None) or self.journal.create_job(self.run.id, "build")
        if done.is_dir():
            with self.outcomes.timed("build", self.setting.watcher) as step:
                step.result = "taken up: the wheel was collected before"
                self.outcomes.wheel = str(build.the_wheel(done / "wheel"))
            return done
        engine, image = self.engine_and_image()
        with self.outcomes.timed("build", self.setting.watcher) as step:
            last = job.attempts[-1] if job.attempts else None
            if last and last.handle and last.state not in ("done", "cancelled"):
                seen = engine.observe(last.handle)
                if seen.state == "lost":
                    self.journal.set_state(last.id, "lost", "infra", why=seen.why)
                    last = None
            else:
                last = None
            if last and last.handle:
                step.result = "taken up; "
                attempt, handle = last, last.handle
            else:
                attempt = self.journal.create_attempt(job.id, engine.name, RUNNER)
                handle = self.start(engine, image, attempt)
            self.finish_build(engine, attempt, handle, done)
            wheel = build.the_wheel(done / "wheel")
            step.result += f"{wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB)"
            self.outcomes.wheel = str(wheel)
        return done

    def engine_and_image(self) -> tuple[Engine, str]:
        settings, watcher = self.setting.settings, self.setting.watcher
        runners = load_runners(self.setting.project)
        if RUNNER not in runners:
            raise UsageError(f"ci/runners.yaml has no runner {RUNNER!r}", hint=f"it has {', '.join(runners)}")
        runner = runners[RUNNER]
        rendered = render(self.setting.project, self.plan)
        with self.outcomes.timed("render", watcher) as step:
            files = rendered.write(self.folder / "context")
            step.result = f"{len(files)} files in {(self.folder / 'context').relative_to(self.setting.project)}"
        client = connect(runner.url)
        images.check_machine(client, self.plan.machine)
        assert self.plan.base  # submit refuses the others
        with self.outcomes.timed("image", watcher) as step:
            base = images.base_image(
                client,
                self.plan.base,
                catalog.debian_releases()[self.plan.base],
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
                labels={"farm.base": self.plan.base, "farm.channel": self.plan.channel},
                log=self.folder / "image.log",
                line=watcher.line,
            )
            step.result = f"{image.tag}, {'reused' if image.reused else 'built'}"
        memory = int(runner.memory_gb * 1e9) if runner.memory_gb else None
        return DockerEngine(client, cpus=runner.cpus, memory=memory), image.tag

    def start(self, engine: Engine, image: str, attempt: Attempt) -> str:
        with build.source_tree(self.plan, self.setting.artifacts / "sources", self.setting.watcher) as source:
            job = build.make_job(
                self.plan,
                image=image,
                context=self.folder / "context" / "job",
                source=source,
                capacity=engine.capacity(),
                labels={"farm.run": self.run.id, "farm.kind": "build"},
            )
            self.journal.set_state(attempt.id, "starting")
            handle = engine.submit(job)
        try:
            self.journal.set_handle(attempt.id, handle)
            self.journal.set_state(attempt.id, "running")
        except BaseException:  # nobody else knows the container
            engine.release(handle)
            raise
        return handle

    def finish_build(self, engine: Engine, attempt: Attempt, handle: str, done: Path) -> None:
        """Follow the container to its end, take the wheel, and remove the container whatever came."""
        log = self.folder / "build.log"
        try:
            seen = build.follow(engine, handle, log, self.setting.watcher)
        except InfrastructureError as error:
            raise _StillRunningError(
                str(error), hint="run the same command again: it goes on if the build is still there"
            ) from error
        except KeyboardInterrupt:
            engine.cancel(handle)
            self.journal.set_state(attempt.id, "cancelled", why="interrupted")
            engine.release(handle)
            raise
        try:
            build.judge(seen, log)
            part = done.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            engine.collect(handle, part, build.MAX_OUTPUT)
            build.the_wheel(part / "wheel")
            part.rename(done)
        except BuildFailedError as error:
            self.journal.set_state(attempt.id, "done", "failure", why=str(error))
            raise
        except FarmError as error:
            self.journal.set_state(attempt.id, "lost", "infra", why=str(error))
            raise
        else:
            self.journal.set_state(attempt.id, "done", "success")
        finally:
            engine.release(handle)

    def smoke(self, requirement: str, source: tuple[str, ...]) -> None:
        job = self.journal.create_job(self.run.id, "smoke")
        attempt = self.journal.create_attempt(job.id, "host", RUNNER)
        self.journal.set_state(attempt.id, "running")
        try:
            failed = smoke(self.setting, self.plan, self.folder, self.outcomes, requirement, source)
        except FarmError as error:
            self.journal.set_state(attempt.id, "done", "failure", why=str(error))
            raise
        except BaseException:
            self.journal.set_state(attempt.id, "cancelled", why="interrupted")
            raise
        self.journal.set_state(attempt.id, "done", "failure" if failed else "success", why="; ".join(failed) or None)
        if failed:
            raise SmokeFailedError("\n".join(failed), hint=f"reports: {self.folder}/smoke*.json")
