"""Who goes where, who waits and why: farm.run.queue."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from farm.run.queue import Needs, Queue, QueueRunner, Task, fits
from tests.examples import examples

X86 = QueueRunner("x86")


def placed(decision):
    return [(placement.task.id, placement.worker) for placement in decision.placed]


def test_priority_goes_first_then_age():
    tasks = [
        Task("young", created=2),
        Task("old", created=1),
        Task("urgent", created=9, priority=1),
    ]
    order = []
    while len(order) < 3:
        waiting = [task for task in tasks if task.id not in order]
        order += [name for name, _ in placed(Queue().decide(0, waiting, [X86]))]
    assert order == ["urgent", "old", "young"]


def test_a_runner_takes_as_many_as_it_has_slots_and_the_least_busy_is_first():
    workers = [QueueRunner("a", slots=3), QueueRunner("b", slots=2)]
    decision = Queue().decide(0, [Task(f"t{n}") for n in range(5)], workers, ["a"])
    assert [name for _, name in placed(decision)] == ["b", "a", "b", "a"]
    assert decision.waiting == {"t4": "every runner that fits is busy: a, b"}


def test_a_reason_does_not_change_while_it_is_the_same():
    """Each change is an event in the journal: with minutes in it, a queue of 500 runs wrote 30
    MB.
    """
    queue, tasks = Queue(), [Task("a"), Task("b"), Task("far", Needs(machine="aarch64"))]
    first = queue.decide(0, tasks, [X86], ["x86"]).waiting
    assert queue.decide(60, tasks, [X86], ["x86"]).waiting == first
    assert set(first) == {"a", "b", "far"}


def test_patience_counts_from_the_first_time_that_nothing_fits():
    queue, task = Queue(grace_s=100), Task("t")
    assert queue.decide(7200, [task], []).waiting == {
        "t": "there is no runner at all; given up after 100 s"
    }
    assert queue.decide(7299, [task], []).refused == {}
    assert queue.decide(7300, [task], []).refused == {"t": "there is no runner at all, for 100 s"}
    assert queue.decide(7301, [task], []).waiting  # asked for anew


def test_a_runner_that_comes_back_within_the_grace_ends_the_count():
    queue, task, off = Queue(grace_s=100), Task("t"), QueueRunner("x86", online=False)
    assert "(x86 would)" in queue.decide(0, [task], [off]).waiting["t"]
    assert placed(queue.decide(90, [task], [X86])) == [("t", "x86")]
    assert queue.decide(110, [task], [off]).refused == {}


def test_runners_that_would_fit_are_named_three_at_most():
    off = [QueueRunner(f"w{n}", online=False) for n in (4, 2, 3, 1)]
    assert "(w1, w2, w3 would)" in Queue().decide(0, [Task("t")], off).waiting["t"]


def test_the_nearest_runner_lacks_least():
    far, near = (
        QueueRunner("far", platform="windows", machine="aarch64"),
        QueueRunner("near", machine="aarch64"),
    )
    assert (
        "the nearest, near: it is aarch64"
        in Queue().decide(0, [Task("t")], [far, near]).waiting["t"]
    )


def test_a_machine_that_emulates_takes_what_none_of_the_kind_is_online_for():
    task, emulator = Task("t", Needs(machine="aarch64")), QueueRunner("x86", emulates=True)
    arm = QueueRunner("arm", machine="aarch64")
    assert placed(Queue().decide(0, [task], [emulator, arm])) == [("t", "arm")]
    assert placed(Queue().decide(0, [task], [emulator, replace(arm, online=False)])) == [
        ("t", "x86")
    ]
    waiting = Queue().decide(0, [task], [emulator, arm], ["arm"]).waiting
    assert waiting == {"t": "every runner that fits is busy: arm"}, "a native build is soon done"


def test_a_task_comes_after_those_that_it_needs_and_falls_with_them():
    task = Task("t", after=frozenset("dbca"))
    assert Queue().decide(0, [task], [X86]).waiting == {"t": "it comes after a, b, c"}
    assert placed(Queue().decide(0, [task], [X86], done=set("abcd"))) == [("t", "x86")]
    assert Queue().decide(0, [task], [X86], failed={"c", "b"}).refused == {
        "t": "b, which it needs, did not succeed"
    }


def test_a_runner_that_lost_it_is_not_given_it_again():
    task = Task("t", Needs(excluded=frozenset({"a"})))
    assert placed(Queue().decide(0, [task], [QueueRunner("a"), QueueRunner("b")])) == [("t", "b")]
    assert "it lost this job before" in Queue().decide(0, [task], [QueueRunner("a")]).waiting["t"]


def test_every_reason_against_a_runner_is_given():
    needs = Needs("windows", "aarch64", frozenset({"avx"}), memory=64 << 30)
    assert fits(needs, QueueRunner("small", memory=8 << 30)) == (
        "it runs linux, not windows",
        "it is x86_64, not aarch64",
        "it has no label avx",
        "it has 8.6 GB of memory, 68.7 are needed",
    )


LABELS = st.frozensets(st.sampled_from(["a", "b"]))
NAMES = st.sampled_from([f"w{n}" for n in range(6)])
WORKERS = st.lists(
    st.builds(
        QueueRunner,
        name=NAMES,
        machine=st.sampled_from(["x86_64", "aarch64"]),
        labels=LABELS,
        slots=st.integers(0, 3),
        online=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda worker: worker.name,
)
TASKS = st.lists(
    st.builds(
        Task,
        id=st.sampled_from([f"t{n}" for n in range(12)]),
        needs=st.builds(
            Needs,
            machine=st.sampled_from(["x86_64", "aarch64"]),
            labels=LABELS,
            excluded=st.frozensets(NAMES, max_size=2),
        ),
        priority=st.integers(-2, 2),
        created=st.floats(0, 1e5),
        after=st.frozensets(st.sampled_from([f"t{n}" for n in range(12)]), max_size=1),
    ),
    max_size=12,
    unique_by=lambda task: task.id,
)


@given(TASKS, WORKERS, st.lists(NAMES, max_size=6))
@examples(300)
def test_every_task_is_decided_and_order_is_kept(tasks, workers, running):
    decision = Queue().decide(1e5, tasks, workers, running)
    names = [p.task.id for p in decision.placed]
    assert sorted([*names, *decision.waiting, *decision.refused]) == sorted(
        task.id for task in tasks
    )
    assert all(decision.waiting.values())
    by_name = {worker.name: worker for worker in workers}
    for task, name in decision.placed:
        assert by_name[name].online
        assert fits(task.needs, by_name[name]) == ()
        assert not task.after
    free = {}
    for worker in workers:
        new = sum(p.worker == worker.name for p in decision.placed)
        free[worker.name] = worker.slots - running.count(worker.name) - new
        assert new == 0 or free[worker.name] >= 0
    # one that waits could start nowhere, and nothing less urgent that needs the same has started
    for task in tasks:
        if task.id in decision.waiting and not task.after:
            assert not [
                w for w in workers if w.online and not fits(task.needs, w) and free[w.name] > 0
            ]
            later = [p.task for p in decision.placed if p.task.needs == task.needs]
            assert all(
                (-other.priority, other.created) <= (-task.priority, task.created)
                for other in later
            )
