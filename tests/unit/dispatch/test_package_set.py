"""Several packages of one command: one channel, the order of their needs, one line to install
them.
"""

import json
import shlex

import pytest

from farm.base.errors import NotBuildableError, UsageError
from farm.cli import builds
from farm.cli.main import main
from farm.plan.channel_choice import channels_in_order
from farm.plan.matrix import load_matrix
from farm.plan.package_set import channel_of_set, makers_first
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from farm.run.needs import PRODUCT, Makers
from farm.run.published import install_lines
from farm.run.run import check_detached, request_for
from tests.plans import plan_of
from tests.unit.dispatch.test_batch import put_with_a_test
from tests.unit.dispatch.test_run_commands import ROOT, journal, project, swarm, workspace

__all__ = ["journal", "project", "swarm", "workspace"]

SET = ("torch", "torchvision", "torchaudio")


def selectors(variant, **changes):
    return BuildRequest(Variant.parse(variant), **changes)


def plans_of(variant, packages=SET):
    channel = channel_of_set(ROOT, selectors(variant), packages)
    return [
        resolve(ROOT, selectors(variant, package=package, channel=channel)) for package in packages
    ]


@pytest.mark.parametrize("variant", ["sm35-avx-py311", "sm61-avx2-py311", "cpu-avx2-py311"])
def test_a_set_has_one_channel_and_is_built_against_its_torch(variant):
    torch, *companions = plans_of(variant)
    assert {plan.channel for plan in companions} == {torch.channel}
    for plan in companions:
        assert plan.needs == [f"torch=={torch.version}"]


def test_the_channel_of_a_set_is_the_best_that_builds_all_of_it():
    request = selectors("sm61-avx2-py311")
    channels = channels_in_order(ROOT, request)
    chosen = channel_of_set(ROOT, request, SET)
    packages = load_matrix(ROOT).channels
    able = [name for name in channels if set(SET) <= set(packages[name].packages)]
    assert chosen == able[0]


def test_a_set_that_no_channel_builds_names_what_each_lacks():
    with pytest.raises(NotBuildableError, match="does not build canary"):
        channel_of_set(ROOT, selectors("sm61-avx2-py313"), ["torch", "canary"])


def test_an_unknown_package_is_named():
    with pytest.raises(UsageError, match="torchvisoin"):
        channel_of_set(ROOT, selectors("sm61-avx2-py311"), ["torch", "torchvisoin"])


def chain():
    """Three plans of which each needs the one before."""
    plans = []
    for number in range(3):
        plan = plan_of("cpu-avx-py311", "canary")
        needs = [f"package{number - 1}=={plan.version}"] if number else []
        plans.append(plan.model_copy(update={"package": f"package{number}", "needs": needs}))
    return plans


def test_what_others_need_comes_first_however_long_the_chain():
    first, second, third = chain()
    assert makers_first([third, second, first]) == [first, second, third]
    assert makers_first([second, third]) == [second, third]  # the first is published


@pytest.fixture
def no_dispatcher(monkeypatch):
    monkeypatch.setattr(builds, "start_dispatcher", lambda _workspace: None)


@pytest.mark.usefixtures("swarm", "no_dispatcher")
def test_a_submit_of_a_set_queues_it_in_order(project, journal):
    words = ["submit", "--variant", "sm35-avx-py311", "--package", *reversed(SET)]
    words += ["--on", "swarm", "--no-smoke", "--detach", "--yes", "--anyway"]
    assert main(["--project", str(project), *words]) == 0
    runs = journal.open_after("", (*PRODUCT, "needs"))
    assert runs[0].request.package == "torch"
    makers = Makers()
    for run in runs:
        makers.add(run)
    for run in runs[1:]:
        about = run.about
        assert makers.of(about["needs"], about["variant"], about["platform"]) == {runs[0].id}


@pytest.mark.usefixtures("swarm", "no_dispatcher")
def test_a_retry_of_a_set_that_failed_waits_for_its_torch_again(project, journal):
    words = ["submit", "--variant", "sm35-avx-py311", "--package", *SET, "--on", "swarm"]
    words += ["--no-smoke", "--detach", "--yes", "--anyway"]
    assert main(["--project", str(project), *words]) == 0
    for run in journal.open_runs():
        journal.finish_run(run.id, "failure", 5)
    assert main(["--project", str(project), "retry", "--failed", "--detach"]) == 0
    assert [run.request.package for run in journal.open_runs()] == list(SET)


def test_plan_of_a_set_lists_it_in_order(project, capsys):
    words = ["plan", "--variant", "sm35-avx-py311", "--package", *reversed(SET), "--json"]
    assert main(["--project", str(project), *words]) == 0
    packages = [build["package"] for build in json.loads(capsys.readouterr().out)["builds"]]
    assert packages[0] == "torch"
    assert set(packages) == set(SET)


def test_one_line_installs_what_was_published_of_a_set(workspace):
    plans = [plan_of("cpu-avx-py311", "canary")]
    plans.append(plans[0].model_copy(update={"package": "other"}))
    plans.append(plans[0].model_copy(update={"package": "absent"}))
    for plan in plans[:2]:
        put_with_a_test(workspace, plan)
    (line,) = install_lines(workspace, plans)
    words = shlex.split(line)
    assert words[:2] == ["pip", "install"]
    assert [word.partition(" @ ")[0] for word in words[2:]] == ["canary", "other"]
    assert all("#sha256=" in word for word in words[2:])


@pytest.mark.usefixtures("swarm", "no_dispatcher")
def test_what_a_package_needs_may_be_published_in_part_and_built_in_part(workspace, journal):
    first, second, third = chain()
    third = third.model_copy(update={"needs": [*first_needs(first), *third.needs]})
    put_with_a_test(workspace, first)
    wanted = [(plan, request_for(plan, until="publish", on="swarm")) for plan in (second, third)]
    check_detached(workspace, wanted)
    with pytest.raises(UsageError, match="package1"):
        check_detached(workspace, wanted[1:])
    journal.create_run(second.digest, wanted[0][1], json.loads(second.to_json()))
    check_detached(workspace, wanted[1:])


def first_needs(plan):
    return [f"{plan.package}=={plan.version}"]
