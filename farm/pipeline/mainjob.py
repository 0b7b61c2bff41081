"""The steps of one run: build, repair, verify, publish, smoke. Each may be done again after a controller was killed."""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from farm.engines.base import FINAL, KILLED_FROM_OUTSIDE, Engine, Observation
from farm.errors import BuildFailedError, FarmError, InfrastructureError, SmokeFailedError
from farm.patience import patiently
from farm.pipeline import build, needs, packs, wheel_pieces, winjob
from farm.pipeline.backends import IMAGE, SCRIPTS, Backend, toolchain, write_context
from farm.pipeline.check import check_wheel, summary
from farm.pipeline.release import pip_line, pip_source, publish_wheel
from farm.pipeline.repair import repair_built
from farm.pipeline.report import Outcomes, Step
from farm.pipeline.smoke import SmokeOptions, smoke
from farm.pipeline.workspace import Workspace
from farm.plan import Plan
from farm.runs import Attempt, Journal, Run
from farm.runs.progress import KIND
from farm.settings import LOCAL
from farm.sources import gather
from farm.variant import Variant

Until = Literal["build", "verify", "publish", "smoke"]

PLACED = ("swarm", "github")
"""The engines with several runners, to which it is said which one the admission chose."""
COLLECT_TRIES = 4
COLLECT_PAUSE_S = 5.0

CANCEL = "cancel-requested"
"""The event of the journal by which anybody asks for the end of a run."""


class StillRunningError(InfrastructureError):
    """The engine failed while a build was under way; it may still be there for the next call."""


class CancelledError(FarmError):
    """Somebody asked for the end of the run (130, as for Ctrl-C)."""

    exit_code = 130


@dataclass(frozen=True)
class MainJob:
    """One run: the steps and what they share. `runner` and `excluded` are the admission's; None: the engine chooses.

    `carried`: the pieces of a wheel that was built from a bundle; nothing is built here then.
    """

    workspace: Workspace
    plan: Plan
    journal: Journal
    run: Run
    outcomes: Outcomes
    backend: Callable[[], Backend]
    runner: str | None = None
    excluded: tuple[str, ...] = ()
    carried: Path | None = None

    @property
    def folder(self) -> Path:
        return self.workspace.run_folder(self.run.id)

    def steps(self, until: Until) -> None:
        plan, watcher = self.plan, self.workspace.watcher
        self.folder.mkdir(parents=True, exist_ok=True)
        built = self.build()
        if until == "build":
            return
        with self.outcomes.timed("repair", watcher) as step:
            result = repair_built(plan, built, self.folder / "repaired")
            vendored = ", ".join(Path(item.path).name for item in result.vendored) or "nothing"
            step.result = f"added {vendored}; {result.tags[0] if result.tags else 'its tag is kept'}"
            self.outcomes.wheel = str(result.wheel)
        with self.outcomes.timed("verify", watcher) as step:
            report = check_wheel(result.wheel, plan, self.folder / "verify.json")
            step.result = summary(report)
        if until == "verify":
            return
        self.check_cancelled()
        with self.outcomes.timed("publish", watcher) as step:
            image = self.folder / IMAGE
            used = image.read_text(encoding="utf-8") if image.exists() else None
            shared = self.journal.happened(self.run.id, packs.KIND)
            mib = result.wheel.stat().st_size >> 20
            published = publish_wheel(
                self.workspace,
                plan,
                result.wheel,
                report,
                image=used,
                packs=shared.data["held"] if shared else (),
                run=self.run.id,
                progress=lambda done: watcher.progress(done >> 20, mib) if mib else None,
            )
            step.result = ("published" if published.changed else "already there") + f": {published.wheel_url}"
        requirement = f"{plan.package}=={plan.version}"
        source = pip_source(self.workspace, Variant.parse(plan.variant).group)
        self.outcomes.pip_line = pip_line(requirement, source)
        if until == "smoke":
            self.smoke(requirement, source)

    def check_cancelled(self) -> None:
        """Raises CancelledError where somebody asked for the end."""
        if self.journal.happened(self.run.id, CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")

    def build(self) -> Path:
        """The folder with what the build left: `wheel/` and `lib/`."""
        done = self.folder / "built"
        jobs = self.journal.jobs(self.run.id)
        job = next((j for j in jobs if j.kind == "build"), None) or self.journal.create_job(self.run.id, "build")
        if done.is_dir():
            with self.outcomes.timed("build", self.workspace.watcher) as step:
                step.result = "taken up: the wheel was collected before"
                self.outcomes.wheel = str(build.the_wheel(done / "wheel"))
            return done
        if self.carried is not None:
            self.take(self.carried, self.journal.create_attempt(job.id, "carried", LOCAL), done)
            return done
        last = job.attempts[-1] if job.attempts else None
        if last is not None and (last.state in FINAL or (last.handle and self.is_lost(last))):
            last = None
        if last is None or not last.handle:
            rendered = write_context(self.workspace, self.plan, self.folder, self.outcomes)
            backend = self.backend()
            image = toolchain(self.workspace, backend, self.plan, rendered, self.folder, self.outcomes)
        else:
            backend, image = self.backend(), ""
        engine = backend.engine
        with self.outcomes.timed("build", self.workspace.watcher) as step:
            if last and last.handle:
                step.result = "taken up; "
                attempt, handle = last, last.handle
            else:
                # One without a handle: the controller was killed while it submitted. The engine knows it by its labels.
                attempt = last or self.journal.create_attempt(job.id, engine.name, self.runner or LOCAL)
                handle = self.start(engine, image, attempt)
            self.finish_build(engine, attempt, handle, done)
            self.tell_built(step, done)
        return done

    def tell_built(self, step: Step, done: Path) -> None:
        wheel = build.the_wheel(done / "wheel")
        step.result += f"{wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB)"
        self.outcomes.wheel = str(wheel)

    def take(self, pieces: Path, attempt: Attempt, done: Path) -> None:
        """Join the pieces of a wheel that was built elsewhere, with the libraries out of the toolchain's image."""
        self.journal.set_state(attempt.id, "running")
        part = done.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            wheel = wheel_pieces.join(self.plan, pieces, part / "wheel")
            rendered = write_context(self.workspace, self.plan, self.folder, self.outcomes)
            backend = self.backend()
            image = toolchain(self.workspace, backend, self.plan, rendered, self.folder, self.outcomes)
            with self.outcomes.timed("build", self.workspace.watcher) as step:
                wheel_pieces.collect_libraries(self.plan, backend.engine, image, wheel, part / "lib", run=self.run.id)
                patiently(part.rename, done)
                step.result = "carried: "
                self.tell_built(step, done)
        except FarmError as error:
            self.journal.set_state(attempt.id, "done", "failure", why=str(error))
            raise
        self.journal.set_state(attempt.id, "done", "success")

    def is_lost(self, last: Attempt) -> bool:
        """Whether an attempt that the journal holds for alive is lost; it is noted and released then.

        Raises:
            StillRunningError: The engine does not answer now; the build may be under way.
            InfrastructureError: It is lost, and the admission chose its runner: it chooses the next one too.
        """
        try:
            engine = self.backend().engine
            seen = engine.observe(str(last.handle))
        except InfrastructureError as error:
            raise StillRunningError(str(error), hint=error.hint) from error
        lost = seen.state == "lost" or seen.why == KILLED_FROM_OUTSIDE
        if lost:
            self.journal.set_state(last.id, "lost", "infra", why=seen.why)
            engine.release(str(last.handle))
            if self.runner is not None:
                raise InfrastructureError(f"the build was lost: {seen.why}")
        return lost

    def start(self, engine: Engine, image: str, attempt: Attempt) -> str:
        sources = self.folder / "sources"
        needed = self.folder / "needs"
        shared = self.folder / "packs"
        environment: dict[str, str] = {}
        inputs = {"/farm/job": self.folder / "context" / "job"}
        if engine.name != "github":  # its runners have a farm of their own, which gathers them there
            if not self.plan.windows:  # build.cmd fetches its own
                cache, mirror = self.workspace.artifacts / "sources", self.workspace.settings.debian_mirror
                gather(self.plan, cache, sources, mirror=mirror, line=self.workspace.watcher.line)
                inputs["/farm/source"] = sources
            if self.plan.needs:
                needs.fetch(self.workspace, self.plan, needed)
                inputs[winjob.NEEDS if self.plan.windows else "/farm/needs"] = needed
            if packs.wanted(self.workspace, self.plan):
                packs.prepare(self.workspace, self.plan, engine, shared, self.say_of_cache)
                inputs[packs.INPUT] = shared
                environment = packs.ENVIRONMENT
        if engine.name == "host":  # an image has them
            inputs["/farm/scripts"] = self.workspace.project / SCRIPTS
        labels = {"farm.run": self.run.id, "farm.kind": "build", "farm.attempt": str(attempt.id)}
        if self.plan.windows:
            job = winjob.make_job(self.plan, inputs=inputs, capacity=engine.capacity(), labels=labels)
        else:
            job = build.make_job(
                self.plan,
                image=image,
                inputs=inputs,
                capacity=engine.capacity(),
                labels=labels,
                volumes=build.kept(self.plan) if engine.keeps_volumes else {},
                environment=environment,
                runner=self.runner if engine.name in PLACED else None,
                excluded=self.excluded if engine.name in PLACED else (),
            )
        self.journal.set_state(attempt.id, "starting")
        try:
            handle = engine.submit(job)
        except FarmError as error:  # also a host that runs another job
            self.journal.set_state(attempt.id, "lost", "infra", why=str(error))
            raise
        finally:
            for folder in (sources, needed, shared):
                shutil.rmtree(folder, ignore_errors=True)
        try:
            self.journal.set_handle(attempt.id, handle)
        except BaseException:  # nobody else knows the container
            engine.release(handle)
            raise
        return handle

    def finish_build(self, engine: Engine, attempt: Attempt, handle: str, done: Path) -> None:
        """Follow the container to its end, take the wheel, and remove the container whatever came."""
        log, part = self.folder / "build.log", done.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            seen = build.follow(
                engine,
                handle,
                log,
                self.workspace.watcher,
                lambda done, total: self.journal.event(self.run.id, KIND, None, attempt.id, done=done, total=total),
                lambda seen: self.note_state(attempt, seen),
            )
        except InfrastructureError as error:
            raise StillRunningError(
                str(error), hint="run the same command again: it goes on if the build is still there"
            ) from error
        except KeyboardInterrupt:
            engine.cancel(handle)
            self.journal.set_state(attempt.id, "cancelled", why="interrupted")
            engine.release(handle)
            raise
        try:
            if self.journal.happened(self.run.id, CANCEL):
                self.journal.set_state(
                    attempt.id, "cancelled", why=f"cancelled; it was seen to have ended: {seen.state}"
                )
                raise CancelledError(f"run {self.run.id} was cancelled")
            if seen.state == "cancelled":  # at the engine, by a person: the farm's own time limit comes before GitHub's
                self.journal.set_state(attempt.id, "cancelled", why=seen.why)
                self.journal.event(self.run.id, CANCEL)
                raise CancelledError(f"run {self.run.id}: the build was {seen.why}", hint="`farm retry` begins it anew")
            (winjob if self.plan.windows else build).judge(seen, log)
            _collect(engine, handle, part)
            self.share(engine, attempt, part)
            build.the_wheel(part / "wheel")
            patiently(part.rename, done)
        except CancelledError:
            raise
        except BuildFailedError as error:
            self.journal.set_state(attempt.id, "done", "failure", why=str(error))
            if packs.wanted(self.workspace, self.plan) and not part.exists():  # what it compiled is good all the same
                with contextlib.suppress(InfrastructureError):  # not every engine keeps what a failed build left
                    engine.collect(handle, part, build.MAX_OUTPUT)
                    self.share(engine, attempt, part)
                shutil.rmtree(part, ignore_errors=True)
            raise
        except FarmError as error:
            self.journal.set_state(attempt.id, "lost", "infra", why=str(error))
            raise
        else:
            self.journal.set_state(attempt.id, "done", "success")
        finally:
            engine.release(handle)
        engine.discard(build.kept(self.plan)[build.TREE])

    def share(self, engine: Engine, attempt: Attempt, output: Path) -> None:
        """What a build compiled, into the store for other machines; the journal notes what its cache had of theirs."""
        if not packs.wanted(self.workspace, self.plan):
            return
        told = packs.take_back(self.workspace, self.plan, engine, output, self.say_of_cache)
        if told is not None:
            self.journal.event(self.run.id, packs.KIND, None, attempt.id, **vars(told))

    def say_of_cache(self, text: str) -> None:
        self.workspace.watcher.line(f"compiler cache: {text}")
        self.journal.event(self.run.id, packs.SAID, text=text)

    def note_state(self, attempt: Attempt, seen: Observation) -> None:
        """How an attempt stands that has not ended: `farm status` tells it. The end is judged first, then noted."""
        if seen.state not in FINAL:
            self.journal.set_state(attempt.id, seen.state, why=seen.why)

    def smoke(self, requirement: str, source: tuple[str, ...]) -> None:
        job = self.journal.create_job(self.run.id, "smoke")
        attempt = self.journal.create_attempt(job.id, "host", LOCAL)
        self.journal.set_state(attempt.id, "running")
        try:
            options = SmokeOptions(wheel=Path(self.outcomes.wheel) if self.outcomes.wheel else None)
            failed = smoke(self.workspace, self.plan, self.folder, self.outcomes, requirement, source, options)
        except FarmError as error:
            self.journal.set_state(attempt.id, "done", "failure", why=str(error))
            raise
        except BaseException:
            self.journal.set_state(attempt.id, "cancelled", why="interrupted")
            raise
        self.journal.set_state(attempt.id, "done", "failure" if failed else "success", why="; ".join(failed) or None)
        if failed:
            raise SmokeFailedError("\n".join(failed), hint=f"reports: {self.folder}/smoke*.json")


def _collect(engine: Engine, handle: str, part: Path) -> None:
    """Takes the output; a store that is away for a moment does not cost the build."""
    for left in reversed(range(COLLECT_TRIES)):
        try:
            engine.collect(handle, part, build.MAX_OUTPUT)
            return
        except InfrastructureError:
            shutil.rmtree(part, ignore_errors=True)
            if not left:
                raise
            time.sleep(COLLECT_PAUSE_S)
