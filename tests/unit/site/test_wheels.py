"""What is said of a wheel follows from its record, page and reports; what a hostile runner wrote is
text.
"""

import json

import pytest

from farm.base.text import MAX_SHORT, short
from farm.index.changes import record_event
from farm.site.smoke_reports import kept_tests
from farm.site.wheels import wheels, with_tests

VERSION = "2.0.1+cu117.sm35.avx"
TORCH = f"torch-{VERSION}-cp311-cp311-manylinux_2_28_x86_64.whl"
PURE = "pure-1.0-py3-none-any.whl"
CPU = {
    "group": "cpu",
    "name": "matmul float32 on cpu",
    "status": "passed",
    "reason": None,
    "seen": "5 sizes",
}
CARD = {
    "group": "cuda",
    "name": "matmul float32 on cuda",
    "status": "failed",
    "reason": None,
    "seen": "nan",
}
PASSED = {
    "outcome": "passed",
    "emulated": None,
    "facts": {"machine": "x86_64", "python": "3.11.2"},
    "checks": [CPU],
}
FAILED = PASSED | {"outcome": "failed", "checks": [CPU | {"status": "failed"}]}


@pytest.fixture
def keep(store):
    """Puts reports about a wheel into the index, as `farm.run.smoke.keep_report` does; gives the
    index's wheels.
    """

    def make(filename, *reports):
        for number, (time, report) in enumerate(reports):
            facts = report["facts"] | ({"tested at": time} if time else {})
            data = json.dumps(report | {"facts": facts}).encode()
            store.create(
                f"smoke/{filename}/{number:016x}.json", data, content_type="application/json"
            )
        found = list(wheels(store))
        return with_tests(
            found, kept_tests(store, {wheel.filename: wheel.sha256 for wheel in found})
        )

    return make


def test_wheels_of_every_builder_are_listed(store, put):
    digest = put(TORCH, "sm35-avx")
    put("torch-2.0.1+mine-cp39-cp39-win_amd64.whl", "my-group")
    put("anything-1.0-py3-none-any.whl", "my-group")
    found = {wheel.filename: wheel for wheel in with_tests(wheels(store), {})}
    assert len(found) == 3
    torch = found[TORCH]
    assert (torch.sha256, torch.groups, torch.sms) == (digest, ("sm35-avx",), (35,))
    assert (torch.tags, torch.uploaded[:16]) == (
        ("py311", "manylinux_2_28_x86_64"),
        "2026-11-21T12:00",
    )
    assert (
        found["anything-1.0-py3-none-any.whl"].sms,
        found["anything-1.0-py3-none-any.whl"].tags[0],
    ) == ((), "py3")


def test_the_page_claims_only_what_the_record_holds(store, put, put_verified):
    put(TORCH, "sm35-avx")
    put_verified(
        TORCH.replace("cp311", "cp310"),
        "sm35-avx",
        {"report": {"sha256": "ab" * 32, "sass": ["30"]}},
    )
    found = {wheel.tags[0]: wheel for wheel in wheels(store)}
    assert found["py311"].checked == "adopted and not verified"
    assert found["py310"].checked == f"verified: report {'ab' * 6}"
    assert (found["py310"].sms, found["py310"].report.code) == ((30,), "sm_30; CPU: not checked")
    assert {wheel.state for wheel in found.values()} == {"published"}


def test_a_yanked_wheel_shows_its_reason(store, put):
    put(TORCH, "sm35-avx")
    record_event(store, [TORCH], "yank", "wrong flags")
    (gone,) = wheels(store)
    assert gone.withdrawn == "yanked: wrong flags"
    record_event(store, [TORCH], "unyank", "")
    assert [wheel.withdrawn for wheel in wheels(store)] == [None]


def test_a_smoke_test_that_passed_counts_and_one_that_failed_does_not(put, keep):
    put(TORCH, "sm35-avx")
    put(PURE, "cpu-avx2")
    driver = {
        "group": "cuda",
        "name": "driver",
        "status": "not_run",
        "reason": "no NVIDIA driver",
        "seen": None,
    }
    card = {
        "group": "cuda",
        "name": "devices",
        "status": "passed",
        "reason": None,
        "seen": "0: Tesla K40m (sm_35)",
    }
    emulated = PASSED | {"emulated": "SandyBridge", "checks": [CPU, driver]}

    def kept(name, *reports):
        return next(
            wheel
            for wheel in keep(name, *((None, each) for each in reports))
            if wheel.filename == name
        )

    first = kept(TORCH, emulated)
    assert first.state == "tested"  # for a GPU, whose part was not run
    outcome = "CPU part passed; GPU part not run: no NVIDIA driver"
    assert [(s.where, s.outcome) for s in first.tests] == [("SandyBridge (emulated)", outcome)]
    on_card = kept(TORCH, emulated, PASSED | {"checks": [CPU, card]})
    assert on_card.state == "smoked"
    where = "a real CPU (x86_64), 0: Tesla K40m (sm_35)"
    assert (where, "CPU part passed; GPU part passed") in [
        (s.where, s.outcome) for s in on_card.tests
    ]
    assert kept(PURE, PASSED).state == "smoked"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"outcome": 3', b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_a_valid_report_is_ignored(store, put, keep, raw):
    put(TORCH, "sm35-avx")
    store.create(f"smoke/{TORCH}/{'f' * 16}.json", raw, content_type="application/json")
    other = PASSED | {"facts": {"sha256 of the wheel": "0" * 64}}
    (wheel,) = keep(TORCH, ("2026-11-20T10:00:00+00:00", other))
    assert (wheel.state, wheel.tests) == ("published", ())


def test_text_from_runners_is_cut_to_one_line():
    assert short("a\n\x1b[31mb\u202ec") == "a bc"
    assert len(short("x" * 10_000)) == MAX_SHORT


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_test_on_a_machine_counts(put, keep, backwards):
    put(TORCH, "sm35-avx")
    reports = [("2026-11-20T10:00:00+00:00", FAILED), ("2026-11-20T11:00:00+00:00", PASSED)]
    (wheel,) = keep(TORCH, *(reversed(reports) if backwards else reports))
    assert wheel.state == "tested"
    assert [(s.date, s.outcome) for s in wheel.tests] == [("2026-11-20", "CPU part passed")]


def test_a_failure_is_shown_even_if_another_machine_passed_or_did_not_run(put, keep):
    put(TORCH, "sm35-avx")
    card = PASSED | {"outcome": "failed", "checks": [CPU, CARD]}
    (wheel,) = keep(
        TORCH, ("2026-11-20T10:00:00+00:00", card), ("2026-11-21T10:00:00+00:00", PASSED)
    )
    assert (wheel.state, len(wheel.tests)) == ("broken", 2)


def test_a_crash_is_reported_as_such(put, keep):
    put(TORCH, "sm35-avx")
    crashed = PASSED | {"outcome": "failed", "reason": "ended by SIGILL in the check 'conv2d'"}
    not_run = PASSED | {"outcome": "not_run", "checks": []}
    (wheel,) = keep(TORCH, ("2026-11-20T10:00:00+00:00", crashed), (None, not_run))
    assert wheel.state == "broken"
    assert [smoke.outcome for smoke in wheel.tests] == [
        "CPU part passed; ended by SIGILL in the check 'conv2d'"
    ]


def test_a_report_without_a_date_says_so(put, keep):
    put(TORCH, "sm35-avx")
    (wheel,) = keep(TORCH, (None, PASSED))
    assert [(s.date, s.where) for s in wheel.tests] == [
        ("date not recorded", "a real CPU (x86_64)")
    ]


@pytest.mark.parametrize(
    ("abi", "several"), [("cp37-abi3", True), ("py3-none", True), ("cp311-cp311", False)]
)
def test_a_wheel_for_several_pythons_says_which_one_tested_it(put, keep, abi, several):
    name = TORCH.replace("cp311-cp311", abi)
    put(name, "sm35-avx")
    (wheel,) = keep(name, ("2026-11-20T10:00:00+00:00", PASSED))
    assert wheel.tests[0].where == "a real CPU (x86_64)" + (", Python 3.11.2" if several else "")
