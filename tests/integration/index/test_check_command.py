"""`farm index check`: exit codes; and what reconcile leaves."""

import json

import pytest

from farm.cli.main import main
from farm.index.store_urls import open_store

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
HTML = "whl/sm35-avx/simple/canary/index.html"


@pytest.fixture
def check(tmp_path, make_wheel, put, capsys):
    """`check(*before)` gives the exit code and the problems of an index with two wheels."""
    for name in (FIRST, SECOND):
        put(open_store(str(tmp_path / "index")), make_wheel(name))

    def check(*before):
        for command in before:
            main(["index", command, "--index", str(tmp_path / "index")])
            capsys.readouterr()
        code = main(["index", "check", "--json", "--index", str(tmp_path / "index")])
        return code, json.loads(capsys.readouterr().out)

    return check


def test_a_sound_index(check):
    assert check() == (0, [])


def test_unfinished_work_is_exit_code_1_and_reconcile_ends_it(check, tmp_path):
    (tmp_path / "index/catalog.json").unlink()
    code, problems = check()
    assert code == 1
    assert [problem["broken"] for problem in problems] == [False]
    assert check("reconcile") == (0, [])


def test_what_is_broken_is_exit_code_6(check, tmp_path):
    page = tmp_path / "index" / HTML
    page.write_text(page.read_text().replace("canary", "canari"))
    assert check()[0] == 6
    assert check("reconcile") == (0, [])


def test_findings_that_reconcile_cannot_mend_are_reported_after_it(check, tmp_path):
    (tmp_path / "index/whl/files" / FIRST).unlink()
    assert check()[0] == 6
    code, [problem] = check("reconcile")
    assert code == 1
    assert "claimed, and its files are not there" in problem["what"]


@pytest.mark.parametrize("command", [["check"]])
@pytest.mark.parametrize("place", ["index", "file", "s3"])
def test_where_no_index_is_nothing_is_called_whole(
    tmp_path, monkeypatch, s3_url, command, place, capsys
):
    monkeypatch.chdir(tmp_path)
    index = {"index": "none", "file": (tmp_path / "none").as_uri(), "s3": s3_url}[place]
    assert main(["index", *command, "--index", index]) == 2
    assert "there is no index at " in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
