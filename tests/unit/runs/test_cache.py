"""The compiler cache's log becomes counts, and the counts of runs a report."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import UsageError
from farm.base.yamlfile import MAX_BYTES, load
from farm.cli.cache import Counts, counts
from farm.cli.main import main
from tests.schemas import valid

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "dockerfiles" / "scripts" / "cache_counts.py"
MISS = "cache_miss\ndirect_cache_miss\nlocal_storage_miss\n"
DIRECT = "direct_cache_hit\nlocal_storage_hit\nlocal_storage_read_hit\n"
PREPROCESSED = "preprocessed_cache_hit\ndirect_cache_miss\nlocal_storage_hit\n"
LOG = (  # as ccache 4.7.5 writes it
    f"# /farm/src/a.cpp\n{MISS}# /farm/src/a.cpp\n{DIRECT}# /farm/src/bind.cpp\n{PREPROCESSED}# /farm/src/k.cu\n{MISS}"
    "# /farm/src/build/CMakeFiles/CMakeScratch/try.c\ncompile_failed\n# x.o\ncalled_for_link\n"
    "# /farm/src/a.cpp\ncalled_for_preprocessing\n# \nno_input_file\n"
)
COMMANDS = {
    "a.cpp": "/usr/bin/g++-11 -mavx -o a.o -c a.cpp",
    "bind.cpp": "/usr/bin/g++-11 -isystem /usr/include/python3.11 -mavx -o b.o -c bind.cpp",
    "k.cu": "/usr/bin/nvcc -gencode arch=compute_35,code=sm_35 -x cu -c k.cu -o k.o",
}


@pytest.fixture
def counted(tmp_path):
    """cache.json of a build with that log."""
    tree = tmp_path / "src" / "build"
    tree.mkdir(parents=True)
    entries = [{"directory": "/farm/src", "file": name, "command": command} for name, command in COMMANDS.items()]
    (tree / "compile_commands.json").write_text(json.dumps(entries))
    (tmp_path / "log").write_text(LOG)
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "log", tmp_path / "src", tmp_path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "compiler cache: 2 of 5 compiles were hits\n"
    return tmp_path / "cache.json"


def test_counts_are_by_what_the_objects_depend_on(counted):
    found = {(row.language, row.axis, row.result): row.count for row in load(counted, Counts).rows}
    assert found == {
        ("C++", "cpu", "direct"): 1,
        ("C++", "cpu", "miss"): 1,
        ("C++", "python", "preprocessed"): 1,
        ("CUDA", "gpu", "miss"): 1,
        ("C", "configure", "other"): 1,
    }


@pytest.fixture
def project(tmp_path, counted):
    folder = tmp_path / "project"
    (folder / "ci").mkdir(parents=True)
    for name in ("farm.yaml", "matrix.yaml"):
        (folder / "ci" / name).write_text((ROOT / "ci" / name).read_text())
    for run in ("one", "two"):
        built = folder / "artifacts" / "runs" / run / "built"
        built.mkdir(parents=True)
        (built / "cache.json").write_text(counted.read_text())
    (folder / "artifacts" / "runs" / "three").mkdir()
    return folder


def test_the_report_adds_up_the_runs(project, capsys):
    assert main(["--project", str(project), "cache", "report", "--json"]) == 0
    told = valid("cache", capsys.readouterr().out)
    assert told["runs"] == ["one", "two"]
    cpp = next(line for line in told["lines"] if (line["language"], line["axis"]) == ("C++", "cpu"))
    assert (cpp["compiles"], cpp["direct"], cpp["miss"], cpp["hits"]) == (4, 2, 2, 0.5)
    assert main(["--project", str(project), "cache", "report", "one"]) == 0
    text = capsys.readouterr().out
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in text.splitlines()[2:]}
    assert rows["CUDA", "gpu"] == ["1", "0", "0", "1", "0", "0.0%"]
    assert rows["all", "5"] == ["1", "1", "2", "1", "40.0%"]


@pytest.mark.parametrize("name", ["three", "absent", "../runs/one/../../.."])
def test_a_run_without_counts_is_named(project, capsys, name):
    assert main(["--project", str(project), "cache", "report", name]) == 2
    assert "has no compiler cache statistics" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"schema": 2, "rows": []}', '{"schema": 1, "rows": [{"language": "Ada"}]}', "[" * 100_000,
        json.dumps({"schema": 1, "rows": [{"language": "C", "axis": "cpu", "result": "miss", "count": -1}]}),
        " " * (MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_count_is_refused(tmp_path, text):
    (tmp_path / "cache.json").write_text(text)
    with pytest.raises(UsageError):
        load(tmp_path / "cache.json", Counts)


def test_no_compile_is_no_hit():
    assert counts(Counter())["hits"] == 0.0


def script():
    spec = importlib.util.spec_from_file_location("cache_counts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(st.lists(st.tuples(st.sampled_from(list(COMMANDS)), st.sampled_from([MISS, DIRECT, PREPROCESSED])), max_size=30))
def test_every_compile_is_counted_once(compiles):
    text = "".join(f"# {name}\n{counters}" for name, counters in compiles)
    assert sum(row["count"] for row in script().count(text, {})) == len(compiles)


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    script().count(text, {})
