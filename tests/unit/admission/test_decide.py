"""Who goes where, who waits and why: farm.engines.admission."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.engines.admission import Admission, Running, Task, Worker, fits
from tests.examples import examples

X86, ARM = Worker("x86"), Worker("arm", machine="aarch64")


def placed(decision):
    return [(p.task.id, p.worker) for p in decision.placed]


def test_priority_goes_before_length_and_length_before_age():
    tasks = [
        Task("old", minutes=10, created=0),
        Task("long", minutes=90, created=5),
        Task("urgent", minutes=1, created=9, priority=1),
    ]
    admission, order = Admission(), []
    for now in (10.0, 20.0, 30.0):
        waiting = [task for task in tasks if task.id not in order]
        order += [name for name, _ in placed(admission.decide(now, waiting, [X86]))]
    assert order == ["urgent", "long", "old"]


def test_of_equal_length_the_older_goes_first():
    decision = Admission().decide(9, [Task("b", created=2), Task("a", created=1)], [X86])
    assert placed(decision) == [("a", "x86")]


def test_what_few_runners_fit_goes_first():
    common, rare = Task("common", minutes=60), Task("rare", minutes=5, labels=frozenset({"big"}))
    big = Worker("big", labels=frozenset({"big"}))
    assert placed(Admission().decide(0, [common, rare], [big, X86])) == [("rare", "big"), ("common", "x86")]


def test_waiting_long_enough_is_worth_a_step_of_priority():
    low = Task("low", created=0, priority=0)
    high = Task("high", created=5 * 3600.0, priority=1)
    assert placed(Admission().decide(5 * 3600.0, [high, low], [X86])) == [("low", "x86")]
    young = Task("low", created=4.9 * 3600.0, priority=0)
    assert placed(Admission().decide(5 * 3600.0, [high, young], [X86])) == [("high", "x86")]


def test_a_build_is_kept_off_the_gpu_host_and_the_file_can_allow_it():
    gpu = Worker("k40", gpus=1, labels=frozenset({"sm35"}))
    build, smoke = Task("build"), Task("smoke", kind="smoke", gpus=1, labels=frozenset({"sm35"}))
    decision = Admission().decide(0, [build, smoke], [gpu])
    assert placed(decision) == [("smoke", "k40")]
    assert "kept for smoke jobs" in decision.waiting["build"]
    both = Worker("k40", gpus=1, kinds=frozenset({"build", "smoke"}))
    assert placed(Admission().decide(0, [build], [both])) == [("build", "k40")]


def test_a_runner_that_keeps_the_caches_is_preferred_among_equals():
    cold, warm = Worker("a"), Worker("b", caches=frozenset({"cu118"}))
    assert placed(Admission().decide(0, [Task("t", cache_key="cu118")], [cold, warm])) == [("t", "b")]
    assert placed(Admission().decide(0, [Task("t", cache_key="cu118")], [warm, cold])) == [("t", "b")]


def test_runners_are_filled_evenly():
    workers = [Worker("a", slots=3), Worker("b", slots=3), Worker("c", slots=3)]
    running = [Running("r", "a", 60.0)]
    decision = Admission().decide(0, [Task(f"t{n}") for n in range(5)], workers, running)
    names = [p.worker for p in decision.placed]
    assert sorted(names[:2]) == ["b", "c"]
    assert sorted(names) == ["a", "b", "b", "c", "c"]


def test_one_slot_of_each_runner_is_taken_before_a_second_of_any():
    workers = [Worker("b", slots=3), Worker("z", slots=1)]
    decision = Admission().decide(0, [Task("t1"), Task("t2")], workers)
    assert sorted(name for _, name in placed(decision)) == ["b", "z"]


def test_a_cache_saves_five_minutes():
    warm, task = Worker("warm", caches=frozenset({"cu118"})), Task("t", minutes=10, cache_key="cu118")
    for end, chosen in ((302, "warm"), (298, "fast")):  # seconds that the fast one takes; the warm one takes 300
        fast = Worker("fast", speed=600 / end)
        for workers in ([warm, fast], [fast, warm]):
            assert placed(Admission().decide(0, [task], workers)) == [("t", chosen)]


def test_what_is_free_goes_before_what_should_have_ended():
    late, free = Worker("late", labels=frozenset({"x"})), Worker("free")
    decision = Admission().decide(100.0, [Task("t")], [late, free], [Running("r", "late", ends=50.0)])
    assert placed(decision) == [("t", "free")]


def test_a_fast_runner_that_is_soon_free_is_waited_for():
    slow, fast = Worker("slow", speed=0.1), Worker("fast", speed=2.0)
    soon = [Running("other", "fast", ends=120.0)]
    decision = Admission().decide(0, [Task("t", minutes=60)], [slow, fast], soon)
    assert placed(decision) == []
    assert "fast is expected to be free in 2 min" in decision.waiting["t"]
    late = [Running("other", "fast", ends=24 * 3600.0)]
    assert placed(Admission().decide(0, [Task("t", minutes=60)], [slow, fast], late)) == [("t", "slow")]


def test_times_count_from_now():
    slow, fast = Worker("slow", speed=0.1), Worker("fast", speed=2.0)
    soon = [Running("other", "fast", ends=10200.0)]
    decision = Admission().decide(7200.0, [Task("t", minutes=60)], [slow, fast], soon)
    assert decision.waiting == {
        "t": "fast is expected to be free in 50 min: it ends sooner there than on what is free",
    }
    late = [Running("other", "fast", ends=600.0)]  # long since: it will end any moment
    decision = Admission().decide(7200.0, [Task("t", minutes=60)], [slow, fast], late)
    assert "fast is expected to be free in 0 min" in decision.waiting["t"]


@pytest.mark.parametrize(
    ("slots", "ends", "said"),
    [
        (1, [10200.0], "the one slot that fits; x86 is expected to be free in 50 min"),
        (2, [10200.0, 7380.0], "the 2 slots that fit; x86 is expected to be free in 3 min"),
    ],
)
def test_what_finds_all_slots_taken_is_told_when_one_is_free(slots, ends, said):
    running = [Running(f"r{n}", "x86", end) for n, end in enumerate(ends)]
    decision = Admission().decide(7200.0, [Task("t")], [Worker("x86", slots=slots)], running)
    assert decision.waiting == {"t": f"jobs before it have taken {said}"}


def test_patience_counts_from_the_first_time_that_nothing_fits():
    admission, task = Admission(grace_s=100), Task("t")
    assert "given up in 100 s" in admission.decide(7200.0, [task], []).waiting["t"]
    assert "given up in 40 s" in admission.decide(7260.0, [task], []).waiting["t"]
    assert admission.decide(7301.0, [task], []).refused == {"t": "there is no runner at all, for 100 s"}
    assert "given up in 100 s" in admission.decide(7302.0, [task], []).waiting["t"]  # asked for anew


def test_runners_that_would_fit_are_named_three_at_most():
    off = [Worker(f"w{n}", online=False) for n in (4, 2, 3, 1)]
    assert "(w1, w2, w3 would)" in Admission().decide(0, [Task("t")], off).waiting["t"]


def test_the_nearest_runner_lacks_least():
    far, near = Worker("far", platform="windows", machine="aarch64"), Worker("near", machine="aarch64")
    assert "the nearest, near: it is aarch64" in Admission().decide(0, [Task("t")], [far, near]).waiting["t"]


def test_what_needs_another_comes_after_it_and_falls_with_it():
    smoke = Task("smoke", after=frozenset({"build"}))
    decision = Admission().decide(0, [smoke], [X86])
    assert decision.waiting == {"smoke": "it comes after build"}
    assert placed(Admission().decide(0, [smoke], [X86], done={"build"})) == [("smoke", "x86")]
    assert Admission().decide(0, [smoke], [X86], failed={"build"}).refused == {
        "smoke": "build, which it needs, did not succeed"
    }


def test_the_first_of_what_a_task_waits_for_is_named():
    task = Task("t", after=frozenset("dbca"))
    assert Admission().decide(0, [task], [X86]).waiting == {"t": "it comes after a, b, c"}
    assert Admission().decide(0, [task], [X86], failed={"c", "b"}).refused == {
        "t": "b, which it needs, did not succeed"
    }


def test_a_build_that_others_wait_for_goes_before_a_longer_one():
    torch, alone = Task("torch", minutes=30), Task("alone", minutes=60)
    for minutes, first in ((30.5, "torch"), (29.5, "alone")):
        vision = Task("torchvision", minutes=minutes, after=frozenset({"torch"}))
        assert placed(Admission().decide(0, [alone, torch, vision], [X86])) == [(first, "x86")]


def test_a_cycle_waits_and_hangs_nothing():
    a, b = Task("a", after=frozenset({"b"})), Task("b", after=frozenset({"a"}))
    assert set(Admission().decide(0, [a, b], [X86]).waiting) == {"a", "b"}


def test_what_nobody_can_take_is_refused_after_the_grace_and_says_what_is_nearest():
    admission, task = Admission(grace_s=100), Task("t", machine="aarch64")
    first = admission.decide(0, [task], [X86])
    assert "the nearest, x86: it is x86_64, not aarch64" in first.waiting["t"]
    assert admission.decide(99, [task], [X86]).refused == {}
    assert "for 100 s" in admission.decide(100, [task], [X86]).refused["t"]


def test_a_runner_that_comes_back_within_the_grace_ends_the_count():
    admission, task = Admission(grace_s=100), Task("t")
    off = Worker("x86", online=False)
    assert "x86 would" in admission.decide(0, [task], [off]).waiting["t"]
    assert placed(admission.decide(90, [task], [X86])) == [("t", "x86")]
    assert admission.decide(110, [task], [off]).refused == {}


def test_no_runner_at_all_is_said():
    assert "no runner at all" in Admission().decide(0, [Task("t")], []).waiting["t"]


def test_quarantine_doubles_and_a_finished_build_ends_it():
    admission, task = Admission(), Task("t")
    assert admission.failed("x86", 0) == 60
    decision = admission.decide(30, [task], [X86])
    assert placed(decision) == []
    assert "x86 is expected to be free in 0 min" in decision.waiting["t"]
    assert placed(admission.decide(60, [task], [X86])) == [("t", "x86")]
    assert [admission.failed("x86", 0) for _ in range(7)] == [120, 240, 480, 960, 1920, 3600, 3600]
    admission.succeeded("x86")
    assert admission.failed("x86", 0) == 60


def test_a_runner_that_failed_it_is_excluded_and_its_like_is_not():
    twins = [Worker("a"), Worker("b")]
    task = Task("t", excluded=frozenset({"a"}))
    assert placed(Admission().decide(0, [task], twins)) == [("t", "b")]
    assert placed(Admission().decide(0, [task], [Worker("b"), Worker("a")])) == [("t", "b")]
    assert "it failed this job before" in Admission().decide(0, [task], [Worker("a")]).waiting["t"]


@pytest.mark.parametrize(("failures", "again"), [(1, True), (2, True), (3, False)])
def test_a_lost_task_is_tried_again_twice(failures, again):
    assert Admission().may_retry(failures) is again


def test_every_reason_why_not_is_given():
    needs = Task("t", platform="windows", machine="aarch64", labels=frozenset({"avx"}), memory=64 << 30, gpus=1).needs
    small = Worker("small", memory=8 << 30)
    assert fits(needs, small) == (
        "it runs linux, not windows",
        "it is x86_64, not aarch64",
        "it has no label avx",
        "it has 8.6 GB of memory, 68.7 are needed",
        "it has 0 GPUs, 1 are needed",
    )


LABELS = st.frozensets(st.sampled_from(["a", "b"]))
WORKERS = st.lists(
    st.builds(
        Worker,
        name=st.sampled_from([f"w{n}" for n in range(6)]),
        machine=st.sampled_from(["x86_64", "aarch64"]),
        labels=LABELS,
        slots=st.integers(0, 3),
        speed=st.sampled_from([0.5, 1.0, 2.0]),
        online=st.booleans(),
        caches=st.frozensets(st.sampled_from(["k1", "k2"])),
    ),
    max_size=6,
    unique_by=lambda worker: worker.name,
)
TASKS = st.lists(
    st.builds(
        Task,
        id=st.sampled_from([f"t{n}" for n in range(12)]),
        machine=st.sampled_from(["x86_64", "aarch64"]),
        labels=LABELS,
        minutes=st.floats(0, 600),
        priority=st.integers(-2, 2),
        created=st.floats(0, 1e5),
        cache_key=st.sampled_from(["", "k1", "k2"]),
        after=st.frozensets(st.sampled_from([f"t{n}" for n in range(12)]), max_size=1),
        excluded=st.frozensets(st.sampled_from([f"w{n}" for n in range(6)]), max_size=2),
    ),
    max_size=12,
    unique_by=lambda task: task.id,
)


@given(TASKS, WORKERS, st.lists(st.tuples(st.sampled_from([f"w{n}" for n in range(6)]), st.floats(0, 1e5)), max_size=6))
@examples(300)
def test_a_decision_is_whole_and_never_wrong(tasks, workers, busy):
    running = [Running(f"r{n}", name, ends) for n, (name, ends) in enumerate(busy)]
    decision = Admission().decide(1e5, tasks, workers, running)
    names = [p.task.id for p in decision.placed]
    assert sorted([*names, *decision.waiting, *decision.refused]) == sorted(task.id for task in tasks)
    assert all(decision.waiting.values())
    by_name = {worker.name: worker for worker in workers}
    for task, name in decision.placed:
        worker = by_name[name]
        assert worker.online
        assert fits(task.needs, worker) == ()
        assert not task.after
    for worker in workers:
        now = sum(one.worker == worker.name for one in running)
        new = sum(p.worker == worker.name for p in decision.placed)
        assert new <= max(0, worker.slots - now)


@given(TASKS, WORKERS, st.lists(st.tuples(st.sampled_from([f"w{n}" for n in range(6)]), st.floats(0, 2e5)), max_size=6))
@examples(300)
def test_each_task_goes_where_it_ends_first(tasks, workers, busy):
    """The decision replayed, slot by slot and without groups: in the order of the module's first paragraph."""
    now = 1e5
    # Of minutes, not of hours: what a cache saves counts then.
    tasks = [dataclasses.replace(task, after=frozenset(), minutes=task.minutes / 30) for task in tasks]
    decision = Admission().decide(now, tasks, workers, [Running(f"r{n}", *each) for n, each in enumerate(busy)])
    chosen = {p.task.id: p.worker for p in decision.placed}
    slots = []  # [when it is free, its worker, whether that is now]
    for worker in (each for each in workers if each.online):
        taken = [max(ends, now + 1) for name, ends in busy if name == worker.name]
        slots += [[end, worker, False] for end in taken[: worker.slots]]
        slots += [[now, worker, True] for _ in range(worker.slots - len(taken))]

    def fitting(task):
        return [slot for slot in slots if not fits(task.needs, slot[1])]

    def ends(task, slot):
        free, worker, idle = slot
        length = task.minutes * 60 / worker.speed
        warm = idle and task.cache_key and task.cache_key in worker.caches
        return free + (max(0.0, length - 300) if warm else length)

    def rank(task):
        return (task.created / (4 * 3600) - task.priority) // 1, len(fitting(task)), -task.minutes, task.created

    for task in sorted((each for each in tasks if fitting(each)), key=rank):
        able = fitting(task)
        if not any(slot[2] for slot in able):
            assert "jobs before it have taken" in decision.waiting[task.id]
            continue
        best = min(ends(task, slot) for slot in able)
        if task.id in chosen:
            where = [slot for slot in able if slot[1].name == chosen[task.id] and slot[2]]
        else:
            name = decision.waiting[task.id].partition(" is expected")[0]
            where = sorted((slot for slot in able if slot[1].name == name and not slot[2]), key=lambda slot: slot[0])
        slot = where[0]
        assert ends(task, slot) == pytest.approx(best)
        slot[0], slot[2] = ends(task, slot), False


@given(TASKS, st.integers(1, 4))
@examples(100)
def test_equal_runners_never_idle_while_something_can_start(tasks, count):
    workers = [Worker(f"v{n}") for n in range(count)]
    able = [task for task in tasks if not task.after and not fits(task.needs, workers[0])]
    decision = Admission().decide(1e5, tasks, workers)
    assert len(decision.placed) == min(count, len(able))
