"""Machines with a card, for smoke tests: the least busy one that answers, one test a card."""

import time
from collections.abc import Mapping

from farm.base.errors import NoRunnerError
from farm.run.backends import Backend, open_card_machine
from farm.run.journal_records import Attempt, Job
from farm.run.run_context import RunContext

PAUSE_S = 10.0  # between two rounds over the machines


def take_card(run: RunContext, job: Job, machines: Mapping[str, int]) -> tuple[Attempt, Backend]:
    """Take a card for a smoke test, and wait for one.

    A card that another test uses is waited for, since that test has a time limit; machines that do
    not answer are asked again for `grace_s`.

    Args:
        run: The run that the test is of.
        job: The journal's job of the test.
        machines: The machines that can test the wheel, with the number of their cards.

    Returns:
        The attempt, which holds the card until it has ended, and the open engine of its machine.

    Raises:
        NoRunnerError: No machine answered for `grace_s`.
    """
    deadline = time.monotonic() + run.workspace.settings.grace_s
    newest_reason = ""
    while True:
        reasons = {}
        busy = False
        tests = run.journal.tests_on_cards()
        for name in sorted(machines, key=lambda name: (tests[name] / machines[name], name)):
            try:
                backend = open_card_machine(run.workspace, name)
            except NoRunnerError as error:
                reasons[name] = str(error)
                continue
            attempt = run.journal.claim_card(job.id, "docker", name, machines[name])
            if attempt is not None:
                return attempt, backend
            backend.close()
            busy = True
            reasons[name] = "another test runs on its card"
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        if not busy and time.monotonic() >= deadline:
            raise NoRunnerError(
                f"no machine with a card for {run.plan.variant} answers: {why}",
                hint="`farm runners check` shows them; then `farm retry`, which only tests: the "
                "wheel is published",
            )
        if why != newest_reason:
            newest_reason = why
            run.journal.note_waiting({run.run.id: f"the smoke test waits for a card: {why}"})
            run.workspace.watcher.note(f"the smoke test waits for a card: {why}")
        time.sleep(PAUSE_S)
