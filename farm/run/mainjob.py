"""The steps of one run: build, repair, verify, publish, smoke. Each may be done again after a controller was killed."""

import contextlib
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from farm.base.errors import FarmError, InfrastructureError, SmokeFailedError, VerificationFailedError
from farm.base.project import LOCAL
from farm.index.records import Record
from farm.plan.file import Plan
from farm.run.backends import card_machine, engine_kind, open_card_machine, this_machine
from farm.run.build import the_wheel
from farm.run.buildstep import BuildStep, RunContext, note_inputs
from farm.run.inputs import INPUTS_FILE, library_wheels
from farm.run.journal import EventKind, Journal, Run, Until
from farm.run.published import offer, record_of
from farm.run.release import pip_line, pip_request, publish_wheel
from farm.run.smoke import Elsewhere, SmokeOptions, probe_job, smoke
from farm.run.toolchain import IMAGE, emulates, toolchain, write_context
from farm.run.wheel import check_wheel, repair_built, summary
from farm.run.workspace import Workspace
from farm.smoke.runner import Expectation, SmokeReport


@dataclass(frozen=True)
class MainJob(RunContext):
    """One run, step after step. `pieces`: the wheel, built from an offline bundle; nothing is built here then."""

    pieces: Path | None = None

    def steps(self, until: Until) -> None:
        plan, watcher = self.plan, self.workspace.watcher
        self.folder.mkdir(parents=True, exist_ok=True)
        if until == "smoke" and (record := self._published()):
            self._only_test(record)
            return
        built = BuildStep(self, self.pieces).carry_out()
        self.built()
        # Also where the run ends with the build: its `built` may be published by another machine.
        given = note_inputs(self, built)
        if until == "build":
            return
        with self.outcomes.timed("repair", watcher) as step:
            result = repair_built(plan, built, self.folder / "repaired")
            vendored = ", ".join(Path(item.path).name for item in result.vendored) or "nothing"
            step.result = f"added {vendored}; {result.tags[0] if result.tags else 'its tag is kept'}"
            self.outcomes.wheel = str(result.wheel)
        with self.outcomes.timed("verify", watcher) as step:
            others = library_wheels(self.workspace, plan, result.wheel, self.folder / "dependencies")
            try:
                report = check_wheel(result.wheel, plan, self.folder / "verify.json", others)
            except VerificationFailedError as error:
                raise VerificationFailedError(
                    str(error), hint=f"{error.hint}; {without_a_build(plan, result.wheel)}"
                ) from error
            step.result = summary(report)
        if until == "verify":
            return
        # The last moment: what is published is not taken back.
        self.check_cancelled()
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
            step.result = ("published" if published.changed else "already there") + f": {published.wheel_url}"
        requirement, source = pip_request(self.workspace, plan, result.wheel.name)
        self.outcomes.pip_line = pip_line(requirement, source)
        if until == "smoke":
            self.smoke(requirement, source)

    def _published(self) -> Record | None:
        """The wheel of this very plan, where an earlier run has published it; nothing but its test is left to do."""
        repeats = self.run.request.retry_of or self.journal.happened(self.run.id, EventKind.RESUMED)
        if self.run.request.rebuild or self.pieces is not None or not repeats:
            return None
        return record_of(self.workspace, self.plan)

    def _only_test(self, record: Record) -> None:
        requirement, source = offer(self.workspace, self.plan, record, self.outcomes)
        self.built()
        self.smoke(requirement, source, (record.filename,))

    def smoke(self, requirement: str, source: tuple[str, ...], filenames: tuple[str, ...] = ()) -> None:
        job = self.journal.create_job(self.run.id, "smoke")
        machine = card_machine(self.workspace, self.plan) if self.pieces is None else None
        attempt = self.journal.create_attempt(job.id, "docker" if machine else "host", machine or LOCAL)
        self.journal.set_state(attempt.id, "running")
        try:
            with contextlib.ExitStack() as opened:
                wheel = Path(self.outcomes.wheel) if self.outcomes.wheel else None
                elsewhere = self._with_card(machine, opened) if machine else self._elsewhere()
                gpu = bool(elsewhere and not elsewhere.foreign and self.plan.parsed_variant.sms)
                options = SmokeOptions(wheel=wheel, filenames=filenames, gpu=gpu, elsewhere=elsewhere)
                failed = smoke(self.workspace, self.plan, self.folder, self.outcomes, requirement, source, options)
        except (InfrastructureError, OSError) as error:  # this machine is at fault, such as a full disk: no test failed
            self.journal.set_state(attempt.id, "lost", "infra", why=str(error))
            raise
        except FarmError as error:
            self.journal.set_state(attempt.id, "done", "failure", why=str(error))
            raise
        except BaseException:
            self.journal.set_state(attempt.id, "cancelled", why="interrupted")
            raise
        self.journal.set_state(attempt.id, "done", "failure" if failed else "success", why="; ".join(failed) or None)
        if failed:
            raise SmokeFailedError("\n".join(failed), hint=f"reports: {self.folder}/smoke*.json")

    def _with_card(self, machine: str, opened: contextlib.ExitStack) -> Elsewhere:
        """The test as a job of the Docker machine that has a card for the wheel."""
        backend = opened.enter_context(contextlib.closing(open_card_machine(self.workspace, machine)))
        folder = self.folder / "test"  # its image is another one than the build's
        rendered = write_context(self.workspace, self.plan, folder, self.outcomes)
        image = toolchain(self.workspace, backend, self.plan, rendered, folder, self.outcomes)

        def run(python: Path, expect: Expectation, emulate: str | None) -> SmokeReport:
            site = next(python.parents[1].glob("lib/python*/site-packages"))
            return probe_job(
                self.workspace, self.plan, backend, image, site, expect, self.run.id, gpus=1, emulate=emulate
            )

        return Elsewhere(run)

    def _elsewhere(self) -> Elsewhere | None:
        """The test as a job of the engine, where that has a card for tests or another machine, which runs the wheel.

        None: it runs on this machine.
        """
        system, machine = this_machine()
        foreign = (system.facts.name, machine) != (self.plan.platform, self.plan.machine)
        if self.pieces is not None or not (foreign or engine_kind(self.run.request.on).traits.unpacks):
            return None
        backend = self.backend()
        foreign = foreign and backend.builder is not None and backend.swarm is None
        if not (foreign or backend.tests):
            return None
        if foreign and (self.folder / IMAGE).is_file():
            image = (self.folder / IMAGE).read_text(encoding="utf-8")
        else:
            rendered = write_context(self.workspace, self.plan, self.folder, self.outcomes)
            image = toolchain(self.workspace, backend, self.plan, rendered, self.folder, self.outcomes)
        gpus = 0 if foreign else 1

        def run(place: Path, expect: Expectation, emulate: str | None) -> SmokeReport:
            site = place if foreign else next(place.parents[1].glob("lib/python*/site-packages"))
            job = self.workspace, self.plan, backend, image, site, expect, self.run.id
            return probe_job(*job, gpus=gpus, emulate=emulate)

        return Elsewhere(run, foreign, foreign and emulates(backend, self.plan))


def without_a_build(plan: Plan, wheel: Path) -> str:
    """The hint where the rules are at fault: a new submit builds again, since it cannot know that the wheel is not.

    With the inputs, which the provenance needs; `farm submit` then finds the wheel published, and tests it.
    """
    build = f"--variant {plan.variant} --package {plan.recipe} --platform {plan.platform} --channel {plan.channel}"
    inputs = wheel.parents[1] / "built" / INPUTS_FILE
    command = f"farm publish {shlex.quote(str(wheel))} {build} --inputs {shlex.quote(str(inputs))}"
    return (
        "where only `verify:` of the recipe or channel is wrong, correct it and build nothing again, "
        f"with the options that this submit had: {command}"
    )


ORDER: tuple[Until, ...] = ("build", "verify", "publish", "smoke")


def take_over(workspace: Workspace, journal: Journal, run_id: str, plan_digest: str) -> Run | None:
    """Puts the build of an earlier run into the folder of a new one; the run that it came from, or None.

    Not of a run that came as far as this one is to come: whoever submits that again wants it built again.
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
        if old.result == "success" and ORDER.index(old.request.until) >= ORDER.index(run.request.until):
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
