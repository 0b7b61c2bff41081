"""The farm's own configuration."""

import errno
import os
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from farm.base.errors import UsageError
from farm.base.project import find_project
from farm.plan.matrix import load_matrix
from farm.plan.settings import Card, Github, Runner, Settings, load_runners, load_settings
from farm.plan.variant import Variant
from farm.run.backends import check_engine
from farm.run.workspace import Watcher, Workspace
from tests.plans import plan_of

CASES = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8"))


def change(path, **values):
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def test_a_project_is_found_from_below(project, tmp_path):
    below = project / "ci" / "deep"
    below.mkdir()
    assert find_project(below) == project.resolve()
    with pytest.raises(UsageError, match="no such folder") as caught:
        find_project(tmp_path / "absent")
    assert "--project DIR" in caught.value.hint


def test_a_folder_without_configuration_has_the_farms_own(tmp_path):
    assert find_project(tmp_path) == tmp_path.resolve()
    settings = load_settings(tmp_path)
    assert (settings.artifacts, settings.index, settings.smoke_timeout_s) == (
        "artifacts",
        "artifacts/index",
        300,
    )
    assert list(load_runners(tmp_path)) == ["local"]
    assert {build.package for build in load_matrix(tmp_path).builds()} >= {"torch", "canary"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read", [find_project, load_settings, load_runners, load_matrix])
def test_a_folder_that_may_not_be_read_is_not_absent(project, monkeypatch, read):
    def refuse(path):  # root, who may run the tests, may read all
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(
        UsageError, match=rf"{project}/ci/\w+\.yaml: cannot be read: Permission denied"
    ):
        read(project)


def test_every_setting_of_the_example_is_the_default(tmp_path):
    assert load_settings(tmp_path) == Settings()
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text("index: elsewhere\n")
    assert load_settings(tmp_path) == Settings(index="elsewhere")


@pytest.mark.parametrize(("values", "message"), CASES["wrong_settings_name_the_file_and_the_line"])
def test_wrong_settings_name_the_file_and_the_line(project, values, message):
    path = project / "ci" / "farm.yaml"
    change(path, **values)
    with pytest.raises(UsageError) as caught:
        load_settings(project)
    assert message in str(caught.value)
    key = next(iter(values))
    lines = [
        n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith(f"{key}:")
    ]
    first = lines[0] + (key == "options")  # its own key is on the next line
    assert f"{path}:{first}: " in str(caught.value)


@pytest.mark.parametrize(("runner", "message"), CASES["wrong_runners"])
def test_invalid_runners_are_refused(project, runner, message):
    change(project / "ci" / "runners.yaml", runners={"local": runner})
    with pytest.raises(UsageError) as caught:
        load_runners(project)
    assert message in str(caught.value)


def test_without_a_docker_engine_that_builds_submit_says_what_to_add(project):
    """It printed the id of a run, which then ended with "has no runner 'local'"."""
    plan = plan_of("cpu-avx-py311", "canary", project=project)
    workspace = Workspace(project, load_settings(project), Watcher())
    change(
        project / "ci" / "runners.yaml", runners={"tester": {"engine": "docker", "jobs": ["smoke"]}}
    )
    with pytest.raises(UsageError, match="names no Docker engine that builds") as caught:
        check_engine(workspace, "docker", plan)
    assert "local: {engine: docker}" in caught.value.hint
    change(
        project / "ci" / "runners.yaml", runners={"big": {"engine": "docker", "url": "ssh://big"}}
    )
    check_engine(workspace, "docker", plan)


MACHINE = {"engine": "docker"}


@pytest.mark.parametrize(
    ("line", "text"), CASES["an_address_without_its_scheme_never_reaches_a_pip_line"]
)
def test_an_address_without_its_scheme_never_reaches_a_pip_line(tmp_path, line, text):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text(f"index: here\n{line}\n")
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path)
    assert f"farm.yaml:2: {line.partition(':')[0]}: " in str(caught.value)
    assert text in str(caught.value)


def test_settings_are_read_again_when_the_file_has_changed(project):
    for number in (3, 7, 7):
        (project / "ci/farm.yaml").write_text(f"index: file:///srv/{number}\n")
        assert load_settings(project).index == f"/srv/{number}"


@pytest.mark.parametrize(("url", "ok"), CASES["a_token_goes_over_plain_http_to_this_machine_alone"])
def test_a_token_is_sent_over_plain_http_only_to_this_machine(url, ok):
    given = {"api_url": url, "build": {}, "smoke": {}}
    if ok:
        assert Github.model_validate(given).api_url == url
    else:
        with pytest.raises(ValidationError, match="in the clear"):
            Github.model_validate(given)


def test_an_index_of_the_command_line_is_an_address_or_a_path_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings(index="s3://own/index", index_public_url="https://wheels.example.org")
    for given, index in (
        ("s3://other/x", "s3://other/x"),
        ("out/index", f"{tmp_path}/out/index"),
        ("/srv", "/srv"),
    ):
        named = settings.with_index(given)
        assert (named.index, named.index_public_url) == (index, None)


def test_valid_machines_cards_and_labels_are_accepted():
    arm = {"engine": "github", "labels": ["big"], "machine": "aarch64", "cpu_levels": ["armv8_2"]}
    assert Runner.model_validate(arm).by_labels
    assert not Runner.model_validate(MACHINE).by_labels
    for name, sm in (("Tesla K40c", "sm35"), ("no card that anybody knows", "sm61")):
        assert Card.model_validate({"name": name, "sm": sm}).sm == sm
    github = Github.model_validate(
        {"build": {"linux-x86_64": ["{gpu}", "{cpu}", "{device}", "x"]}, "smoke": {}}
    )
    assert github.runs_on("build", Variant.parse("sm35-avx-py311"), "linux") == [
        "sm35",
        "avx",
        "gpu",
        "x",
    ]
    assert github.runs_on("build", Variant.parse("cpu-avx-py311"), "linux") == ["cpu", "avx", "x"]
    with pytest.raises(
        UsageError, match=r"github\.build has no labels for windows-x86_64, which sm35-avx-py311"
    ) as caught:
        github.runs_on("build", Variant.parse("sm35-avx-py311"), "windows")
    assert "there are labels for: linux-x86_64" in caught.value.hint
    assert (
        len(
            Github.model_validate({"build": {"linux-x86_64": ["x"] * 16}, "smoke": {}}).build[
                "linux-x86_64"
            ]
        )
        == 16
    )


@pytest.mark.parametrize(
    ("archives", "url"),
    [
        ("https://a/b", "https://a/b"),
        ("http://a", "http://a"),
        ("/srv/archives", None),
        (None, None),
    ],
)
def test_an_image_takes_archives_from_an_address_alone(archives, url):
    assert Settings(archives=archives).archives_url == url
