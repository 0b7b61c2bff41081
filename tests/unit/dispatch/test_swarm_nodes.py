"""The words of a swarm in the farm's: the mapping that was measured on Engine 20.10.24."""

import pytest

from farm.base.errors import UsageError
from farm.engines.base import Capacity, Job
from farm.engines.swarm import Node, Task, constraints, nodes_of, observation, plain_labels


def node(**changes):
    given = {"id": "n1", "name": "host1", "os": "linux", "machine": "x86_64", "cpus": 2.0, "memory": 1, "gpus": 0}
    return Node(**given | {"labels": frozenset(), "up": True, "ready": True} | changes)


def task(state, desired="running", error="", code=None, where="n1"):
    return Task(state, desired, where, error, code)


@pytest.mark.parametrize(
    ("seen", "state", "why", "code"),
    [
        (task("pending", error="no suitable node (insufficient resources)"), "queued", "insufficient resources", None),
        (task("new"), "queued", "looking for a node", None),
        (task("preparing"), "starting", "host1: preparing", None),
        (task("running"), "running", None, None),
        (task("running", desired="shutdown"), "running", "being stopped", None),
        (task("complete", desired="shutdown", code=0), "done", None, 0),
        (task("failed", error="task: non-zero exit (3)", code=3), "done", "non-zero exit", 3),
        (task("failed", error="starting container failed: no python3"), "lost", "no python3", None),
        (task("rejected", error="No such image: x"), "lost", "No such image: x", None),
        (task("orphaned"), "lost", "the node is gone", None),
        (task("shutdown"), "lost", "stopped from outside", None),
    ],
)
def test_states(seen, state, why, code):
    found = observation(seen, [node()], cancelled=False)
    assert (found.state, found.exit_code) == (state, code)
    assert (why is None and found.why in (None, "")) or why in found.why


def test_a_running_task_of_a_node_that_is_down_is_lost():
    for state in ("running", "starting", "assigned"):
        assert observation(task(state), [node(up=False)], cancelled=False).state == "lost"
        assert observation(task(state), [], cancelled=False).state == "lost"
    assert observation(task("complete", code=0), [node(up=False)], cancelled=False).state == "done"


def test_a_task_that_waits_for_a_node_that_is_gone_is_lost():
    waiting = task("pending", where=None)
    assert observation(waiting, [node()], cancelled=False, pinned="n1").state == "queued"
    assert observation(waiting, [node(ready=False)], cancelled=False, pinned="n1").state == "lost"
    assert observation(waiting, [], cancelled=False, pinned="n1").state == "lost"


def test_a_task_that_was_never_made_says_so():
    assert observation(None, [], cancelled=False).why


@pytest.mark.parametrize("state", ["failed", "shutdown", "remove"])
def test_what_was_cancelled_is_cancelled_only_when_it_has_ended(state):
    assert observation(task("running", desired="shutdown"), [node()], cancelled=True).state == "running"
    assert observation(task(state, code=137), [node()], cancelled=True).state == "cancelled"


def test_a_node_of_the_api():
    data = {
        "ID": "abc",
        "Description": {
            "Hostname": "k40",
            "Platform": {"OS": "linux", "Architecture": "x86_64"},
            "Resources": {
                "NanoCPUs": 8000000000,
                "MemoryBytes": 1 << 34,
                "GenericResources": [
                    {"NamedResourceSpec": {"Kind": "gpu", "Value": "K40-0"}},
                    {"DiscreteResourceSpec": {"Kind": "gpu", "Value": 2}},
                    {"DiscreteResourceSpec": {"Kind": "ssd", "Value": 9}},
                ],
            },
        },
        "Spec": {"Labels": {"farm.sm35": "1", "farm.avx2": "0"}, "Availability": "pause"},
        "Status": {"State": "ready"},
    }
    (found,) = nodes_of([data])
    assert found == Node("abc", "k40", "linux", "x86_64", 8.0, 1 << 34, 3, frozenset({"sm35"}), up=True, ready=False)


def job(**changes):
    return Job("t", "i", ("true",), {}, "/o", {}, Capacity(1, 1), 60, **changes)


def test_constraints():
    asked = job(platform="windows", requires=("ltsc2019", "avx"), runner="n2", excluded=("n1",))
    assert constraints(asked) == [
        "node.platform.os == windows",
        "node.labels.farm.ltsc2019 == 1",
        "node.labels.farm.avx == 1",
        "node.id != n1",
        "node.id == n2",
    ]


@pytest.mark.parametrize("word", ["", "a b", "a==1", "x\n", "sm>=35", "-x", "a" * 200])
def test_a_label_that_is_no_word_is_refused(word):
    with pytest.raises(UsageError):
        constraints(job(requires=(word,)))
    with pytest.raises(UsageError):
        plain_labels({"farm.run": word})
