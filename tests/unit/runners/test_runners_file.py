"""ci/runners.yaml: its model and its schema."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from farm.base.errors import UsageError
from farm.plan.settings import load_github, load_runners
from tools.runners_schema import schema

ROOT = Path(__file__).parents[3]
GITHUB = "github:\n  build: {}\n  smoke: {}\n"


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        (tmp_path / "ci").mkdir(exist_ok=True)
        (tmp_path / "ci" / "runners.yaml").write_text(
            f"runners:\n  local: {{engine: docker}}\n  x: {text}\n"
        )
        return load_runners(tmp_path)["x"]

    return read_text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{engine: github}", "a runner of GitHub Actions is found by its labels"),
        ("{engine: github, labels: ['a b']}", "labels.0"),
        ("{engine: docker, gpus: [{name: Tesla K40, sm: sm50}]}", "Tesla K40 is sm35, not sm50"),
        ("{engine: docker, gpus: [{name: x, sm: sm36}]}", "unknown SM 'sm36'; did you mean 'sm"),
        (
            "{engine: docker, gpus: [{name: x, sm: sm35, driver: 470}]}",
            "driver: 470 is a number here; write it in quotes",
        ),
        ("{engine: docker, cpu_levels: [avx3]}", "unknown CPU level 'avx3'; did you mean 'avx"),
        ("{engine: docker, cpu_levels: [armv9]}", "CPU levels of aarch64, but machine is x86_64"),
        ("{engine: docker, slots: 0}", "slots: must be at least 1"),
        ("{engine: docker, jobs: []}", "jobs: must have at least one entry"),
        ("{engine: docker, job: [build]}", "unknown key 'runners.x.job'; did you mean 'jobs'?"),
    ],
)
def test_wrong_entries_name_the_file_and_the_line(read, text, fault):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert fault in str(caught.value)
    assert "ci/runners.yaml:3: " in str(caught.value)


def test_more_machines_than_can_be_asked_are_refused(tmp_path):
    (tmp_path / "ci").mkdir()
    rows = "".join(f"  r{number}: {{engine: docker}}\n" for number in range(1001))
    (tmp_path / "ci" / "runners.yaml").write_text(f"runners:\n{rows}")
    with pytest.raises(UsageError, match="runners: must have at most 1000 entries"):
        load_runners(tmp_path)


def test_a_card_that_the_catalogue_does_not_know_is_taken_at_its_word(read):
    assert read("{engine: docker, gpus: [{name: Prototype 9, sm: sm35}]}").gpus[0].sm == "sm35"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("api_url: http://github.example.org/api", "over http in the clear"),
        ("api_url: ftp://x", "api_url"),
        ("repository: a", "repository"),
        ("repository: a/b/c", "repository"),
        ("ref: 'a b'", "ref"),
    ],
)
def test_invalid_github_settings_are_refused(tmp_path, line, fault):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "runners.yaml").write_text(f"runners: {{}}\n{GITHUB}  {line}\n")
    with pytest.raises(UsageError, match=fault):
        load_github(tmp_path)


def test_schema_is_that_of_the_model():
    assert (ROOT / "ci" / "runners.schema.json").read_text(encoding="utf-8") == schema(), (
        "run python -m tools.runners_schema"
    )


def test_schema_takes_the_file_and_refuses_what_the_loader_refuses():
    made = json.loads(schema())
    jsonschema.Draft202012Validator.check_schema(made)
    validator = jsonschema.Draft202012Validator(made)
    good = yaml.safe_load((ROOT / "ci" / "runners.yaml").read_text(encoding="utf-8"))
    assert list(validator.iter_errors(good)) == []
    good["runners"]["k40"]["cpu_levels"] = ["avx3"]
    good["runners"]["local"]["engine"] = "podman"
    good["github"]["reference"] = "main"
    assert sorted(error.json_path for error in validator.iter_errors(good)) == [
        "$.github",
        "$.runners.k40.cpu_levels[0]",
        "$.runners.local.engine",
    ]


def test_what_is_to_be_written_for_github_can_be_read(tmp_path):
    file = tmp_path / "ci" / "runners.yaml"
    file.parent.mkdir()
    file.write_text("runners: {}\n")
    with pytest.raises(UsageError) as refused:
        load_github(tmp_path)
    page = (ROOT / "docs" / "how-to" / "dispatch.md").read_text()
    for text in (
        refused.value.hint.partition(": ")[2],
        page.partition("```yaml\ngithub:")[2].partition("```")[0],
    ):
        file.write_text(
            "runners: {}\n" + text
            if text.startswith("github:")
            else f"runners: {{}}\ngithub:{text}"
        )
        found = load_github(tmp_path)
        assert (found.repository, [*found.build], [*found.smoke]) == (
            "OWNER/NAME",
            ["linux-x86_64"],
            ["linux-x86_64"],
        )
