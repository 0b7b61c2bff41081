"""The words of a swarm in the farm's: the mapping that was measured on Engine 20.10.24."""

import pytest

from farm.engines.swarm import Node, Task, observation


def nodes(*, up=True):
    return {"n1": Node("host1", cpus=2.0, memory=1, up=up, ready=up)}


def task(state, desired="running", error="", code=None, where="n1"):
    return Task(state, desired, where, error, code)


@pytest.mark.parametrize(
    ("seen", "state", "why", "code"),
    [
        (
            task("pending", error="no suitable node (insufficient resources)"),
            "queued",
            "insufficient resources",
            None,
        ),
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
def test_states_of_swarm_tasks_are_understood(seen, state, why, code):
    found = observation(seen, nodes(), cancelled=False)
    assert (found.state, found.exit_code) == (state, code)
    assert (why is None and found.why in (None, "")) or why in found.why


def test_a_running_task_of_a_node_that_is_down_is_lost():
    for state in ("running", "starting", "assigned"):
        assert observation(task(state), nodes(up=False), cancelled=False).state == "lost"
        assert observation(task(state), {}, cancelled=False).state == "lost"
    assert observation(task("complete", code=0), nodes(up=False), cancelled=False).state == "done"


def test_a_task_that_was_never_made_says_so():
    assert observation(None, {}, cancelled=False).why


@pytest.mark.parametrize("state", ["failed", "shutdown", "remove"])
def test_a_cancelled_task_counts_as_cancelled_once_it_has_ended(state):
    assert (
        observation(task("running", desired="shutdown"), nodes(), cancelled=True).state == "running"
    )
    assert observation(task(state, code=137), nodes(), cancelled=True).state == "cancelled"


def test_a_node_of_the_api():
    data = {
        "ID": "abc",
        "Description": {
            "Hostname": "k40",
            "Platform": {"OS": "linux", "Architecture": "x86_64"},
            "Resources": {"NanoCPUs": 8000000000, "MemoryBytes": 1 << 34},
        },
        "Spec": {"Availability": "pause"},
        "Status": {"State": "ready"},
    }
    assert Node.of(data) == Node("k40", 8.0, 1 << 34, up=True, ready=False)
