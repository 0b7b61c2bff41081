"""The build of a run: start it, follow it, collect its output; or go on with what there is of
it.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farm.base.errors import (
    BuildFailedError,
    FarmError,
    InfrastructureError,
    NoRunnerError,
    UsageError,
)
from farm.base.heartbeat import megabytes
from farm.base.interrupts import deferred_interrupts
from farm.base.locks import retry_while_open
from farm.base.project import LOCAL
from farm.engines.base import FINAL, Cause, Engine, Observation, State
from farm.engines.transfer import LocalDiskError
from farm.plan.platforms.base import platform
from farm.run import offline_bundle
from farm.run.build_inputs import refuse_notes
from farm.run.build_job import (
    cache_volume,
    container_cache,
    cpu_seconds,
    follow,
    judge,
    kept,
    make_job,
    the_wheel,
    tree_volume,
)
from farm.run.cancellable import CancelledError
from farm.run.job_inputs import JobInputs, gathered
from farm.run.journal_records import Attempt, EventKind, Job, Result
from farm.run.resume import BuildState, Stage
from farm.run.run_context import RunContext
from farm.run.sources import fetch_all
from farm.run.workspace import Step

COLLECT_TRIES = 4
COLLECT_PAUSE_S = 5.0


class StillRunningError(InfrastructureError):
    """The build could not be followed or collected now; it may still be there for the next try."""


class EngineUnreachableError(StillRunningError):
    """The engine of a build does not answer."""


class SiteLimitError(InfrastructureError):
    """The site's time limit ended a build that had made progress: another attempt goes on."""


MAX_CONTINUED = 24  # a build of a day in a partition of an hour
TRY_AGAIN = "run the same command again: it continues if the build is still there"


@dataclass(frozen=True)
class BuildStep:
    """The first step of a run."""

    context: RunContext

    def carry_out(self) -> Path:
        """Build the wheel, or go on with a build that was begun.

        Returns:
            The folder with what the build left: `wheel/` and `lib/`.

        Raises:
            BuildFailedError: The build's own fault.
            CancelledError: Someone asked for the end.
            StillRunningError: It may still be there, and the next call goes on with it.
            InfrastructureError: It was lost, or its machine could not prepare it.
        """
        run = self.context
        state = run.build_state()
        self._release_ended(state)
        if state.stage is Stage.COLLECTED:
            self._use_collected(state)
        elif run.pieces is not None:
            self._join_pieces(run.pieces)
        elif state.stage is Stage.FAILED:
            self._raise_failure(state)
        else:
            self._resume_or_build(state)
        return run.build_dir

    def _resume_or_build(self, state: BuildState) -> None:
        """Go on with the attempt that an engine has, else begin one.

        A build that a limit of the site ended is begun again, from what was compiled, as long as
        each attempt makes progress.
        """
        for tries_left in reversed(range(MAX_CONTINUED)):
            try:
                if state.stage is Stage.RUNNING and self._still_there(state):
                    self._resume(state)
                else:
                    self._build(self.context.build_state())
                return
            except SiteLimitError as error:
                if not tries_left:
                    raise
                self.context.workspace.watcher.note(f"{error}; it goes on in another job")
                state = self.context.build_state()

    @property
    def _job(self) -> Job:
        """The journal's job of the build, which is made where there is none."""
        journal = self.context.journal
        jobs = journal.jobs(self.context.run.id)
        builds = [job for job in jobs if job.kind == "build"]
        return builds[0] if builds else journal.create_job(self.context.run.id, "build")

    # --- go on with what there is

    def _use_collected(self, state: BuildState) -> None:
        run = self.context
        with run.outcomes.timed("build", run.workspace.watcher) as step:
            # Its controller may have ended between taking the output and writing that down.
            for attempt in state.attempts:
                run.journal.set_state(attempt.id, "done", "success")
            step.result = "resumed: the wheel was collected before"
            if state.adopted_from:
                step.result = f"not built again: the wheel of run {state.adopted_from}"
            run.outcomes.wheel = str(the_wheel(run.build_dir / "wheel"))

    def _raise_failure(self, state: BuildState) -> None:
        """Repeat the failure of a build whose controller ended before it ended the run."""
        assert state.newest is not None
        raise BuildFailedError(
            state.newest.why or "the build failed",
            hint=f"the whole log: {self.context.folder}/build.log",
        )

    def _resume(self, state: BuildState) -> None:
        run = self.context
        attempt = state.newest
        assert attempt is not None
        assert attempt.handle is not None
        engine = run.backend(attempt.runner).engine
        with (
            run.outcomes.timed("build", run.workspace.watcher) as step,
            self._cancel_on_interrupt(engine, attempt),
        ):
            step.result = "resumed"
            self._follow_and_collect(engine, attempt, attempt.handle)
            step.result += "; "
            self._note_wheel(step)

    def _release_ended(self, state: BuildState) -> None:
        """Have the engines forget attempts whose end an earlier controller wrote down.

        It may have died before it released them.
        """
        for attempt in state.attempts:
            if not attempt.handle:
                continue
            if state.stage is not Stage.COLLECTED and attempt.state not in FINAL:
                continue
            try:
                self.context.backend(attempt.runner).engine.release(attempt.handle)
            except FarmError as error:
                # An engine that is away now should not stop the steps that need none.
                self.context.workspace.watcher.note(
                    f"{attempt.handle[:12]} may be left at its engine: {error}"
                )

    def _still_there(self, state: BuildState) -> bool:
        """Ask the engine whether it still has the newest attempt.

        One that is lost is noted and released; with a runner that the queue chose, that is an
        error, since the queue decides where it is built again.
        """
        run = self.context
        attempt = state.newest
        assert attempt is not None
        assert attempt.handle is not None
        try:
            engine = run.backend(attempt.runner).engine
            observed = engine.observe(attempt.handle)
        except (InfrastructureError, NoRunnerError) as error:
            raise EngineUnreachableError(str(error), hint=TRY_AGAIN) from error
        # Killed from outside it is lost as well, though its engine still knows it.
        if observed.state != "lost" and observed.cause is not Cause.KILLED:
            return True
        # Written before it is released: the next controller then never follows a job that is gone.
        run.journal.set_state(attempt.id, "lost", "infra", why=observed.text)
        engine.release(attempt.handle)
        if run.runner is not None:
            raise InfrastructureError(f"the build was lost: {observed.text}")
        return False

    # --- build

    def _build(self, state: BuildState) -> None:
        run = self.context
        self._fetch()
        # One without a handle: the controller was killed while it submitted. The engine knows it by
        # its labels.
        attempt = state.open_attempt
        job = self._job
        with self._preparation_counts(job, attempt):
            image = run.toolchain(run.folder)
            engine = run.backend().engine
        with run.outcomes.timed("build", run.workspace.watcher) as step:
            if attempt is None:
                attempt = run.journal.create_attempt(job.id, engine.name, run.runner or LOCAL)
            with self._cancel_on_interrupt(engine, attempt):
                handle = self._start(engine, image, attempt)
                self._follow_and_collect(engine, attempt, handle)
                self._note_wheel(step)

    @contextlib.contextmanager
    def _preparation_counts(self, job: Job, attempt: Attempt | None) -> Iterator[None]:
        """Record a failure of the block as a loss of the runner that prepares the build itself.

        Such as a Docker machine of which the disk is full, or that cannot pull an image. Without
        this, the queue would give the run to the same machine again, which looks free.
        """
        run = self.context
        try:
            yield
        except (InfrastructureError, NoRunnerError) as error:
            if run.runner is not None and run.backend().engine.traits.makes_images:
                name = run.backend().engine.name
                attempt = attempt or run.journal.create_attempt(job.id, name, run.runner)
                if attempt.handle is None:
                    self._lose_unprepared(attempt, error)
            raise

    def _lose_unprepared(self, attempt: Attempt, error: FarmError) -> None:
        journal = self.context.journal
        journal.event(self.context.run.id, EventKind.UNPREPARED, attempt.job_id, attempt.id)
        journal.set_state(attempt.id, "lost", "infra", why=str(error))

    def _fetch(self) -> None:
        """Fetch sources before the minutes that an image takes, so that a wrong name or hash is
        reported at once.
        """
        plan = self.context.plan
        workspace = self.context.preparing
        if plan.source.kind == "path" and not plan.parts and not plan.build_requires:
            return
        # Nothing is needed here where the runner gathers, or where the build itself fetches.
        if platform(plan.platform).self_contained or self.context.backend().engine.traits.gathers:
            return
        cache = workspace.artifacts / "sources"
        mirror = workspace.settings.debian_mirror
        with self.context.outcomes.timed("fetch", workspace.watcher) as step:
            line = workspace.watcher.line
            fetch = partial(fetch_all, plan, cache, mirror=mirror, line=line)
            files = self.context.cancellable(fetch)
            size = sum(file.stat().st_size for file in files)
            step.result = (
                f"{len(files)} file{'s' * (len(files) > 1)}, {megabytes(size)}; hashes match"
            )

    def _note_wheel(self, step: Step) -> None:
        wheel = the_wheel(self.context.build_dir / "wheel")
        step.result += f"{wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB)"
        self.context.outcomes.wheel = str(wheel)

    def _join_pieces(self, pieces: Path) -> None:
        """Join what was built elsewhere.

        An image is made only where the bundle had stand-ins for its libraries.
        """
        run = self.context
        attempt = run.journal.create_attempt(self._job.id, "bundle", LOCAL)
        run.journal.set_state(attempt.id, "running")
        part = run.build_dir.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with self._record_result(attempt):
            wheel = offline_bundle.join_pieces(run.plan, pieces, part)
            missing = offline_bundle.stand_ins(part / "lib")
            image = run.toolchain(run.folder) if missing else ""
            with run.outcomes.timed("build", run.workspace.watcher) as step:
                if missing:
                    run.workspace.watcher.note(
                        f"taken from the toolchain's image: {', '.join(missing)}"
                    )
                    engine = run.backend().engine
                    libraries = part / "lib"
                    offline_bundle.collect_libraries(
                        run.plan, engine, image, wheel, libraries, run=run.run.id
                    )
                # Under its final name only when it is whole: that name means "collected".
                retry_while_open(part.rename, run.build_dir)
                step.result = "from a bundle: "
                self._note_wheel(step)

    def _start(self, engine: Engine, image: str, attempt: Attempt) -> str:
        """Submit the job.

        Returns:
            Its handle, which the journal has then.
        """
        run = self.context
        plan = run.plan
        with self._preparation_counts(self._job, attempt):
            capacity = engine.capacity()
        with self._gathered(engine) as inputs:
            labels = {
                "farm.run": run.run.id,
                "farm.kind": "build",
                "farm.attempt": str(attempt.id),
            }
            keeps = engine.traits.keeps_volumes and not platform(plan.platform).self_contained
            cache = None
            if keeps:
                volumes = kept(plan, run.workspace.id)
                cache = cache_volume(plan, run.workspace.id)
            elif engine.traits.keeps_volumes and engine.traits.in_container:
                volumes = container_cache(plan, run.workspace.id)
                cache = next(iter(volumes.values()), None)
            else:
                volumes = {}
            job = make_job(
                plan,
                image=image,
                inputs=inputs.folders,
                capacity=capacity,
                labels=labels,
                volumes=volumes,
                holder=f"run {run.run.id}, log: {run.folder / 'build.log'}" if keeps else "",
            )
            # Before the submit: a later controller that goes on with the job cannot find out what
            # it was given.
            run.journal.event(
                run.run.id, EventKind.INPUTS, None, attempt.id, wheels=inputs.wheels, cache=cache
            )
            run.journal.set_state(attempt.id, "starting")
            try:
                run.check_cancelled()  # images and sources take minutes
                with deferred_interrupts():
                    handle = engine.submit(job)
                    try:
                        run.journal.set_handle(attempt.id, handle)
                    except BaseException:  # no one else knows the container
                        engine.release(handle)
                        raise
            except CancelledError as error:
                run.journal.set_state(attempt.id, "cancelled", why=str(error))
                raise
            except FarmError as error:  # also a host that runs another job
                if engine.traits.makes_images:
                    self._lose_unprepared(attempt, error)
                run.journal.set_state(attempt.id, "lost", "infra", why=str(error))
                raise
        # The cancel of this moment did not know the handle yet.
        if run.journal.happened(run.run.id, EventKind.CANCEL):
            engine.cancel(handle)
        return handle

    @contextlib.contextmanager
    def _gathered(self, engine: Engine) -> Iterator[JobInputs]:
        """The inputs of the build; a cancel does not wait until they are here."""
        run = self.context

        def gather() -> tuple[contextlib.ExitStack, JobInputs]:
            stack = contextlib.ExitStack()
            inputs = gathered(run.preparing, run.plan, engine, run.folder)
            return stack, stack.enter_context(inputs)

        stack, inputs = run.cancellable(gather, lambda made: made[0].close())
        with stack:
            yield inputs

    @contextlib.contextmanager
    def _cancel_on_interrupt(self, engine: Engine, attempt: Attempt) -> Iterator[None]:
        """End the attempt's job, and have the engine forget it, at Ctrl-C during the block."""
        journal = self.context.journal
        try:
            yield
        except KeyboardInterrupt:
            with deferred_interrupts():  # GitHub's runner sends SIGTERM 7.5 s after SIGINT
                attempts = (a for job in journal.jobs(self.context.run.id) for a in job.attempts)
                handle = next(a.handle for a in attempts if a.id == attempt.id)
                if handle:
                    engine.cancel(handle)
                journal.set_state(attempt.id, "cancelled", why="interrupted")
                if handle:
                    engine.release(handle)
            raise

    # --- follow and collect

    def _follow_and_collect(self, engine: Engine, attempt: Attempt, handle: str) -> None:
        """Follow a job to its end and collect the wheel.

        The job is released unless it is kept for the next try.
        """
        try:
            observed = self._follow(engine, attempt, handle)
        except NoRunnerError as error:  # it would wait for ever
            engine.cancel(handle)
            self.context.journal.set_state(attempt.id, "cancelled", why=str(error))
            engine.release(handle)
            raise
        try:
            with self._record_result(attempt):
                self._collect_output(engine, attempt, handle, observed)
        except StillRunningError:
            raise
        except BaseException:
            engine.release(handle)
            raise
        engine.release(handle)
        if engine.traits.keeps_volumes:
            # After a success only: a build that failed goes on with what its tree holds.
            engine.discard(tree_volume(self.context.plan.digest))

    def _follow(self, engine: Engine, attempt: Attempt, handle: str) -> Observation:
        run = self.context

        def note_progress(done: int, total: int) -> None:
            run.journal.event(
                run.run.id, EventKind.PROGRESS, None, attempt.id, done=done, total=total
            )

        shown_text = ""
        never_since: float | None = None

        def note_state(observed: Observation) -> None:
            nonlocal shown_text, never_since
            if observed.state in FINAL:  # the end is judged first, then noted
                return
            run.journal.set_state(attempt.id, observed.state, why=observed.text)
            if observed.text and observed.text != shown_text:
                shown_text = observed.text
                run.workspace.watcher.note(shown_text)
            if observed.cause is not Cause.NEVER_STARTS:
                never_since = None
                return
            never_since = never_since or time.monotonic()
            if time.monotonic() - never_since >= run.workspace.settings.grace_s:
                raise NoRunnerError(
                    f"the build {observed.text}",
                    hint="change that, then `farm retry`; the job was taken out of the queue",
                )

        try:
            return follow(
                engine,
                handle,
                run.folder / "build.log",
                run.workspace.watcher,
                note_progress,
                note_state,
            )
        except LocalDiskError as error:  # the journal may be on that disk, too
            raise StillRunningError(str(error), hint=error.hint) from error
        except InfrastructureError as error:
            raise EngineUnreachableError(str(error), hint=TRY_AGAIN) from error

    def _collect_output(
        self, engine: Engine, attempt: Attempt, handle: str, observed: Observation
    ) -> None:
        """Judge the end of the job and move its output into place."""
        run = self.context
        # `.part` may hold what a controller that was killed had collected.
        part = run.build_dir.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        # A request to cancel counts more than how the job ended, which may be by that very request.
        run.check_cancelled()
        if observed.state == "cancelled":
            # By a person, at the engine: the farm's own time limit comes before GitHub's.
            run.journal.event(run.run.id, EventKind.CANCEL)
            raise CancelledError(str(observed.text), hint="`farm retry` starts it again")
        seconds = cpu_seconds(run.folder / "build.log")
        if seconds is not None:
            run.journal.event(
                run.run.id, EventKind.CPU_TIME, None, attempt.id, seconds=round(seconds, 1)
            )
        if observed.cause is Cause.SITE_LIMIT and self._made_progress(attempt):
            raise SiteLimitError(f"the build was {observed.text}")
        judge(observed, run.folder / "build.log", run.plan.platform)
        _collect(engine, handle, part, run.backend(attempt.runner).max_output)
        the_wheel(part / "wheel")
        if not engine.traits.gathers:
            refuse_notes(part)
        retry_while_open(part.rename, run.build_dir)

    def _made_progress(self, attempt: Attempt) -> bool:
        """True if an attempt compiled something; what it compiled is kept for the next one."""
        events = self.context.journal.events(self.context.run.id)
        return any(
            event.kind == EventKind.PROGRESS
            and event.attempt_id == attempt.id
            and event.data["done"] > 0
            for event in events
        )

    @contextlib.contextmanager
    def _record_result(self, attempt: Attempt) -> Iterator[None]:
        """Record how an attempt ended, whatever the block raises.

        One that is kept for the next try has not ended.
        """
        journal = self.context.journal
        try:
            yield
        except StillRunningError as error:
            journal.set_state(attempt.id, "running", why=str(error))
            raise
        except FarmError as error:
            journal.set_state(attempt.id, *final_state(error), why=str(error))
            raise
        journal.set_state(attempt.id, "done", "success")


def final_state(error: FarmError) -> tuple[State, Result | None]:
    """Return the state and the result of an attempt that ended with an error."""
    if isinstance(error, CancelledError | SiteLimitError):
        return "cancelled", None
    if isinstance(error, BuildFailedError | UsageError):
        return "done", "failure"
    return "lost", "infra"


def _collect(engine: Engine, handle: str, part: Path, max_bytes: int) -> None:
    """Collect the output; a store that is away for a moment does not cost the build."""
    for tries_left in reversed(range(COLLECT_TRIES)):
        try:
            engine.collect(handle, part, max_bytes)
            return
        except LocalDiskError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise StillRunningError(str(error), hint=error.hint) from error
        except InfrastructureError:
            shutil.rmtree(part, ignore_errors=True)
            if not tries_left:
                raise
            time.sleep(COLLECT_PAUSE_S)
