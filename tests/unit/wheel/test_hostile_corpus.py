"""Every hostile file is refused with a clear error, in bounded memory and time, and leaves nothing anywhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.wheel import hostile_corpus as corpus
from tests.unit.wheel import hostile_make as make

if sys.platform != "linux":
    pytest.skip("memory is limited the Linux way", allow_module_level=True)

HERE = Path(__file__).parent
REFUSED = "VerificationFailedError"


@pytest.fixture(scope="session")
def kit(make_elf, make_container, make_entry, make_digest):
    return make.Kit(make_elf, make_container, make_entry, make_digest)


@pytest.fixture(scope="session")
def child(kit, tmp_path_factory):
    environ = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    good = tmp_path_factory.mktemp("good") / f"canary-1.0-{make.TAG}.whl"
    good.write_bytes(make.pack(kit.members()))
    command = [sys.executable, str(HERE / "hostile_child.py"), str(good)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def attempt(child, tmp_path):
    """Give the bytes of a wheel to every operation: (outcomes, all files there are afterwards, by path)."""

    def run(content):
        for folder in ("in", "out", "tmp"):
            (tmp_path / "case" / folder).mkdir(parents=True)
        (tmp_path / "beside.py").write_bytes(b"untouched")
        wheel = tmp_path / "case" / "in" / f"canary-1.0-{make.TAG}.whl"
        wheel.write_bytes(content)
        print(tmp_path / "case", file=child.stdin, flush=True)
        outcomes = json.loads(child.stdout.readline())
        there = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if not path.is_dir()}
        assert there.pop("beside.py").read_bytes() == b"untouched"
        assert there.pop(str(wheel.relative_to(tmp_path))).read_bytes() == content
        return outcomes, sorted(there)

    return run


def test_there_are_enough():
    assert len(corpus.CASES) >= 60


def test_the_good_wheel_passes(kit, attempt):
    """So that a case fails for what is hostile in it."""
    outcomes, there = attempt(make.pack(kit.members()))
    assert [outcomes["verify"], outcomes["inspect"][0]] == [["passed", ""], "ok"]
    assert there == [f"case/out/{outcomes['repair'][1]}"]


@pytest.mark.parametrize("name", sorted(corpus.CASES.keys() - corpus.LARGE))
def test_hostile(name, kit, attempt):
    hold(name, kit, attempt)


def hold(name, kit, attempt):
    case = corpus.CASES[name]
    outcomes, there = attempt(case.make(kit))
    kind, text = outcomes["verify"]
    assert kind == "failed", outcomes
    assert re.search(case.says, text), text
    wanted = {"refused": REFUSED, "ok": "ok"}
    assert outcomes["inspect"][0] == wanted[case.inspect], outcomes["inspect"]
    assert outcomes["repair"][0] == wanted[case.repair], outcomes["repair"]
    assert len(text) < 50_000
    assert there == ([f"case/out/{outcomes['repair'][1]}"] if case.repair == "ok" else [])
