"""`farm matrix` and the files beside ci/matrix.yaml."""

import json

import jsonschema
import pytest
import yaml

from farm.base.errors import UsageError
from farm.cli.main import main
from farm.plan.channel import Build
from farm.plan.settings import load_github
from farm.plan.variant import Variant
from farm.plan.workflow_matrix import CHUNK, workflow_matrix
from tools.matrix_schema import schema

WANTED = ("sm90-armv9-py311", "12.8")


@pytest.fixture
def farm(project, capsys):
    """Runs `farm matrix` on the project's own channels; returns what it prints."""

    def run(*words: str) -> str:
        assert main(["--project", str(project), "matrix", *words]) == 0
        return capsys.readouterr().out

    return run


def test_names_of_all_channels_are_unique(farm, shipped):
    names = farm("--format", "names").splitlines()
    assert (
        len(set(names))
        == len(names)
        == sum(len(channel.builds) for channel in shipped.channels.values())
    )
    assert "main/pytorch-python313-darwin-mps" in names
    assert "kepler-2.0.1/pytorch-python311-windows-cuda11_4-sm35-avx" in names
    assert "kepler-debian/canary-python311-cuda11_8-sm35-avx" in names


def test_json_holds_every_build(farm, shipped):
    entries = json.loads(farm("--channel", "pytorch-2.9-vllm-0.15.1", "--json"))
    assert len(entries) == 117
    assert {
        "channel": "pytorch-2.9-vllm-0.15.1",
        "package": "torch",
        "variant": "sm103-armv9-py313",
        "platform": "linux",
        "cuda": "12.9",
        "alias": "pytorch-python313-cuda12_9-sm103-armv9",
    } in entries


def test_table_is_a_grid_of_gpus_and_cpus(farm):
    lines = [" ".join(line.split()) for line in farm("--channel", "main").splitlines()]
    head = "package platform GPU Python avx avx2 avx512 avx512bf16 avx512vnni armv8_2 armv9 arm64"
    rows = [line for line in lines[lines.index(head) + 1 :] if line]
    assert "torch linux cpu py313 - yes yes yes yes yes yes -" in rows
    assert "torch linux sm61 py313 12.8 12.8 - - - - - -" in rows
    assert "torch linux sm120 py313 12.8 12.8 12.8 12.8 12.8 12.8 12.8 -" in rows
    assert "torch macos mps py313 - - - - - - - yes" in rows
    assert "torchaudio linux sm75 py313 12.8 - - - - - - -" in rows
    assert len(rows) == 14


def test_table_shows_every_channel_and_both_cuda_versions(farm, shipped):
    text = farm()
    for channel in shipped.channels.values():
        assert f"{channel.name}: {channel.text.summary} ({len(channel.builds)} builds" in text
    assert "12.9 12.8" in text
    assert "py39 py310 py311" in text


def test_github_is_one_line_of_builds_and_smoke_tests_in_chunks(farm, shipped):
    text = farm("--format", "github")
    assert text.count("\n") == 1
    jobs = json.loads(text)
    builds = list(shipped.builds())
    assert set(jobs) == {"build", "smoke"}
    for chunks in jobs.values():
        assert [len(chunk) for chunk in chunks] == [256] * (len(builds) // 256) + [
            len(builds) % 256
        ]
        entries = [entry for chunk in chunks for entry in chunk]
        assert [(e["channel"], e["package"], e["variant"], e["platform"]) for e in entries] == [
            (b.channel, b.package, str(b.variant), b.platform) for b in builds
        ]
        assert len({entry["name"] for entry in entries}) == len(builds)
        for chunk in chunks:
            assert len(json.dumps(chunk)) < 100_000


def test_github_entry(farm):
    jobs = json.loads(farm("--format", "github", "--channel", "pytorch-2.9-python311"))
    found = {
        kind: [e for e in jobs[kind][0] if (e["variant"], e["cuda"]) == WANTED]
        for kind in ("build", "smoke")
    }
    entry = {
        "name": "pytorch-2.9-python311 pytorch-python311-cuda12_8-sm90-armv9",
        "channel": "pytorch-2.9-python311",
        "package": "torch",
        "variant": "sm90-armv9-py311",
        "platform": "linux",
        "cuda": "12.8",
    }
    assert found == {
        "build": [{**entry, "runs_on": ["self-hosted", "linux", "arm64", "farm-build"]}],
        "smoke": [
            {
                **entry,
                "runs_on": ["self-hosted", "linux", "arm64", "farm-smoke", "gpu", "sm90", "armv9"],
            }
        ],
    }


def test_cuda_is_named_where_it_is_not_the_default(shipped):
    builds = list(shipped.builds("pytorch-2.9-vllm-0.15.1"))
    jobs = workflow_matrix(shipped, builds, lambda *_: ["x"])
    named = [entry["cuda"] for chunk in jobs["build"] for entry in chunk]
    assert [cuda or "12.9" for cuda in named] == [build.cuda or "12.9" for build in builds]
    assert set(named) == {"", "12.8"}
    kepler = workflow_matrix(shipped, shipped.builds("kepler-2.0.1"), lambda *_: ["x"])
    assert {entry["cuda"] for chunk in kepler["build"] for entry in chunk} == {""}


@pytest.mark.parametrize("count", [0, 1, CHUNK, CHUNK + 1])
def test_a_matrix_is_split_into_chunks(shipped, count):
    build = Build("main", "torch", Variant("cpu", "avx2", "py313"), "linux", None)
    jobs = workflow_matrix(shipped, [build] * count, lambda *_: ["x"])
    for chunks in jobs.values():
        assert sum(len(chunk) for chunk in chunks) == count
        assert len(chunks) == -(-count // 256)
        assert all(0 < len(chunk) <= 256 for chunk in chunks)


def test_every_build_has_labels(project, shipped):
    labels = load_github(project)
    for build in shipped.builds():
        for job in ("build", "smoke"):
            found = labels.runs_on(job, build.variant, build.platform)
            assert found[:2] == ["self-hosted", build.platform]
            assert not any("{" in label for label in found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("runners: {}\n", "ci/runners.yaml: no key 'github'"),
        (
            "runners: {}\ngithub:\n  build: {linux-x64: [a]}\n  smoke: {}\n",
            "ci/runners.yaml:3: github.build.linux-x64",
        ),
        (
            "runners: {}\ngithub:\n  build: {linux-x86_64: ['{sm}']}\n  smoke: {}\n",
            "ci/runners.yaml:3: github.build",
        ),
    ],
)
def test_invalid_labels_are_refused(tmp_path, text, fault):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "runners.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_github(tmp_path)
    assert fault in str(caught.value)


def test_schema_is_that_of_the_model(project):
    text = (project / "ci" / "matrix.schema.json").read_text(encoding="utf-8")
    assert text == schema(), "run python -m tools.matrix_schema"


def test_schema_takes_the_matrix_and_refuses_what_the_loader_refuses(project):
    made = json.loads(schema())
    jsonschema.Draft202012Validator.check_schema(made)
    validator = jsonschema.Draft202012Validator(made)
    good = yaml.safe_load((project / "ci" / "matrix.yaml").read_text(encoding="utf-8"))
    assert list(validator.iter_errors(good)) == []
    good["channels"]["main"]["gpu"] = ["sm80"]
    good["channels"]["main"]["gpus"] = ["sm36"]
    good["channels"]["main"]["cuda"] = 12.8
    del good["channels"]["kepler-debian"]["pythons"]
    good["channels"]["pytorch-2.9-python313"]["exclude"] = [{"cpu": ["avx"]}]
    found = sorted(error.json_path for error in validator.iter_errors(good))
    assert found == sorted(
        [
            "$.channels.main",
            "$.channels.main.gpus[0]",
            "$.channels.main.cuda",
            "$.channels['kepler-debian']",
            "$.channels['pytorch-2.9-python313'].exclude[0]",
        ]
    )


def test_unknown_channel(project, capsys):
    assert main(["--project", str(project), "matrix", "--channel", "mian"]) == 2
    assert "nearest: main" in capsys.readouterr().err
