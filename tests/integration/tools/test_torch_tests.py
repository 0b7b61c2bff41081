"""The tool that runs PyTorch's own tests: what it selects, what it makes of failures and of
crashes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "torch_tests.py"

TESTS = """\
import os, unittest
class TestTorch(unittest.TestCase):
    def test_a_passes(self): pass
    def test_b_fails(self): self.assertEqual(1, 2)
    def test_c_crashes(self): os.abort()
    def test_d_is_skipped(self): self.skipTest("no card")
    @unittest.expectedFailure
    def test_e_fails_as_expected(self): self.fail()
    def test_f_is_left_out(self): raise SystemExit(3)
    def test_g_passes(self): self.assertEqual(os.environ["ASKED"], "yes")
"""

CARDS = """\
import os
def test_a_has_0(): assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
def test_b_has_1(): assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
def test_c_has_0(): assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
"""
CHILDREN = """\
import os
def test_the_child_continues_and_fails():
    child = os.fork()
    assert child
    os.waitpid(child, 0)
"""


@pytest.fixture
def tool(tmp_path):
    """Runs the tool on a source tree of its own; returns (exit code, output, results by test)."""
    tests = tmp_path / "source" / "test"
    tests.mkdir(parents=True)
    (tests / "test_torch.py").write_text(TESTS)
    numbers = "".join(f"    def test_{n:02d}(self): pass\n" for n in range(10))
    (tests / "test_many.py").write_text(
        f"import unittest\nclass TestMany(unittest.TestCase):\n{numbers}"
    )
    (tests / "test_cards.py").write_text(CARDS)
    (tests / "test_children.py").write_text(CHILDREN)
    (tests / "test_slow.py").write_text(
        "import time\ndef test_one(): pass\ndef test_two(): time.sleep(3600)\n"
    )
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text("__version__ = '1.13.1+cpu.avx'\n")

    def run(*arguments, known=None, **changed):
        rules = {
            "release": "1.13.1", "environment": {"ASKED": "yes"}, "skip": {"*test_f*": "left out"},
            "known": known or {},
            "timeout_s": {"test_torch": 1800, "test_many": 1800},
            "selection": [{"file": "test_torch", "every": 1}, {"file": "test_many", "every": 4}], **changed,
        }  # fmt: skip
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
        out = tmp_path / "out"
        done = subprocess.run(
            [sys.executable, TOOL, "--python", sys.executable, "--source", tmp_path / "source",
             "--rules", tmp_path / "rules.yaml", "-o", out, *arguments],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(site)},
        )  # fmt: skip
        document = (
            json.loads((out / "results.json").read_text())
            if (out / "results.json").exists()
            else {"files": {}}
        )
        tests = [test for file in document["files"].values() for test in file["tests"]]
        return done, {test["test"].rpartition("::")[2]: test["outcome"] for test in tests}

    return run


OUTCOMES = {
    "test_a_passes": "passed", "test_b_fails": "failed", "test_c_crashes": "crashed", "test_d_is_skipped": "skipped",
    "test_e_fails_as_expected": "xfailed", "test_g_passes": "passed", "test_00": "passed", "test_04": "passed",
    "test_08": "passed",
}  # fmt: skip


def test_every_selected_test_has_its_outcome_and_a_crash_costs_one(tool):
    done, outcomes = tool()
    assert outcomes == OUTCOMES
    assert done.returncode == 1
    assert "failed: test_torch.py::TestTorch::test_b_fails: NOT EXPLAINED" in done.stdout
    assert (
        "test_torch: 7 collected, every 1: 6 run, 2 passed, 2 failed (0 explained)" in done.stdout
    )
    assert "test_many: 10 collected, every 4: 3 run, 3 passed, 0 failed" in done.stdout
    assert "1 skipped: no card" in done.stdout


def test_a_run_whose_failures_are_explained_succeeds(tool):
    known = {
        "*::test_b_fails": "one is not two",
        "*::test_c_*": "it aborts",
        "*::test_a_passes": "once it failed",
    }
    done, outcomes = tool(known=known)
    assert (done.returncode, outcomes) == (0, OUTCOMES)
    assert "crashed: test_torch.py::TestTorch::test_c_crashes: it aborts" in done.stdout
    assert (
        "passed, though explained as failing: test_torch.py::TestTorch::test_a_passes"
        in done.stdout
    )


def test_a_file_that_takes_too_long_is_stopped_and_says_so(tool):
    for limit in (5, 50, 500):  # a busy machine may not even reach the first test in 5 s
        done, outcomes = tool(
            selection=[{"file": "test_slow", "every": 1}], timeout_s={"test_slow": limit}
        )
        assert done.returncode == 1
        assert f"stopped at its limit of {limit} s" in done.stdout
        if outcomes:
            break
    assert outcomes == {"test_one": "passed"}


def test_only_the_tests_of_a_pattern_are_counted_and_run(tool):
    file = {"file": "test_many", "every": 2, "only": ["*test_05", "*test_06", "*test_07"]}
    done, outcomes = tool(selection=[file])
    assert outcomes == {"test_05": "passed", "test_07": "passed"}
    assert done.returncode == 0


def test_shares_of_a_file_run_each_of_its_tests_once_each_with_a_card_of_its_own(tool, tmp_path):
    file = {"file": "test_many", "every": 2, "shares": 3}
    done, outcomes = tool("--jobs", "3", "--cards", "2", selection=[file])
    assert outcomes == dict.fromkeys(
        ("test_00", "test_02", "test_04", "test_06", "test_08"), "passed"
    )
    assert "test_many: 10 collected, every 2: 5 run, 5 passed, 0 failed" in done.stdout
    assert done.returncode == 0
    logs = {
        path.name: path.read_text().count('"passed"') for path in (tmp_path / "out").glob("*.jsonl")
    }
    assert logs == {"test_many-0.jsonl": 2, "test_many-1.jsonl": 2, "test_many-2.jsonl": 1}


def test_shares_have_the_cards_in_turn(tool):
    file = {"file": "test_cards", "every": 1, "shares": 3}
    _, outcomes = tool("--cards", "2", selection=[file], timeout_s={"test_cards": 1800})
    assert outcomes == {
        "test_a_has_0": "passed",
        "test_b_has_1": "passed",
        "test_c_has_0": "passed",
    }


def test_a_child_that_a_test_forked_reports_nothing(tool):
    done, outcomes = tool(
        selection=[{"file": "test_children", "every": 1}], timeout_s={"test_children": 1800}
    )
    assert outcomes == {"test_the_child_continues_and_fails": "passed"}
    assert done.returncode == 0


def test_another_release_is_refused(tool):
    done, _ = tool(release="2.0.1")
    assert done.returncode == 2
    assert "torch is 1.13.1+cpu.avx; the rules are for 2.0.1" in done.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_tests.yaml", ["test_torch", "test_nn", "test_autograd", "test_ops"]),
        (
            "torch_tests_cuda_2_6.yaml",
            [
                "test_nn",
                "test_ops",
                "test_linalg",
                "test_torch",
                "test_autograd",
                "test_jit",
            ],  # the longest first
        ),
    ],
)
def test_the_rules_of_the_project_are_complete(name, expected):
    rules = yaml.safe_load((ROOT / "tools" / name).read_text())
    files = [entry["file"] for entry in rules["selection"]]
    assert files == expected
    assert set(rules["timeout_s"]) == set(files)
    assert all(reason.strip() for reason in (*rules["skip"].values(), *rules["known"].values()))
