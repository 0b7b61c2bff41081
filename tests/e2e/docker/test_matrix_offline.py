"""The benchmark that builds a matrix on a machine without network, with wheels of half a minute."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

from tests.bench import matrix_offline
from tests.e2e.conftest import Farm, make_project, pack_fast
from tests.larger_canary import larger_canary

FILES = 3
STAGES = [["cpu-avx-py311"], ["cpu-avx2-py311", "cpu-avx-py311 --rebuild 1"]]


def test_a_matrix_is_built_elsewhere_through_one_cache(tmp_path, monkeypatch):
    farm = Farm(make_project(tmp_path / "project"), larger_canary(tmp_path / "code", FILES, ccache=True))
    pack_fast(farm.project)

    def run(*arguments):
        done = farm.run(*arguments)
        assert done.returncode == 0, done.stderr

    monkeypatch.setattr(matrix_offline, "farm", run)
    carried, out, state = tmp_path / "carried", tmp_path / "out", tmp_path / "state"
    matrix_offline.prepare(carried, STAGES, ["--package", "canary"])
    command = ["unshare", "--net", sys.executable, "-I", carried / "matrix.py", "--out", out, "--state", state]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    for told in (3, 0):  # the second time all are there
        done = subprocess.run(command, check=False, cwd="/", env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("s of CPU time in") == told
    assert str(state) not in Path("/proc/self/mounts").read_text()
    rows = {row["name"]: row for row in json.loads((out / "matrix.json").read_text())}
    assert next(iter(rows)) == "cpu-avx-py311"
    assert rows.keys() == {"cpu-avx-py311", "cpu-avx2-py311", "cpu-avx-py311-rebuild-1"}
    for name, row in rows.items():
        assert hashlib.sha256((out / name / row["wheel"]).read_bytes()).hexdigest() == row["sha256"]
    given = ["--variant", "cpu-avx2-py311", "--package", "canary", "--from-bundle", str(out / "cpu-avx2-py311")]
    published = farm.run("submit", *given, "--no-smoke")
    assert published.returncode == 0, published.stderr
    assert "canary==0.1.0+cpu.avx2" in published.stdout
    versions = {row["wheel"].split("-")[1] for row in rows.values()}
    assert versions == {"0.1.0+cpu.avx", "0.1.0+cpu.avx2", "0.1.0+cpu.avx.1"}
    found = {name: Counter() for name in rows}
    for name, row in rows.items():
        for each in row["cache"]:
            found[name][each["result"]] += each["count"]
    # The version is in a file or two; the others are as in the first build.
    assert found["cpu-avx-py311"]["miss"] >= FILES
    assert found["cpu-avx2-py311"]["miss"] >= FILES
    assert found["cpu-avx-py311-rebuild-1"]["direct"] >= FILES, found
    console = Console(width=140)
    with console.capture() as shown:
        matrix_offline.report(list(rows.values()), console)
    assert "3 builds as costly as the first" in shown.get()
