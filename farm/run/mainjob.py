"""The steps of one run: build, repair, verify, publish, smoke. Each may be done again after a
controller was killed.
"""

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from farm.base.errors import (
    BuildFailedError,
    ExitCode,
    FarmError,
    InfrastructureError,
    NoRunnerError,
    SmokeFailedError,
    UsageError,
    VerificationFailedError,
)
from farm.base.heartbeat import megabytes
from farm.base.interrupts import deferred_interrupts
from farm.base.locks import retry_while_open
from farm.base.project import LOCAL
from farm.engines.base import FINAL, Cause, Engine, Observation, State
from farm.engines.transfer import LocalDiskError
from farm.index.records import Record
from farm.plan.file import Plan
from farm.platforms.base import platform
from farm.run import build, bundle
from farm.run.backends import Backend, card_machine, engine_kind, open_card_machine, this_machine
from farm.run.build import IMAGE, emulates, the_wheel, toolchain, write_context
from farm.run.inputs import (
    INPUTS_FILE,
    BuildInputs,
    fetch_all,
    gathered,
    library_wheels,
    read_inputs,
)
from farm.run.journal import Attempt, EventKind, Journal, Result, Run, Until
from farm.run.journal import Job as JournalJob
from farm.run.pip_commands import pip_line, pip_request
from farm.run.publish_step import publish_wheel
from farm.run.published import offer, record_of
from farm.run.repair_step import repair_built
from farm.run.smoke import Elsewhere, SmokeOptions, smoke
from farm.run.verify_step import check_wheel, summary
from farm.run.workspace import Outcomes, Step, Watcher, Workspace

COLLECT_TRIES = 4
COLLECT_PAUSE_S = 5.0
CANCEL_LOOK_S = 1.0  # how often a step before the build asks the journal for a cancel, at most


class StillRunningError(InfrastructureError):
    """The build could not be followed or collected now; it may still be there for the next try."""


class EngineUnreachableError(StillRunningError):
    """The engine of a build does not answer."""


AWAY = "run the same command again: it continues if the build is still there"


class CancelledError(FarmError):
    """Someone asked for the end of the run (130, as for Ctrl-C)."""

    exit_code = ExitCode.INTERRUPTED


class CancellableWatcher(Watcher):
    """Passes everything on to another watcher, and looks for a cancel at most once a second."""

    def __init__(self, watcher: Watcher, check: Callable[[], None]) -> None:
        self._watcher = watcher
        self._check = check
        self._checked = float("-inf")

    def _look(self) -> None:
        if time.monotonic() - self._checked >= CANCEL_LOOK_S:
            self._checked = time.monotonic()
            self._check()

    def step(self, name: str) -> None:
        self._watcher.step(name)

    def ended(self, step: Step) -> None:
        self._watcher.ended(step)

    def line(self, text: str) -> None:
        self._watcher.line(text)
        self._look()

    def note(self, text: str) -> None:
        self._watcher.note(text)
        self._look()

    def progress(self, done: int, total: int) -> None:
        self._watcher.progress(done, total)
        self._look()


@dataclass(frozen=True)
class MainJob:
    """One run, step after step; `open`: the engine of a runner; `built` is called when the wheel is
    here.

    `runner`: the machine that the queue chose; None: this one's, or the engine chooses. `pieces`:
    of a wheel that was built from an offline bundle; nothing is built here then.
    """

    workspace: Workspace
    plan: Plan
    journal: Journal
    run: Run
    outcomes: Outcomes
    open: Callable[[str | None], Backend]
    runner: str | None = None
    built: Callable[[], object] = lambda: None
    pieces: Path | None = None

    @property
    def folder(self) -> Path:
        return self.workspace.run_folder(self.run.id)

    def backend(self, runner: str | None = None) -> Backend:
        """The open engine of this run's runner, or of the one that an attempt had."""
        return self.open(runner or self.runner)

    @property
    def preparing(self) -> Workspace:
        """The workspace for steps before the build: each line of their output looks for a cancel."""
        watcher = CancellableWatcher(self.workspace.watcher, self.check_cancelled)
        return replace(self.workspace, watcher=watcher)

    def toolchain(self, folder: Path, backend: Backend | None = None) -> str:
        """The image of the plan's toolchain, by the name that the runners of an engine (by default
        the run's) know.
        """
        workspace = self.preparing
        rendered = write_context(workspace, self.plan, folder, self.outcomes)
        return toolchain(
            workspace, backend or self.backend(), self.plan, rendered, folder, self.outcomes
        )

    def check_cancelled(self) -> None:
        """Raises CancelledError where someone asked for the end."""
        # By the journal, which every process of the project reads: `farm cancel` is another one.
        if self.journal.happened(self.run.id, EventKind.CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")

    def _pass_the_last_cancel(self) -> None:
        """Record that the wheel goes into the index now; CancelledError: a cancel came first."""
        # What is published is not taken back. One transaction decides, so that a `farm cancel` of
        # the same moment is either obeyed or told that it came too late.
        if not self.journal.event_unless(self.run.id, EventKind.PUBLISHING, EventKind.CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")

    def steps(self, until: Until) -> None:
        plan = self.plan
        watcher = self.workspace.watcher
        self.folder.mkdir(parents=True, exist_ok=True)
        if until == "smoke" and (record := self._published()):
            self._pass_the_last_cancel()
            requirement, source = offer(self.workspace, plan, record, self.outcomes)
            self.built()
            self.smoke(requirement, source, (record.filename,))
            return
        built = self.build_wheel()
        self.built()
        # Also where the run ends with the build: its `built` may be published by another machine.
        given = note_inputs(self, built)
        if until == "build":
            return
        with self.outcomes.timed("repair", watcher) as step:
            result = repair_built(plan, built, self.folder / "repaired")
            vendored = ", ".join(Path(item.path).name for item in result.vendored) or "nothing"
            step.result = (
                f"added {vendored}; {result.tags[0] if result.tags else 'its tag is kept'}"
            )
            self.outcomes.wheel = str(result.wheel)
        with self.outcomes.timed("verify", watcher) as step:
            others = library_wheels(
                self.workspace, plan, result.wheel, self.folder / "dependencies"
            )
            try:
                report = check_wheel(result.wheel, plan, self.folder / "verify.json", others)
            except VerificationFailedError as error:
                raise VerificationFailedError(
                    str(error), hint=f"{error.hint}; {without_a_build(plan, result.wheel)}"
                ) from error
            step.result = summary(report)
        if until == "verify":
            return
        self._pass_the_last_cancel()
        with self.outcomes.timed("publish", watcher) as step:
            mib = result.wheel.stat().st_size >> 20
            published = publish_wheel(
                self.workspace,
                plan,
                result.wheel,
                report,
                given=given,
                run=self.run.id,
                progress=lambda done: watcher.progress(done >> 20, mib) if mib else None,
            )
            step.result = (
                "published" if published.changed else "already there"
            ) + f": {published.wheel_url}"
        requirement, source = pip_request(self.workspace, plan, result.wheel.name)
        self.outcomes.pip_line = pip_line(requirement, source)
        if until == "smoke":
            self.smoke(requirement, source)

    def _published(self) -> Record | None:
        """The wheel of this very plan, where an earlier run has published it; nothing but its test
        is left to do.
        """
        repeats = self.run.request.retry_of or self.journal.happened(self.run.id, EventKind.RESUMED)
        if self.run.request.rebuild or self.pieces is not None or not repeats:
            return None
        return record_of(self.workspace, self.plan)

    def smoke(
        self, requirement: str, source: tuple[str, ...], filenames: tuple[str, ...] = ()
    ) -> None:
        job = self.journal.create_job(self.run.id, "smoke")
        if self.pieces is None:
            machine = card_machine(self.workspace, self.plan)
        else:
            machine = None
        attempt = self.journal.create_attempt(
            job.id, "docker" if machine else "host", machine or LOCAL
        )
        self.journal.set_state(attempt.id, "running")
        try:
            with contextlib.ExitStack() as opened:
                wheel = Path(self.outcomes.wheel) if self.outcomes.wheel else None
                elsewhere = self._elsewhere(machine, opened)
                gpu = bool(elsewhere and not elsewhere.foreign and self.plan.parsed_variant.sms)
                options = SmokeOptions(
                    wheel=wheel, filenames=filenames, gpu=gpu, elsewhere=elsewhere
                )
                failed = smoke(
                    self.workspace,
                    self.plan,
                    self.folder,
                    self.outcomes,
                    requirement,
                    source,
                    options,
                )
        except (FarmError, OSError) as error:
            # Where this machine is at fault, such as by a full disk, no test failed.
            lost = isinstance(error, InfrastructureError | OSError)
            self.journal.set_state(
                attempt.id, *(("lost", "infra") if lost else ("done", "failure")), why=str(error)
            )
            raise
        except BaseException:
            self.journal.set_state(attempt.id, "cancelled", why="interrupted")
            raise
        self.journal.set_state(
            attempt.id, "done", "failure" if failed else "success", why="; ".join(failed) or None
        )
        if failed:
            raise SmokeFailedError("\n".join(failed), hint=f"reports: {self.folder}/smoke*.json")

    def _elsewhere(self, machine: str | None, opened: contextlib.ExitStack) -> Elsewhere | None:
        """The test as a job of a Docker machine with a card, or of the engine; None: it runs on
        this machine.
        """
        if machine:
            backend = opened.enter_context(
                contextlib.closing(open_card_machine(self.workspace, machine))
            )
            # Its image is another one.
            return Elsewhere(backend.engine, self.toolchain(self.folder / "test", backend))
        system, own = this_machine()
        foreign = (system.facts.name, own) != (self.plan.platform, self.plan.machine)
        if self.pieces is not None or not (
            foreign or engine_kind(self.run.request.on).traits.unpacks
        ):
            return None
        backend = self.backend()
        foreign = foreign and backend.builder is not None and backend.swarm is None
        if not (foreign or backend.tests):
            return None
        known = self.folder / IMAGE
        if foreign and known.is_file():
            image = known.read_text("utf-8")
        else:
            image = self.toolchain(self.folder)
        return Elsewhere(backend.engine, image, foreign, foreign and emulates(backend, self.plan))

    # --- the build

    @property
    def _built(self) -> Path:
        return self.folder / "built"

    def build_wheel(self) -> Path:
        """The folder with what the build left: `wheel/` and `lib/`.

        BuildFailedError: the build's own fault; CancelledError: someone asked for the end;
        StillRunningError: it may still be there, and the next call takes it up;
        InfrastructureError: it was lost.
        """
        jobs = self.journal.jobs(self.run.id)
        job = next((j for j in jobs if j.kind == "build"), None) or self.journal.create_job(
            self.run.id, "build"
        )
        self._release_ended(job)
        # `built` gets its name last, when it is whole: where it exists, the wheel was collected.
        if self._built.is_dir():
            with self.outcomes.timed("build", self.workspace.watcher) as step:
                for attempt in (
                    job.attempts
                ):  # its controller ended between taking the wheel and writing that down
                    self.journal.set_state(attempt.id, "done", "success")
                step.result = "resumed: the wheel was collected before"
                if resumed := self.journal.happened(self.run.id, EventKind.RESUMED):
                    step.result = f"not built again: the wheel of run {resumed.data['run']}"
                self.outcomes.wheel = str(build.the_wheel(self._built / "wheel"))
        elif self.pieces is not None:
            self._join_pieces(self.pieces, self.journal.create_attempt(job.id, "bundle", LOCAL))
        else:
            self._build(job)
        return self._built

    def _build(self, job: JournalJob) -> None:
        last = self._alive(job)
        if last is not None and last.handle:
            engine = self.backend(last.runner).engine
            with (
                self.outcomes.timed("build", self.workspace.watcher) as step,
                self._ended_with_us(engine, last),
            ):
                step.result = "resumed"
                self._finish(engine, last, last.handle)
                step.result += "; "
                self._note_wheel(step)
            return
        self._fetch()
        image = self.toolchain(self.folder)
        engine = self.backend().engine
        with self.outcomes.timed("build", self.workspace.watcher) as step:
            # One without a handle: the controller was killed while it submitted. The engine knows
            # it by its labels.
            attempt = last or self.journal.create_attempt(job.id, engine.name, self.runner or LOCAL)
            with self._ended_with_us(engine, attempt):
                handle = self._start(engine, image, attempt)
                self._finish(engine, attempt, handle)
                self._note_wheel(step)

    def _fetch(self) -> None:
        """Fetch sources before the minutes that an image takes: a wrong name or hash is reported at
        once.
        """
        plan = self.plan
        workspace = self.preparing
        if plan.source.kind == "path" and not plan.parts and not plan.build_requires:
            return
        # Where the runner gathers, and where the build itself fetches, nothing is needed here.
        if platform(plan.platform).self_contained or self.backend().engine.traits.gathers:
            return
        cache = workspace.artifacts / "sources"
        mirror = workspace.settings.debian_mirror
        with self.outcomes.timed("fetch", workspace.watcher) as step:
            files = fetch_all(plan, cache, mirror=mirror, line=workspace.watcher.line)
            size = sum(file.stat().st_size for file in files)
            step.result = (
                f"{len(files)} file{'s' * (len(files) > 1)}, {megabytes(size)}; hashes match"
            )

    def _note_wheel(self, step: Step) -> None:
        wheel = build.the_wheel(self._built / "wheel")
        step.result += f"{wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB)"
        self.outcomes.wheel = str(wheel)

    def _join_pieces(self, pieces: Path, attempt: Attempt) -> None:
        """Join what was built elsewhere; an image is made only where the bundle had stand-ins for
        its libraries.
        """
        self.journal.set_state(attempt.id, "running")
        part = self._built.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with self._ending(attempt):
            wheel = bundle.join_pieces(self.plan, pieces, part)
            missing = bundle.stand_ins(part / "lib")
            image = self.toolchain(self.folder) if missing else ""
            with self.outcomes.timed("build", self.workspace.watcher) as step:
                if missing:
                    self.workspace.watcher.note(
                        f"taken from the toolchain's image: {', '.join(missing)}"
                    )
                    engine = self.backend().engine
                    run = self.run.id
                    bundle.collect_libraries(self.plan, engine, image, wheel, part / "lib", run=run)
                # Under its own name only when it is whole: `build_wheel` takes a folder `built` for
                # a collected wheel.
                retry_while_open(part.rename, self._built)
                step.result = "from a bundle: "
                self._note_wheel(step)

    # --- take up and start

    def _release_ended(self, job: JournalJob) -> None:
        """Has the engine forget what an earlier controller wrote the end of, and may not have
        released.
        """
        built = self._built.is_dir()
        for attempt in job.attempts:
            if not attempt.handle or not (built or attempt.state in FINAL):
                continue
            try:
                self.backend(attempt.runner).engine.release(attempt.handle)
            except (
                FarmError
            ) as error:  # an engine that is away now should not stop the steps that need none
                self.workspace.watcher.note(
                    f"{attempt.handle[:12]} may be left at its engine: {error}"
                )

    def _alive(self, job: JournalJob) -> Attempt | None:
        """The newest attempt, unless it has ended or is lost; that is noted, and the attempt
        released, then.
        """
        last = job.attempts[-1] if job.attempts else None
        if (
            last is not None and last.result == "failure"
        ):  # its controller ended before it ended the run
            raise BuildFailedError(
                last.why or "the build failed", hint=f"the whole log: {self.folder}/build.log"
            )
        if last is None or last.state in FINAL:
            return None
        if not last.handle:
            return last
        try:
            engine = self.backend(last.runner).engine
            observed = engine.observe(last.handle)
        except (InfrastructureError, NoRunnerError) as error:
            raise EngineUnreachableError(str(error), hint=AWAY) from error
        # Killed from outside it is lost as well, though its engine still knows it: it is built
        # again.
        if observed.state != "lost" and observed.cause is not Cause.KILLED:
            return last
        # Written before it is released: whoever comes next then never follows a job that is gone.
        self.journal.set_state(last.id, "lost", "infra", why=observed.text)
        engine.release(last.handle)
        if self.runner is not None:
            raise InfrastructureError(f"the build was lost: {observed.text}")
        return None

    def _start(self, engine: Engine, image: str, attempt: Attempt) -> str:
        """Submit the job; returns its handle, which the journal has then."""
        plan = self.plan
        with gathered(self.workspace, plan, engine, self.folder) as inputs:
            labels = {
                "farm.run": self.run.id,
                "farm.kind": "build",
                "farm.attempt": str(attempt.id),
            }
            keeps = engine.traits.keeps_volumes and not platform(plan.platform).self_contained
            job = build.make_job(
                plan,
                image=image,
                inputs=inputs.folders,
                capacity=engine.capacity(),
                labels=labels,
                volumes=build.kept(plan, self.workspace.id) if keeps else {},
                holder=f"run {self.run.id}, log: {self.folder / 'build.log'}" if keeps else "",
            )
            cache = build.cache_volume(plan, self.workspace.id) if keeps else None
            # Before the submit: a later controller that takes the job up cannot find out what it
            # was given.
            self.journal.event(
                self.run.id, EventKind.INPUTS, None, attempt.id, wheels=inputs.wheels, cache=cache
            )
            self.journal.set_state(attempt.id, "starting")
            try:
                self.check_cancelled()  # images and sources take minutes
                with deferred_interrupts():
                    handle = engine.submit(job)
                    try:
                        self.journal.set_handle(attempt.id, handle)
                    except BaseException:  # no one else knows the container
                        engine.release(handle)
                        raise
            except CancelledError as error:
                self.journal.set_state(attempt.id, "cancelled", why=str(error))
                raise
            except FarmError as error:  # also a host that runs another job
                self.journal.set_state(attempt.id, "lost", "infra", why=str(error))
                raise
        # Someone may have asked for the end during the submit.
        if self.journal.happened(self.run.id, EventKind.CANCEL):
            engine.cancel(handle)  # whoever asked for it did not know the handle yet
        return handle

    @contextlib.contextmanager
    def _ended_with_us(self, engine: Engine, attempt: Attempt) -> Iterator[None]:
        """Ctrl-C during the block, at whatever moment, ends the attempt's job and has the engine
        forget it.
        """
        journal = self.journal
        try:
            yield
        except KeyboardInterrupt:
            with deferred_interrupts():  # GitHub's runner sends SIGTERM 7.5 s after SIGINT
                attempts = (a for job in journal.jobs(self.run.id) for a in job.attempts)
                handle = next(a.handle for a in attempts if a.id == attempt.id)
                if handle:
                    engine.cancel(handle)
                journal.set_state(attempt.id, "cancelled", why="interrupted")
                if handle:
                    engine.release(handle)
            raise

    # --- follow and collect

    def _finish(self, engine: Engine, attempt: Attempt, handle: str) -> None:
        """Follow a job to its end and take the wheel; the job is released unless it is kept for the
        next try.
        """
        observed = self._follow(engine, attempt, handle)
        try:
            with self._ending(attempt):
                self._take(engine, attempt, handle, observed)
        except StillRunningError:
            raise
        except BaseException:
            engine.release(handle)
            raise
        engine.release(handle)
        if engine.traits.keeps_volumes:
            # After a success only: a build that failed goes on with what its tree holds.
            engine.discard(build.tree_volume(self.plan.digest))

    def _follow(self, engine: Engine, attempt: Attempt, handle: str) -> Observation:
        def note(done: int, total: int) -> None:
            self.journal.event(
                self.run.id, EventKind.PROGRESS, None, attempt.id, done=done, total=total
            )

        def saw(observed: Observation) -> None:
            if observed.state not in FINAL:  # the end is judged first, then noted
                self.journal.set_state(attempt.id, observed.state, why=observed.text)

        try:
            return build.follow(
                engine, handle, self.folder / "build.log", self.workspace.watcher, note, saw
            )
        except LocalDiskError as error:  # the journal may be on that disk, too
            raise StillRunningError(str(error), hint=error.hint) from error
        except InfrastructureError as error:
            raise EngineUnreachableError(str(error), hint=AWAY) from error

    def _take(self, engine: Engine, attempt: Attempt, handle: str, observed: Observation) -> None:
        """Judge the end of the job and move its output into place."""
        # `.part` may hold what a controller that was killed had collected.
        log = self.folder / "build.log"
        part = self._built.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        # A request to cancel counts more than how the job ended, which may be by that very request.
        self.check_cancelled()
        if (
            observed.state == "cancelled"
        ):  # by a person, at the engine: the farm's own time limit comes before GitHub's
            self.journal.event(self.run.id, EventKind.CANCEL)
            raise CancelledError(str(observed.text), hint="`farm retry` starts it again")
        build.judge(observed, log, self.plan.platform)
        _collect(engine, handle, part, self.backend(attempt.runner).max_output)
        build.the_wheel(part / "wheel")
        retry_while_open(part.rename, self._built)

    @contextlib.contextmanager
    def _ending(self, attempt: Attempt) -> Iterator[None]:
        """Writes down how an attempt ended, whatever the block raises; one that is kept for the
        next try has not.
        """
        journal = self.journal
        try:
            yield
        except StillRunningError as error:
            journal.set_state(attempt.id, "running", why=str(error))
            raise
        except FarmError as error:
            journal.set_state(attempt.id, *_end_of(error), why=str(error))
            raise
        journal.set_state(attempt.id, "done", "success")


def _end_of(error: FarmError) -> tuple[State, Result | None]:
    """How an attempt ended that ended with an error."""
    if isinstance(error, CancelledError):
        return "cancelled", None
    if isinstance(error, BuildFailedError | UsageError):
        return ("done", "failure")
    return ("lost", "infra")


def _collect(engine: Engine, handle: str, part: Path, max_bytes: int) -> None:
    """Takes the output; a store that is away for a moment does not cost the build."""
    for left in reversed(range(COLLECT_TRIES)):
        try:
            engine.collect(handle, part, max_bytes)
            return
        except LocalDiskError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise StillRunningError(str(error), hint=error.hint) from error
        except InfrastructureError:
            shutil.rmtree(part, ignore_errors=True)
            if not left:
                raise
            time.sleep(COLLECT_PAUSE_S)


def note_inputs(job: MainJob, built: Path) -> BuildInputs:
    """The inputs of a run's build, beside its wheel afterwards; BuildFailedError: a runner left a
    file that is none.
    """
    file = built / INPUTS_FILE
    if engine_kind(job.run.request.on).traits.gathers:
        return read_inputs(file) if file.exists() else BuildInputs()
    given = job.journal.happened(job.run.id, EventKind.INPUTS)
    image = job.folder / IMAGE
    made = BuildInputs(
        image=image.read_text(encoding="utf-8") if image.exists() else None,
        wheels=given.data["wheels"] if given else {},
        cache=given.data["cache"] if given else None,
    )
    # Beside the wheel: on a runner of GitHub's, `built` is what the controller collects and
    # publishes from.
    file.write_text(made.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return made


def without_a_build(plan: Plan, wheel: Path) -> str:
    """The hint where the rules are at fault: a new submit builds again. With the inputs, which the
    provenance needs.
    """
    build = (
        f"--variant {plan.variant} --package {plan.recipe} --platform {plan.platform} "
        f"--channel {plan.channel}"
    )
    inputs = wheel.parents[1] / "built" / INPUTS_FILE
    command = f"farm publish {shlex.quote(str(wheel))} {build} --inputs {shlex.quote(str(inputs))}"
    return (
        "where only `verify:` of the recipe or channel is wrong, correct it and build nothing "
        "again, "
        f"with the options that this submit had: {command}"
    )


ORDER: tuple[Until, ...] = ("build", "verify", "publish", "smoke")


def take_over(workspace: Workspace, journal: Journal, run_id: str, plan_digest: str) -> Run | None:
    """Puts the build of an earlier run into the folder of a new one; the run that it came from, or
    None.

    Not of a run that came as far as this one is to come: whoever submits that again wants it built
    again.
    """
    earlier = journal.of_plan(plan_digest)
    if not earlier:
        return None
    run = journal.run(run_id)
    if run.request.rebuild:
        return None
    for old in earlier:
        folder = workspace.run_folder(old.id)
        same = bool(old.plan.get("library_wheels")) == bool(run.plan.get("library_wheels"))
        if not same or not list((folder / "built/wheel").glob("*.whl")):
            continue
        if old.result == "success" and ORDER.index(old.request.until) >= ORDER.index(
            run.request.until
        ):
            return None
        _take(folder, workspace.run_folder(run.id))
        if given := journal.happened(old.id, EventKind.INPUTS):
            journal.event(run.id, EventKind.INPUTS, **given.data)
        journal.event(run.id, EventKind.RESUMED, run=old.id)
        return old
    return None


def _take(old: Path, new: Path) -> None:
    """Links where the file system has them; `built` gets its name last, when it is whole."""
    part = new / "built.part"
    shutil.rmtree(part, ignore_errors=True)
    new.mkdir(parents=True, exist_ok=True)
    the_wheel(old / "built/wheel")
    for name in ("build.log", IMAGE):
        if (old / name).exists():
            _link(str(old / name), str(new / name))
    shutil.copytree(old / "built", part, copy_function=_link)
    part.rename(new / "built")


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
