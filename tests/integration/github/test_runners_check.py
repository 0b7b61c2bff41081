"""`farm runners check` against the fake of GitHub in fake.py."""

import pytest

from farm.cli.main import main
from tests.integration.github.conftest import BUILDER, K40
from tests.integration.github.fake import deployment_rules
from tests.schemas import valid


@pytest.fixture
def check(on_the_fake, monkeypatch, capsys):
    """Runs it for a project whose runners are all on the fake."""

    def change(data):
        del data["runners"]["windows-build"]
        data["runners"]["local"] |= {
            "url": "tcp://127.0.0.1:9",
            "jobs": ["build"],
        }  # nobody answers there

    project = on_the_fake(change)
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)

    def run(*words):
        code = main(["--project", str(project), "runners", "check", "--json", *words])
        out = capsys.readouterr()
        return code, valid("runners", out.out) if out.out else out.err

    return run


def test_everything_is_said(fake, check):
    fake.add_runner("linux-build", BUILDER, busy=True)
    fake.add_runner("k40", [label for label in K40 if label != "legacy"] + ["sm99"], online=False)
    fake.add_runner("stranger", ["self-hosted"])
    code, found = check()
    assert code == 4
    assert set(found["runners"]) == {"local", "linux-build", "k40"}
    assert "no Docker engine answers at tcp://127.0.0.1:9" in found["runners"]["local"]["why"]
    assert (found["runners"]["linux-build"]["online"], found["runners"]["linux-build"]["busy"]) == (
        True,
        True,
    )
    assert found["runners"]["linux-build"]["differences"] == []
    assert found["runners"]["k40"]["why"] == "GitHub says that it is offline"
    assert found["runners"]["k40"]["differences"] == [
        "does not carry the label legacy",
        "carries sm99, which the file does not say",
    ]


def test_a_runner_that_the_repository_does_not_have(fake, check):
    code, found = check()
    assert code == 4
    assert found["runners"]["k40"]["why"] == "the repository has no runner called k40"


def test_github_is_asked_once_for_all(fake, check):
    fake.add_runner("linux-build", BUILDER)
    check()
    assert len(fake.sent("GET", "/runners")) == 1


def test_a_token_that_may_not_list_runners_leaves_the_rest_of_the_answer(fake, check, monkeypatch):
    fake.scopes.discard("admin")
    code, found = check()
    assert code == 4
    assert "needs administration=read" in found["runners"]["k40"]["why"]
    monkeypatch.delenv("FARM_GITHUB_TOKEN")
    assert "no usable token" in check()[1]["runners"]["k40"]["why"]


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        (
            "actions/permissions/fork-pr-contributor-approval",
            {"approval_policy": "first_time_contributors"},
            "a pull request of a stranger can run on the self-hosted runners",
        ),
        (
            "actions/permissions/fork-pr-contributor-approval",
            None,
            "a pull request of a stranger can run",
        ),
        ("actions/permissions", {"sha_pinning_required": False}, "actions run that are not pinned"),
        ("environments/release", None, "there is no environment release"),
        ("environments/release", {"deployment_branch_policy": None}, "every branch may publish"),
    ],
)
def test_settings_that_let_strangers_in_are_named(fake, check, setting, value, text):
    assert check()[1]["settings_missing"] == []
    fake.settings[setting] = value
    if value is None:
        del fake.settings[setting]
    code, found = check()
    assert (code, len(found["settings_missing"])) == (4, 1)
    assert text in found["settings_missing"][0]


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([("branch", "main"), ("branch", "*")], "branch main, branch * may publish: "),
        ([("branch", "main"), ("tag", "v*")], "branch main, tag v* may publish: "),
        ([("branch", "develop")], "branch develop may publish: "),
        ([("tag", "main")], "tag main may publish: "),
        ([], "nothing may publish: "),
        ([("branch", "ma\x1b[31min")], "branch ma\\x1b[31min may publish: "),
        (
            [("branch", "v" * 2)] * 7,
            "branch vv, branch vv, branch vv, branch vv, branch vv and 2 more may publish: ",
        ),
    ],
)
def test_a_policy_for_other_branches_than_the_default_one_is_named(fake, check, rules, text):
    fake.settings["environments/release/deployment-branch-policies"] = deployment_rules(*rules)
    code, found = check()
    (line,) = found["settings_missing"]
    assert code == 4
    assert line.startswith(text)
    assert line.endswith("'Deployment branches and tags': the branch main alone")
    fake.settings[""] |= {"default_branch": "develop"}
    assert (check()[1]["settings_missing"] == []) == (rules == [("branch", "develop")])


def test_protected_branches_alone_are_a_policy_too(fake, check):
    policy = {"protected_branches": True, "custom_branch_policies": False}
    fake.settings["environments/release"] = {"deployment_branch_policy": policy}
    assert check()[1]["settings_missing"] == []
    assert not fake.sent("GET", "deployment-branch-policies")


def test_a_user_is_not_called_safe_when_the_token_may_not_look(fake, check):
    fake.faults["GET /repos/owner/farm/actions/permissions"] = [
        fake._error(403, "Resource not accessible")
    ] * 2
    (line,) = check()[1]["settings_missing"]
    assert "is not known" in line
