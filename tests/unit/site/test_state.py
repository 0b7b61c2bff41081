"""What became of the offers: wheels of the index, runs of the journal, and what a hostile runner wrote there."""

import json
from dataclasses import replace

import pytest

from farm.base.text import MAX_SHORT, short
from farm.index.lifecycle import record_event
from farm.run.journal import Journal, Request
from farm.site.state import Known, runs, wheels
from farm.site.tested import kept_tests

PLAN = {"package": "torch", "variant": "sm35-avx-py311", "version": "2.0.1+cu117.sm35.avx", "platform": "linux"}
KEY = "torch|2.0.1+cu117.sm35.avx|py311|linux"


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "farm.db") as opened:
        yield opened


@pytest.fixture
def offer(offered):
    (found,) = [o for o in offered if o.key == KEY and o.channel == "kepler-2.0.1"]
    return found


def view(journal, tmp_path):
    return list(runs(journal, tmp_path / "runs"))


def test_a_wheel_is_known_by_what_it_is_for(store, put):
    digest = put("torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    put("torch-2.0.1+cu114.sm35.avx-cp39-cp39-win_amd64.whl", "sm35-avx")
    put("torch-2.0.1+cu114.sm35.avx-cp314-cp314t-win_amd64.whl", "sm35-avx")
    found = {wheel.key: wheel for wheel in wheels(store)}
    windows = {f"torch|2.0.1+cu114.sm35.avx|{python}|windows" for python in ("py39", "py314t")}
    assert set(found) == {KEY, *windows}
    assert found[KEY].sha256 == digest
    assert found[KEY].uploaded.startswith("2026-11-21T12:00")


def test_states_follow_the_run_and_the_index(journal, tmp_path, offer, known):
    nothing = Known.of([], [])
    assert nothing.state(offer) == ("open", "")
    assert known.state(offer) == ("published", "")
    run = journal.create_run("a" * 64, Request(), PLAN)
    job = journal.create_job(run.id, "build")
    attempt = journal.create_attempt(job.id, "swarm", "windows-1")
    journal.set_state(attempt.id, "queued", why="no runner with the labels gpu, sm35 is online")
    waiting = Known.of([], view(journal, tmp_path))
    assert waiting.state(offer) == ("waiting", "no runner with the labels gpu, sm35 is online")
    journal.set_state(attempt.id, "done", "failure")
    journal.event(run.id, "error", text="the compiler failed: nvcc exit 2", hint=None)
    journal.finish_run(run.id, "failure", 5)
    assert Known.of([], view(journal, tmp_path)).state(offer) == ("failed", "the compiler failed: nvcc exit 2")
    assert Known.of(known.wheels, view(journal, tmp_path)).state(offer)[0] == "published"
    assert nothing.state(replace(offer, blocked="no")) == ("blocked", "no")


def test_a_smoke_test_that_passed_counts_and_one_that_failed_does_not(journal, tmp_path, offer, known):
    run = journal.create_run("a" * 64, Request(), PLAN)
    folder = tmp_path / "runs" / run.id
    folder.mkdir(parents=True)
    cpu = {"group": "cpu", "name": "matmul float32 on cpu", "status": "passed", "reason": None, "seen": "5 sizes"}
    driver = {"group": "cuda", "name": "driver", "status": "not_run", "reason": "no NVIDIA driver", "seen": None}
    card = {"group": "cuda", "name": "devices", "status": "passed", "reason": None, "seen": "0: Tesla K40m (sm_35)"}
    report = {"outcome": "failed", "emulated": "SandyBridge", "facts": {}, "checks": [cpu, driver]}
    (folder / "smoke-SandyBridge.json").write_text(json.dumps(report))
    journal.finish_run(run.id, "failure", 8)
    both = Known.of(known.wheels, view(journal, tmp_path))
    assert both.state(offer)[0] == "broken"
    assert both.state(replace(offer, cuda=None))[0] == "broken"
    (folder / "smoke-SandyBridge.json").write_text(json.dumps(report | {"outcome": "passed"}))
    both = Known.of(known.wheels, view(journal, tmp_path))
    assert both.state(offer)[0] == "tested"  # for a GPU, whose part was not run
    assert both.state(replace(offer, cuda=None))[0] == "smoked"
    told = "CPU part passed; GPU part not run: no NVIDIA driver"
    assert [(s.where, s.outcome) for s in both.smokes(offer)] == [("SandyBridge (emulated)", told)]
    on_card = report | {"outcome": "passed", "emulated": None, "checks": [cpu, card], "facts": {"machine": "x86_64"}}
    (folder / "smoke.json").write_text(json.dumps(on_card))
    both = Known.of(known.wheels, view(journal, tmp_path))
    assert both.state(offer)[0] == "smoked"
    where = "a real CPU (x86_64), 0: Tesla K40m (sm_35)"
    assert (where, "CPU part passed; GPU part passed") in [(s.where, s.outcome) for s in both.smokes(offer)]


def test_what_the_compiler_cache_answered_is_added_up(journal, tmp_path):
    run = journal.create_run("a" * 64, Request(), PLAN)
    built = tmp_path / "runs" / run.id / "built"
    built.mkdir(parents=True)
    row = {"language": "C++", "axis": "cpu"}
    counts = {"direct": 70, "preprocessed": 5, "miss": 20, "other": 5}
    rows = [row | {"result": result, "count": count} for result, count in counts.items()]
    (built / "cache.json").write_text(json.dumps({"schema": 1, "rows": rows}))
    (seen,) = view(journal, tmp_path)
    assert seen.cached == (75, 100)
    for wrong in (b"", b"[]", b'{"schema": 1, "rows": []}', b'{"schema": 1, "rows": [{"count": -1}]}', b"[" * 100_000):
        (built / "cache.json").write_bytes(wrong)
        (seen,) = view(journal, tmp_path)
        assert seen.cached is None


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"outcome": 3', b"\xff\xfe", b"[" * 100_000])
def test_a_report_that_is_none_tells_nothing(journal, tmp_path, raw):
    run = journal.create_run("a" * 64, Request(), PLAN)
    folder = tmp_path / "runs" / run.id
    folder.mkdir(parents=True)
    (folder / "smoke.json").write_bytes(raw)
    (seen,) = view(journal, tmp_path)
    assert seen.smokes == ()


def test_times_of_steps_are_numbers_whatever_the_journal_holds(journal, tmp_path):
    run = journal.create_run("a" * 64, Request(), PLAN)
    journal.event(run.id, "step", name="build", seconds=12.5, outcome="done")
    journal.event(run.id, "step", name="x\x1b[2J" + "y" * 5000, seconds="long", outcome=None)
    journal.event(run.id, "step", name="smoke", seconds=-3, outcome="done")
    (seen,) = view(journal, tmp_path)
    assert [step.seconds for step in seen.steps] == [12.5, 0.0, 0.0]
    assert seen.steps[1].name.startswith("xy")
    assert len(seen.steps[1].name) == MAX_SHORT


def test_texts_of_runners_are_one_short_line():
    assert short("a\n\x1b[31mb\u202ec") == "a bc"
    assert len(short("x" * 10_000)) == MAX_SHORT


def test_the_newest_rebuild_is_the_wheel_of_an_offer(store, put, offer):
    put("torch-2.0.1+cu117.sm35.avx.2-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    put("torch-2.0.1+cu117.sm35.avx.10-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    put("torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    known = Known.of(wheels(store), [])
    assert known.wheel(offer).version == "2.0.1+cu117.sm35.avx.10"
    assert len(known.wheels) == 3


def test_a_wheel_with_the_stable_abi_is_for_every_python(store, put, offered):
    put("canary-0.1.0+cu118.sm35.avx-cp37-abi3-manylinux_2_34_x86_64.whl", "sm35-avx")
    known = Known.of(wheels(store), [])
    found = {o.variant for o in offered if known.wheel(o)}
    assert found == {"sm35-avx-py311"}  # the one Python that the matrix offers canary for


def test_what_is_yanked_is_not_shown(store, put, offer):
    put("torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    name = "torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl"
    record_event(store, [name], "yank", "wrong flags")
    withdrawn = Known.of(wheels(store), [])
    assert (withdrawn.wheels, withdrawn.wheel(offer)) == ([], None)
    # It was built: that it is not built yet would be wrong.
    assert withdrawn.state(offer) == ("withdrawn", "yanked: wrong flags")
    record_event(store, [name], "unyank", "")
    assert Known.of(wheels(store), []).state(offer) == ("published", "")


CPU = {"group": "cpu", "name": "matmul float32 on cpu", "status": "passed", "reason": None, "seen": "5 sizes"}
CARD = {"group": "cuda", "name": "matmul float32 on cuda", "status": "failed", "reason": None, "seen": "nan"}
PASSED = {"outcome": "passed", "emulated": None, "facts": {"machine": "x86_64", "python": "3.11.2"}, "checks": [CPU]}
FAILED = PASSED | {"outcome": "failed", "checks": [CPU | {"status": "failed"}]}
TORCH = "torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def keep(store):
    """Puts reports about a wheel into the index, as `farm.run.smoke.keep_report` does."""

    def make(filename, *reports):
        for number, (time, report) in enumerate(reports):
            facts = report["facts"] | ({"tested at": time} if time else {})
            data = json.dumps(report | {"facts": facts}).encode()
            store.create(f"smoke/{filename}/{number:016x}.json", data, content_type="application/json")
        found = list(wheels(store))
        return Known.of(found, [], kept_tests(store, {wheel.filename: wheel.sha256 for wheel in found}))

    return make


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_test_on_a_machine_counts(put, keep, offer, backwards):
    put(TORCH, "sm35-avx")
    reports = [("2026-11-20T10:00:00+00:00", FAILED), ("2026-11-20T11:00:00+00:00", PASSED)]
    known = keep(TORCH, *(reversed(reports) if backwards else reports))
    assert known.state(offer) == ("tested", "")
    assert [(s.date, s.outcome) for s in known.smokes(offer)] == [("2026-11-20", "CPU part passed")]


def test_a_card_that_failed_is_not_forgotten_for_a_machine_without_one(put, keep, offer):
    put(TORCH, "sm35-avx")
    card = PASSED | {"outcome": "failed", "checks": [CPU, CARD]}
    known = keep(TORCH, ("2026-11-20T10:00:00+00:00", card), ("2026-11-21T10:00:00+00:00", PASSED))
    assert known.state(offer)[0] == "broken"
    assert len(known.smokes(offer)) == 2


def test_a_crash_is_said_and_a_test_that_did_not_run_does_not_hide_it(put, keep, offer):
    put(TORCH, "sm35-avx")
    crashed = PASSED | {"outcome": "failed", "reason": "ended by SIGILL in the check 'conv2d'"}
    not_run = PASSED | {"outcome": "not_run", "checks": []}
    known = keep(TORCH, ("2026-11-20T10:00:00+00:00", crashed), ("2026-11-21T10:00:00+00:00", not_run))
    assert known.state(offer)[0] == "broken"
    (smoke,) = known.smokes(offer)
    assert smoke.outcome == "CPU part passed; ended by SIGILL in the check 'conv2d'"


def test_a_report_without_a_date_says_so(put, keep, offer):
    put(TORCH, "sm35-avx")
    known = keep(TORCH, (None, PASSED))
    assert [(s.date, s.where) for s in known.smokes(offer)] == [("date not recorded", "a real CPU (x86_64)")]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"facts": 3, "outcome": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_kept_report_that_is_none_tells_nothing(store, put, keep, offer, raw):
    put(TORCH, "sm35-avx")
    store.create(f"smoke/{TORCH}/{'f' * 16}.json", raw, content_type="application/json")
    other = PASSED | {"facts": {"sha256 of the wheel": "0" * 64}}
    known = keep(TORCH, ("2026-11-20T10:00:00+00:00", other))
    assert known.state(offer) == ("published", "")


def test_a_test_of_an_earlier_rebuild_says_nothing_of_this_one(journal, tmp_path, put, keep, store, offer):
    put(TORCH, "sm35-avx")
    run = journal.create_run("a" * 64, Request(), PLAN)
    (tmp_path / "runs" / run.id).mkdir(parents=True)
    (tmp_path / "runs" / run.id / "smoke.json").write_text(json.dumps(PASSED))
    journal.finish_run(run.id, "success", 0)
    tests = keep(TORCH, ("2026-11-20T10:00:00+00:00", PASSED)).tests
    assert Known.of(wheels(store), view(journal, tmp_path), tests).state(offer)[0] == "tested"
    put(TORCH.replace("avx-", "avx.1-"), "sm35-avx")
    assert Known.of(wheels(store), view(journal, tmp_path), tests).state(offer)[0] == "published"
    run = journal.create_run("a" * 64, Request(), PLAN | {"version": PLAN["version"] + ".1"})
    # A rebuild that is under way is one of the offer, too.
    assert Known.of(wheels(store), view(journal, tmp_path), tests).state(offer)[0] in ("running", "waiting")
    (tmp_path / "runs" / run.id).mkdir(parents=True)
    (tmp_path / "runs" / run.id / "smoke.json").write_text(json.dumps(PASSED))
    journal.finish_run(run.id, "success", 0)
    assert Known.of(wheels(store), view(journal, tmp_path), tests).state(offer)[0] == "tested"


@pytest.mark.parametrize("abi", ["cp37-abi3", "py3-none"])
def test_a_wheel_for_several_pythons_says_which_one_tested_it(put, keep, offer, abi):
    name = TORCH.replace("cp311-cp311", abi)
    put(name, "sm35-avx")
    known = keep(name, ("2026-11-20T10:00:00+00:00", PASSED))
    later = replace(offer, python="py312")
    assert known.state(offer)[0] == known.state(later)[0] == "tested"
    assert known.smokes(offer) == known.smokes(later)
    assert known.smokes(later)[0].where == "a real CPU (x86_64), Python 3.11.2"
    older = replace(offer, python="py36")  # not that any channel has it
    assert known.state(older)[0] == ("open" if abi.endswith("abi3") else "tested")
    free = replace(offer, python="py313t")  # it does not load the stable ABI
    assert known.state(free)[0] == ("open" if abi.endswith("abi3") else "tested")


@pytest.mark.parametrize("package", ["My_Pack.age", "my-pack-age"])
def test_names_and_versions_are_those_of_the_file(journal, tmp_path, put, keep, offer, package):
    name = "my_pack_age-2024.1+cu117.sm35.avx-1-cp311-cp311-manylinux_2_28_x86_64.whl"
    put(name, "sm35-avx")
    theirs = replace(offer, package=package, version="2024.01+cu117.sm35.avx")
    known = keep(name, ("2026-11-20T10:00:00+00:00", PASSED))
    assert known.state(theirs)[0] == "tested"
    run = journal.create_run("a" * 64, Request(), PLAN | {"package": package, "version": theirs.version})
    (tmp_path / "runs" / run.id).mkdir(parents=True)
    (tmp_path / "runs" / run.id / "smoke.json").write_text(json.dumps(PASSED))
    journal.finish_run(run.id, "success", 0)
    assert Known.of(known.wheels, view(journal, tmp_path)).state(theirs)[0] == "tested"
