"""`farm clean` removes what is old and what can be made again, and nothing else."""

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from farm.base.errors import NoRunnerError
from farm.cli.clean_engines import Limits, volume_limit, volumes_of
from farm.cli.main import main
from farm.plan.settings import load_settings
from farm.run.journal import Journal
from farm.run.journal_records import Request
from farm.run.workspace import Watcher, Workspace

DAY_S = 86400


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "DOCKER_HOST", f"unix://{tmp_path}/nothing.sock"
    )  # this machine's images stay
    artifacts = tmp_path / "artifacts"
    request = Request(
        package="canary", variant="cpu-avx-py311", platform="linux", until="smoke", on="docker"
    )
    with Journal(_made(artifacts) / "farm.db") as journal:
        done = journal.create_run("a" * 64, request, {})
        journal.finish_run(done.id, "success", 0)
    for name in (
        f"runs/{done.id}/build.log",
        "sources/x.tar",
        "bundles/given-up/part",
        "index/whl/files/a.whl",
        "own",
    ):
        _made((artifacts / name).parent)
        (artifacts / name).write_bytes(b"x" * 1000)
    return tmp_path


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def files(project):
    """All but the file by which git ignores the folder, which comes with the journal."""
    return sorted(
        p.relative_to(project / "artifacts").as_posix()
        for p in project.rglob("*")
        if p.is_file() and p.name != ".gitignore"
    )


def clean(project, capsys, *options):
    assert main(["--project", str(project), "clean", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_removes_nothing(project, capsys):
    before = files(project)
    found = clean(project, capsys, "--dry-run")
    assert found["removed"] is False
    assert sorted(entry["bytes"] for entry in found["found"]) == [1000, 1000, 1000]
    assert files(project) == before


def test_build_trees_are_those_of_this_projects_runs(project):
    workspace = Workspace(project, load_settings(project), Watcher())
    trees, caches = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)
    limits = Limits(runs=None, caches=trees, logs=None, unpublished=None, compiler_caches=caches)
    with Journal(project / "artifacts" / "farm.db") as journal:
        volumes = volumes_of(workspace, journal, limits)
    assert volume_limit(volumes, "farm-tree-" + "a" * 24) == trees
    assert volume_limit(volumes, f"farm-ccache-{workspace.id}-x") == caches
    assert volume_limit(volumes, "farm-tree-" + "b" * 24) is None
    assert volume_limit(volumes, "farm-ccache-of-another-project-x") is None


def test_the_index_the_journal_and_what_is_not_the_farms_stay(project, capsys):
    clean(project, capsys)
    assert files(project) == ["farm.db", "index/whl/files/a.whl", "own"]


def test_files_younger_than_the_limit_are_kept(project, capsys):
    assert clean(project, capsys, "--older-than", "1d")["found"] == []
    old = project / "artifacts" / "sources" / "x.tar"
    past = old.stat().st_mtime - 2 * DAY_S
    os.utime(old, (past, past))
    assert [entry["what"] for entry in clean(project, capsys, "--older-than", "1d")["found"]] == [
        str(old)
    ]


def test_while_a_run_is_under_way_its_folder_and_the_caches_stay(project, capsys):
    request = Request(
        package="canary", variant="cpu-avx-py311", platform="linux", until="smoke", on="docker"
    )
    with Journal(project / "artifacts" / "farm.db") as journal:
        run = journal.create_run("b" * 64, request, {})
    _made(project / "artifacts" / "runs" / run.id)
    found = [entry["what"] for entry in clean(project, capsys)["found"]]
    assert len(found) == 1
    assert run.id not in found[0]
    assert (project / "artifacts/sources/x.tar").exists()


@pytest.fixture
def ended(project):
    """A function that makes the folder of a run that ended so, with a wheel and a log."""

    def go(digest, result, *, published=False, wheel=True):
        request = Request(
            package="canary", variant="cpu-avx-py311", until="smoke" if published else "verify"
        )
        with Journal(project / "artifacts" / "farm.db") as journal:
            run = journal.create_run(digest, request, {})
            if published:
                journal.event(run.id, "step", name="publish", seconds=1, outcome="done", result="")
            journal.finish_run(run.id, result, 0 if result == "success" else 5)
        folder = project / "artifacts/runs" / run.id
        for name in (
            "build.log",
            "context/job/build.sh",
            *(["built/wheel/a.whl"] if wheel else []),
        ):
            _made((folder / name).parent)
            (folder / name).touch()
        return folder

    return go


def of(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_prune_keeps_unpublished_wheels_and_logs_of_failures_by_default(project, capsys, ended):
    """The only copy of the wheel of a run with --no-publish went without a question."""
    unpublished, failed = ended("b" * 64, "success"), ended("c" * 64, "failure", wheel=False)
    published, untested = (
        ended("d" * 64, "success", published=True),
        ended("e" * 64, "failure", published=True),
    )
    half = ended("f" * 64, "failure")  # its publish failed: `farm retry` goes on from the wheel
    clean(project, capsys)
    assert of(unpublished) == ["built/wheel/a.whl"]
    assert of(failed) == ["build.log"]
    assert not published.exists()
    assert of(untested) == ["build.log"]
    assert of(half) == ["build.log", "built/wheel/a.whl"]
    clean(project, capsys, "--unpublished")
    assert not unpublished.exists()
    assert [of(folder) for folder in (failed, untested, half)] == [["build.log"]] * 3
    clean(project, capsys, "--logs")
    assert not any(folder.exists() for folder in (failed, half, untested))


@pytest.mark.parametrize(("answer", "removes"), [("n", False), ("", False), ("y", True)])
def test_clean_asks_in_a_terminal(project, answer, removes):
    before = files(project)
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "farm.cli.main", "--project", str(project), "clean"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE
    ) as process:
        os.close(terminal)
        os.write(controller, f"{answer}\n".encode())
        process.communicate()
    os.close(controller)
    assert process.returncode == 0
    assert (files(project) != before) is removes


def test_prune_keeps_a_hosts_compiler_cache_by_default(project, capsys):
    host = project / "artifacts/host"
    for name in (
        "farm/src/a.o",
        "farm/ccache/b.o",
        "farm-volumes/farm-ccache-x-torch/c.o",
        "farm-volumes/farm-tree-1/d.o",
    ):
        _made((host / name).parent)
        (host / name).touch()
    clean(project, capsys)
    assert of(host) == ["farm-volumes/farm-ccache-x-torch/c.o", "farm/ccache/b.o"]
    clean(project, capsys, "--compiler-caches")
    assert of(host) == []


def test_the_folder_of_a_cluster_is_cleaned_of_what_is_this_projects(project, capsys):
    """Jobs of runs that ended, the toolchains and build trees of this project; nothing that others
    put there.
    """
    shared, own = project / "shared", Workspace(project, load_settings(project), Watcher()).id
    settings = project / "ci/farm.yaml"
    _made(settings.parent)
    settings.write_text(f"slurm: {{folder: {shared}}}\n")
    with Journal(project / "artifacts" / "farm.db") as journal:
        run = journal.create_run("b" * 64, Request(), {})
        attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "slurm", "local")
        journal.set_handle(attempt.id, "farm-1")
    tree, cache = f"farm-tree-{'b' * 24}", f"farm-ccache-{own}-torch"
    names = (
        "jobs/farm-1",
        "jobs/farm-2",
        "toolchains/mine",
        "toolchains/other",
        f"volumes/{tree}",
        f"volumes/{cache}",
    )
    for name in (*names, "volumes/farm-tree-2"):
        _made(shared / name)
    (shared / "toolchains/mine/project").write_text(own)
    clean(project, capsys)
    assert left(shared) == sorted((*names, "volumes/farm-tree-2"))  # the run may still need them
    with Journal(project / "artifacts" / "farm.db") as journal:
        journal.finish_run(run.id, "failure", 5)
    clean(project, capsys)
    kept = ["jobs/farm-2", "toolchains/other", f"volumes/{cache}", "volumes/farm-tree-2"]
    assert left(shared) == sorted(kept)
    clean(project, capsys, "--compiler-caches")
    assert left(shared) == sorted(set(kept) - {f"volumes/{cache}"})


def left(shared):
    return sorted(path.relative_to(shared).as_posix() for path in shared.glob("*/*"))


def test_every_engine_of_the_runners_file_is_looked_at(project, monkeypatch, capsys):
    """Also the one that `local` names: its build trees were never listed."""
    _made(project / "ci")
    text = "runners: {local: {engine: docker, url: 'tcp://one'}, m2: {engine: docker, url: 'ssh://two'}}\n"
    (project / "ci/runners.yaml").write_text(text)
    urls = []

    def connect(url=None):
        urls.append(url)
        raise NoRunnerError(f"no Docker engine answers at {url}")

    monkeypatch.setattr("farm.engines.docker.connect", connect)
    clean(project, capsys, "--dry-run")
    assert urls == ["tcp://one", "ssh://two"]


def test_a_folder_without_runs_has_nothing_to_clean(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    assert clean(tmp_path, capsys)["found"] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["30", "d", "1.5d", "30x", ""])
def test_an_invalid_age_is_refused(text, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["clean", "--older-than", text])
    assert caught.value.code == 2
    assert "not an age" in capsys.readouterr().err


# --- retention: in ci/farm.yaml


@pytest.fixture
def retention(project):
    """A function that writes the policy of the project."""

    def write(text):
        (_made(project / "ci") / "farm.yaml").write_text(f"retention: {text}\n")

    return write


def aged(path, days):
    past = path.stat().st_mtime - days * DAY_S
    os.utime(path, (past, past))
    return str(path)


def what(found):
    return sorted(entry["what"] for entry in found["found"])


def test_a_policy_has_an_age_for_each_kind(project, capsys, retention):
    retention("{caches: 30d}")
    source = aged(project / "artifacts/sources/x.tar", 31)
    aged(project / "artifacts/bundles/given-up", 29)
    (folder,) = (project / "artifacts/runs").iterdir()
    aged(folder, 400)
    assert what(clean(project, capsys, "--dry-run")) == [source]


def test_the_command_line_replaces_the_policy(project, capsys, retention):
    retention("{caches: 30d}")
    assert len(what(clean(project, capsys, "--dry-run", "--older-than", "0h"))) == 3
    assert len(what(clean(project, capsys, "--dry-run", "--logs"))) == 3


def test_the_logs_of_a_failure_are_as_old_as_the_run(project, capsys, retention, ended):
    """Not as its folder, which the clean before has changed."""
    retention("{runs: 1d, unpublished: 1d, logs: 10d}")
    folder = ended("b" * 64, "failure", wheel=False)
    with Journal(project / "artifacts" / "farm.db") as journal, journal._writing():
        query = "UPDATE runs SET finished = ? WHERE id = ?"
        journal._db.execute(query, ("2026-01-01T00:00:00+00:00", folder.name))
    assert str(folder) in what(clean(project, capsys, "--dry-run"))


def test_an_invalid_age_is_refused_by_its_key(project, capsys, retention):
    retention("{caches: 30 days}")
    assert main(["--project", str(project), "clean"]) == 2
    assert "retention.caches" in capsys.readouterr().err
