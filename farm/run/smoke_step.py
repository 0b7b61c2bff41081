"""The last step of a run: the smoke test, on this machine, on one with a card, or as the engine's
job.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from farm.base.errors import FarmError, InfrastructureError, SmokeFailedError
from farm.base.project import LOCAL
from farm.engines.base import FINAL
from farm.run.backends import Backend, card_machines, engine_kind, this_machine
from farm.run.card_machines import take_card
from farm.run.journal_records import Result
from farm.run.run_context import RunContext
from farm.run.smoke import Elsewhere, SmokeOptions, smoke
from farm.run.toolchain import IMAGE, emulates


@dataclass(frozen=True)
class SmokeStep:
    """The smoke test of a run whose wheel is published."""

    context: RunContext

    def carry_out(
        self, requirement: str, source: tuple[str, ...], filenames: tuple[str, ...] = ()
    ) -> None:
        """Install the wheel as a user would, and test it; SmokeFailedError: a test failed.

        `source`: the options by which pip finds it; `filenames`: what the index offers of the
        version, where the wheel's file is not at hand.
        """
        run = self.context
        self._end_abandoned_tests()
        job = run.journal.create_job(run.run.id, "smoke")
        machines = {} if run.pieces is not None else card_machines(run.workspace, run.plan)
        card: Backend | None = None
        if machines:
            attempt, card = take_card(run, job, machines)
        else:
            attempt = run.journal.create_attempt(job.id, "host", LOCAL)
        try:
            run.journal.set_state(attempt.id, "running")
            with contextlib.ExitStack() as opened:
                if card is not None:
                    opened.enter_context(contextlib.closing(card))
                failed = self._test(requirement, source, filenames, self._place(card))
        except (InfrastructureError, OSError) as error:
            # This machine is at fault, such as by a full disk: no test failed.
            run.journal.set_state(attempt.id, "lost", "infra", why=str(error))
            raise
        except FarmError as error:
            run.journal.set_state(attempt.id, "done", "failure", why=str(error))
            raise
        except BaseException:
            run.journal.set_state(attempt.id, "cancelled", why="interrupted")
            raise
        result: Result = "failure" if failed else "success"
        run.journal.set_state(attempt.id, "done", result, why="; ".join(failed) or None)
        if failed:
            raise SmokeFailedError("\n".join(failed), hint=f"reports: {run.folder}/smoke*.json")

    def _end_abandoned_tests(self) -> None:
        """End the tests of an earlier controller of this run, which hold cards."""
        journal = self.context.journal
        for job in journal.jobs(self.context.run.id):
            for attempt in job.attempts:
                if job.kind == "smoke" and attempt.state not in FINAL:
                    journal.set_state(attempt.id, "lost", "infra", why="its controller died")

    def _test(
        self,
        requirement: str,
        source: tuple[str, ...],
        filenames: tuple[str, ...],
        elsewhere: Elsewhere | None,
    ) -> list[str]:
        """Return what failed."""
        run = self.context
        options = SmokeOptions(
            wheel=Path(run.outcomes.wheel) if run.outcomes.wheel else None,
            filenames=filenames,
            gpu=bool(elsewhere and not elsewhere.foreign and run.plan.parsed_variant.sms),
            elsewhere=elsewhere,
        )
        return smoke(
            run.workspace, run.plan, run.folder, run.outcomes, requirement, source, options
        )

    def _place(self, card: Backend | None) -> Elsewhere | None:
        """Choose where the test runs; `card`: the machine with a card that was taken.

        Returns:
            A job of a Docker machine with a card, or of the engine; None: this machine.
        """
        run = self.context
        if card is not None:
            # Its image is another one.
            return Elsewhere(card.engine, run.toolchain(run.folder / "test", card))
        system, processor = this_machine()
        foreign = (system.facts.name, processor) != (run.plan.platform, run.plan.machine)
        unpacks = engine_kind(run.run.request.on).traits.unpacks
        if run.pieces is not None or not (foreign or unpacks):
            return None
        backend = run.backend()
        foreign = foreign and backend.engine.traits.makes_images
        if not (foreign or backend.tests):
            return None
        image_file = run.folder / IMAGE
        if foreign and image_file.is_file():
            image = image_file.read_text("utf-8")
        else:
            image = run.toolchain(run.folder)
        return Elsewhere(backend.engine, image, foreign, foreign and emulates(backend, run.plan))
