"""The steps of one run: build, repair, verify, publish, smoke. Each may be done again after a
controller was killed.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from farm.base.errors import VerificationFailedError
from farm.plan.file import Plan
from farm.run.backends import engine_kind
from farm.run.build_inputs import INPUTS_FILE, BuildInputs, read_inputs
from farm.run.build_step import BuildStep
from farm.run.job_inputs import library_wheels
from farm.run.journal_records import EventKind, Until
from farm.run.pip_commands import pip_line, pip_request
from farm.run.publish_step import publish_wheel
from farm.run.published import offer
from farm.run.repair_step import repair_built
from farm.run.resume import BUILT, published_before
from farm.run.run_context import RunContext
from farm.run.smoke_step import SmokeStep
from farm.run.toolchain import IMAGE
from farm.run.verify_step import check_wheel, summary
from farm.wheel.report import Report


@dataclass(frozen=True)
class MainJob(RunContext):
    """One run, step after step."""

    def steps(self, until: Until) -> None:
        """Carry out the steps up to one of them; an earlier controller may have done some."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if until == "smoke" and self._test_published():
            return
        build_dir = BuildStep(self).carry_out()
        self.on_built()
        # Also where the run ends with the build: another machine may publish what it leaves.
        inputs = note_inputs(self, build_dir)
        if until == "build":
            return
        wheel = self._repair(build_dir)
        report = self._verify(wheel)
        if until == "verify":
            return
        self.pass_the_last_cancel()
        requirement, source = self._publish(wheel, report, inputs)
        if until == "smoke":
            SmokeStep(self).carry_out(requirement, source)

    def _test_published(self) -> bool:
        """Test the wheel that an earlier run of this plan has published; False: there is none."""
        if self.pieces is not None:
            return False
        record = published_before(self.workspace, self.journal, self.run, self.plan)
        if record is None:
            return False
        self.pass_the_last_cancel()
        requirement, source = offer(self.workspace, self.plan, record, self.outcomes)
        self.on_built()
        SmokeStep(self).carry_out(requirement, source, (record.filename,))
        return True

    def _repair(self, build_dir: Path) -> Path:
        with self.outcomes.timed("repair", self.workspace.watcher) as step:
            result = repair_built(
                self.plan,
                build_dir,
                self.folder / "repaired",
                lambda read, total: self.workspace.watcher.progress(read >> 20, total >> 20),
            )
            added = ", ".join(Path(item.path).name for item in result.vendored) or "nothing"
            tag = result.tags[0] if result.tags else "its tag is kept"
            step.result = f"added {added}; {tag}"
            self.outcomes.wheel = str(result.wheel)
        return result.wheel

    def _verify(self, wheel: Path) -> Report:
        with self.outcomes.timed("verify", self.workspace.watcher) as step:
            dependencies = library_wheels(
                self.workspace, self.plan, wheel, self.folder / "dependencies"
            )
            try:
                report = check_wheel(wheel, self.plan, self.folder / "verify.json", dependencies)
            except VerificationFailedError as error:
                raise VerificationFailedError(
                    str(error), hint=f"{error.hint}; {republish_hint(self.plan, wheel)}"
                ) from error
            step.result = summary(report)
        return report

    def _publish(
        self, wheel: Path, report: Report, inputs: BuildInputs
    ) -> tuple[str, tuple[str, ...]]:
        """Publish the wheel.

        Returns:
            The requirement of pip, and the options by which pip finds it.
        """
        watcher = self.workspace.watcher
        mebibytes = wheel.stat().st_size >> 20

        def show_progress(done: int) -> None:
            if mebibytes:
                watcher.progress(done >> 20, mebibytes)

        with self.outcomes.timed("publish", watcher) as step:
            published = publish_wheel(
                self.workspace,
                self.plan,
                wheel,
                report,
                given=inputs,
                run=self.run.id,
                progress=show_progress,
            )
            outcome = "published" if published.changed else "already there"
            step.result = f"{outcome}: {published.wheel_url}"
        requirement, source = pip_request(self.workspace, self.plan, wheel.name)
        self.outcomes.pip_line = pip_line(requirement, source)
        return requirement, source


def note_inputs(job: RunContext, build_dir: Path) -> BuildInputs:
    """Return the inputs of a run's build, which lie in a file next to its wheel afterwards.

    Raises:
        BuildFailedError: A runner left a file that holds no inputs.
    """
    file = build_dir / INPUTS_FILE
    if engine_kind(job.run.request.on).traits.gathers:
        return read_inputs(file) if file.exists() else BuildInputs()
    event = job.journal.happened(job.run.id, EventKind.INPUTS)
    image = job.folder / IMAGE
    inputs = BuildInputs(
        image=image.read_text(encoding="utf-8") if image.exists() else None,
        wheels=event.data["wheels"] if event else {},
        cache=event.data["cache"] if event else None,
    )
    # Next to the wheel: on a runner of GitHub's, this folder is what the controller collects and
    # publishes from.
    file.write_text(inputs.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return inputs


def republish_hint(plan: Plan, wheel: Path) -> str:
    """Say how the wheel is published without another build, where the rules are at fault.

    With the inputs of its build, which the provenance needs.
    """
    build = (
        f"--variant {plan.variant} --package {plan.recipe} --platform {plan.platform} "
        f"--channel {plan.channel}"
    )
    inputs = wheel.parents[1] / BUILT / INPUTS_FILE
    command = f"farm publish {shlex.quote(str(wheel))} {build} --inputs {shlex.quote(str(inputs))}"
    return (
        "where only `verify:` of the recipe or channel is wrong, correct it and build nothing "
        f"again, with the options that this submit had: {command}"
    )
