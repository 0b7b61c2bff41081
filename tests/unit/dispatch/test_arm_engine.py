"""Two Docker engines of ci/runners.yaml: the one on ARM takes what is for ARM; where it is away,
the other emulates.
"""

import contextlib
import json

import pytest

from farm.run import backends, dispatch
from farm.run.dispatch import Dispatcher
from farm.run.run import request_for
from tests.plans import plan_of
from tests.servers.threads import Handler, answered_by


@pytest.fixture
def engines():
    """Starts what speaks Docker's API as far as a dispatcher asks an engine that builds nothing
    yet; gives its URL.
    """

    def start(machine):
        answers = {
            "/version": {"ApiVersion": "1.41", "Os": "linux", "Arch": machine},
            "/info": {"Architecture": machine, "OSType": "linux", "NCPU": 4, "MemTotal": 64 << 30},
        }

        class Engine(Handler):
            def do_GET(self):
                found = next(
                    (answer for path, answer in answers.items() if self.path.endswith(path)), {}
                )
                self.reply(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

        return stack.enter_context(answered_by(Engine)).replace("http", "tcp", 1)

    with contextlib.ExitStack() as stack:
        yield start


@pytest.mark.parametrize(
    ("variant", "away", "runner"),
    [
        ("cpu-armv8_2-py311", False, "graviton"),
        ("cpu-armv9-py311", False, "graviton"),
        ("cpu-armv9-py311", True, "intel"),
        ("cpu-avx-py311", False, "intel"),
    ],
)
def test_an_arm_plan_goes_to_the_arm_engine_or_to_one_that_emulates(
    fleet, workspace, journal, engines, monkeypatch, variant, away, runner
):
    monkeypatch.setattr(dispatch, "open_backend", backends.open_backend)
    intel, arm = engines("x86_64"), "tcp://127.0.0.1:1" if away else engines("aarch64")
    (workspace.project / "ci").mkdir()
    (workspace.project / "ci" / "runners.yaml").write_text(
        f'runners:\n  intel: {{engine: docker, url: "{intel}"}}\n'
        f'  graviton: {{engine: docker, url: "{arm}", machine: aarch64}}\n'
    )
    plan = plan_of(variant, "canary")
    request = request_for(plan, until="publish", on="docker", detached=True)
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json())).id
    Dispatcher(workspace, journal).drain()
    assert (journal.run(run).result, fleet.ran_on) == ("success", [runner])
