"""farm doctor of a project: its files are read, and its folders are tried."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.cli.main import main
from farm.machine.doctor import check_project

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path):
    where = tmp_path / "my wheels"
    for part in ("ci", "recipes"):
        shutil.copytree(ROOT / "farm/cli/example" / part, where / part)
    return where


def found(project):
    findings = {}
    for finding in check_project(project):
        assert bool(finding.todo) == (finding.state != "ok"), "what is not well says what to do"
        findings.setdefault(finding.check, []).append((finding.state, finding.seen, finding.todo))
    return findings


def test_a_valid_project_has_no_findings(project):
    findings = found(project)
    assert set(findings) == {"configuration", "folders"}
    assert [state for rows in findings.values() for state, _, _ in rows] == ["ok", "ok"]
    assert sorted(file.name for file in project.iterdir()) == ["ci", "recipes"], (
        "a look makes nothing"
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "seen"),
    [
        ("ci/matrix.yaml", 'cuda: "11.8"', "cuda: [", "ci/matrix.yaml:"),
        ("ci/farm.yaml", "grace_s: 600", "gracious: 600", "ci/farm.yaml:10"),
        ("ci/runners.yaml", "engine: docker", "engin: docker", "ci/runners.yaml:4"),
        ("recipes/hello/recipe.yaml", "version: ", "versoin: ", "recipes/hello/recipe.yaml:4"),
    ],
)
def test_a_file_with_a_mistake_is_named(project, monkeypatch, capsys, file, old, new, seen):
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
    (finding,) = found(project)["configuration"]
    assert finding[0] == "missing"
    assert seen in finding[1]
    # By the command, the machine is looked at all the same.
    monkeypatch.chdir(project)
    assert main(["doctor", "--json"]) == 4
    states = {one["check"]: one["state"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert states["configuration"] == "missing"
    assert "memory" in states


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="modes stop neither root nor Windows"
)
@pytest.mark.parametrize("there", [False, True], ids=["the project's", "one that root made"])
def test_a_folder_that_cannot_be_written_is_named(project, there):
    folder = project / "artifacts" if there else project
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    (finding,) = found(project)["folders"]
    assert finding[0] == "missing"
    assert finding[1] == f"artifacts, index: {folder}: Permission denied"
    assert "ci/farm.yaml" in finding[2]


def test_each_folder_of_the_settings_is_tried(project, tmp_path, monkeypatch):
    """A file is where a folder should be, which stops everybody."""
    (tmp_path / "file").touch()
    (tmp_path / "other").touch()
    (project / "ci/farm.yaml").write_text("artifacts: ../file/a\nindex: ../other/index\n")
    rows = found(project)["folders"]
    assert [(state, seen.split(":")[0]) for state, seen, _ in rows] == [
        ("missing", "artifacts"), ("missing", "index"),
    ]  # fmt: skip
    assert all("Not a directory" in seen for _, seen, _ in rows)
    (project / "ci/farm.yaml").write_text("{}\n")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert [seen.split(":")[0] for _, seen, _ in found(project)["folders"]] == ["temporary files"]


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="Windows mounts nothing noexec")
def test_a_folder_where_nothing_can_be_run_is_named(project, monkeypatch):
    ordinary = os.statvfs
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_flag=ordinary(path).f_flag | os.ST_NOEXEC)
    )
    (finding,) = found(project)["folders"]
    assert finding[0] == "missing"
    assert "artifacts" in finding[1]
    assert "noexec" in finding[1]


@pytest.mark.parametrize(("option", "value"), [("--channel", "nosuch"), ("--package", "nope")])
def test_what_is_named_and_does_not_exist_is_no_build_to_examine_a_machine_for(
    capsys, option, value
):
    assert main(["--project", str(ROOT), "doctor", option, value]) == 2
    assert value in capsys.readouterr().err
