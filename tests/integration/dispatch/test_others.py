"""Who stops for a while, and two at the same work: nothing is lost, nothing is carried out twice.

FARM_FAULTS: as in test_disk_faults.py.
"""

import json
import subprocess
import sys

import pytest

from tests.integration.dispatch.test_disk_faults import ROOT, SHARE

STEP = 1 if SHARE in ("each", "all") else 11


def carried_out(*words):
    command = [sys.executable, "-m", "tests.faults.others", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    return found["count"]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP and fork: POSIX alone has them")
@pytest.mark.parametrize("case", ["controller", "dispatcher"])
def test_one_that_is_stopped_goes_on_beside_the_other_that_came(case, tmp_path):
    """Stopped at each statement of the journal, its lock held or not; then another one comes; then it goes on."""
    count = carried_out("stopped", case, tmp_path, STEP)
    print(f"{case}: stopped at {count} places")
    assert count > 40 / STEP


@pytest.mark.skipif(sys.platform == "win32", reason="a copy of a process by fork: POSIX alone has it")
@pytest.mark.parametrize("case", ["controller", "dispatcher"])
def test_two_that_start_at_the_same_time_share_the_work(case, tmp_path):
    """Controllers that both find the run of one that was killed; dispatchers on one journal, past their lock."""
    carried_out("together", case, tmp_path, 20 if STEP == 1 else 2)
