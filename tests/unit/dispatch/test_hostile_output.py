"""What a build leaves in the places of the farm's own files is the build's fault, never the
machine's.
"""

import pytest

from farm.base.errors import BuildFailedError
from farm.run import run
from farm.run.workspace import open_journal
from tests.faults.engine import Engine, install, output, the_plan, workspace_in


@pytest.mark.parametrize("name", ["inputs.json", "inputs.json/x"])
def test_a_build_that_leaves_the_farms_own_file_fails_itself(tmp_path, monkeypatch, name):
    class Hostile(Engine):
        output = output(**{name: b"{}"})

    workspace = workspace_in(tmp_path)
    install(monkeypatch.setattr, the_plan(), Hostile())
    with pytest.raises(BuildFailedError, match=r"the build left inputs\.json in its output") as end:
        run.submit(workspace, the_plan(), until="build")
    assert end.value.exit_code == 5
    with open_journal(workspace.project, workspace.settings) as journal:
        (made,) = journal.runs(1)
        ends = [(a.state, a.result) for job in journal.jobs(made.id) for a in job.attempts]
    assert ends == [("done", "failure")]
