"""Every hostile file is refused with a clear error, in bounded memory and time, and leaves nothing
anywhere.
"""

import contextlib
import re
import signal
import sys
from pathlib import Path

import pytest

from farm.base.errors import FarmError
from farm.policy.rules import Policy
from farm.wheel.inspect import inspect
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify
from tests.unit.wheel import hostile_corpus as corpus
from tests.unit.wheel import hostile_make as make

if sys.platform != "linux":
    pytest.skip("memory is limited the Linux way", allow_module_level=True)

import resource

REFUSED = "VerificationFailedError"
MEMORY = 256 << 20
SECONDS = 20  # of CPU
POLICY = Policy(
    name="canary", version="1.0", python="cp311", platform="linux_x86_64", sass=(35,), cpu="avx"
)


@pytest.fixture(scope="session")
def kit(make_elf, make_container, make_entry, make_digest):
    return make.Kit(make_elf, make_container, make_entry, make_digest)


@contextlib.contextmanager
def limits():
    """Little more memory than there is now, and little time.

    Memory is what the process can write to (RLIMIT_DATA): files that are mapped to be read do not
    count.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(
        signal.SIGPROF, lambda *_: pytest.fail(f"more than {SECONDS} s of CPU time")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, before)
        signal.signal(signal.SIGPROF, handler)


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Give the bytes of a wheel to every operation: (outcomes, all files there are afterwards, by
    path).
    """

    def run(content):
        out = tmp_path / "case/out"
        for folder in ("in", "out", "tmp"):
            (tmp_path / "case" / folder).mkdir(parents=True)
        (tmp_path / "beside.py").write_bytes(b"untouched")
        monkeypatch.chdir(tmp_path / "case")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "case/tmp"))
        wheel = tmp_path / "case" / "in" / f"canary-1.0-{make.TAG}.whl"
        wheel.write_bytes(content)
        with limits():
            report = verify(wheel, POLICY)
            found = "\n".join(finding.what for finding in report.findings)
            outcomes = {"verify": ("passed" if report.passed else "failed", found)}
            for name, operation in {
                "inspect": lambda: str(inspect(wheel).to_json()),
                "repair": lambda: repair(wheel, out, RepairOptions(into="canary/lib")).wheel.name,
            }.items():
                try:
                    outcomes[name] = ("ok", operation())
                except FarmError as error:
                    outcomes[name] = (type(error).__name__, str(error))
        there = {
            str(path.relative_to(tmp_path)): path
            for path in tmp_path.rglob("*")
            if not path.is_dir()
        }
        assert there.pop("beside.py").read_bytes() == b"untouched"
        assert there.pop(str(wheel.relative_to(tmp_path))).read_bytes() == content
        return outcomes, sorted(there)

    return run


def test_the_corpus_has_enough_hostile_wheels():
    assert len(corpus.CASES) >= 60


def test_the_good_wheel_passes(kit, attempt):
    """So that a case fails for what is hostile in it."""
    outcomes, there = attempt(make.pack(kit.members()))
    assert [outcomes["verify"], outcomes["inspect"][0]] == [("passed", ""), "ok"]
    assert there == [f"case/out/{outcomes['repair'][1]}"]


@pytest.mark.parametrize("name", sorted(corpus.CASES.keys() - corpus.LARGE))
def test_every_hostile_wheel_is_refused(name, kit, attempt):
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
