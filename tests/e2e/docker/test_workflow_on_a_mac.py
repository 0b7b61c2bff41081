"""build-wheels.yml's build on a Mac, as far as a Linux machine can be taken for one.

Real: the workflow's script, the farm, the host engine, the rendered build.sh, repair and verify.
Stand-ins: `uname`, what Python says of its machine, Apple's compilers, and `python -m build`, which
leaves a wheel without machine code.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from farm.run.journal import Journal
from tests.e2e.workflow import carry_out, checkout, command, of_entry, outputs
from tests.unit.wheel.conftest import build_wheel

CHANNEL = "apple"
MAC = """
import platform, sys
from farm.platforms import facts
mac = facts.facts("macos")
facts.here = lambda: mac
platform.machine = lambda: "arm64"
from farm.cli.main import main
sys.exit(main())
"""
TOOLS = {
    "uname": 'case "$1" in -s) echo Darwin;; -m) echo arm64;; esac',
    "clang": "exec gcc",
    "clang++": 'for word; do shift; case "$word" in -m*) ;; *) set -- "$@" "$word";; esac; done; '
    'exec g++ "$@"',
    "cmake": "exit 1",
    "ninja": "exit 1",
}
BUILD = """\
case "$1 $2" in
"-c "*find_spec*) echo 3.11; exit;;
"-m build") while [ "$1" != --outdir ]; do shift; done; exec cp {wheel} "$2";;
esac
exec {python} "$@"
"""
RECIPE = {
    "package": "applet",
    "summary": "a package without machine code",
    "version": "1.0.0",
    "platforms": ["macos"],
    "components": [],
    "device_code": False,
    "source": {"kind": "path", "path": "src"},
    "apt": [],
    "env": {},
    "memory_per_job_gb": 0.5,
    "disk_gb": 0.5,
    "timeout_minutes": 5,
    "vendor_into": "applet",
}


def add_applet(project: Path) -> None:
    (project / "recipes/applet/src").mkdir(parents=True)
    (project / "recipes/applet/src/applet.py").write_text("")
    (project / "recipes/applet/recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    path = project / "ci/matrix.yaml"
    data = yaml.safe_load(path.read_text())
    data["channels"][CHANNEL] = {
        "summary": "for a Mac",
        "platforms": ["macos"],
        "packages": ["applet"],
        "base": "debian-bookworm",
        "toolkit": "debian",
        "cuda": "11.8",
        "torch": "2.6.0",
        "gpus": ["mps"],
        "cpus": ["arm64"],
        "pythons": ["py311"],
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False))


@pytest.fixture
def mac(tmp_path, own_machine_lock):
    """The folder for PATH of a runner that takes itself for a Mac."""
    if shutil.which("g++") is None or sys.version_info[:2] != (3, 11):
        pytest.skip("needs g++ and Python 3.11")
    path = command(
        tmp_path / "bin", f'exec {shlex.quote(sys.executable)} -c {shlex.quote(MAC)} "$@"'
    )
    wheel = build_wheel(
        tmp_path,
        {"applet.py": b"x = 1\n"},
        name="applet",
        version="1.0.0+mps.arm64",
        tag="cp311-cp311-macosx_11_0_arm64",
    )
    build = BUILD.format(wheel=shlex.quote(str(wheel)), python=shlex.quote(sys.executable))
    for name, text in {**TOOLS, "python3.11": build, "python3": build}.items():
        (path / name).write_text(f"#!/bin/sh\n{text}\n")
        (path / name).chmod(0o755)
    return path


def test_a_plan_for_a_mac_is_built_by_the_workflow(mac, tmp_path):
    def job(name, **env):
        made = checkout(tmp_path / name, tmp_path / "index")
        add_applet(made)
        carry_out("build-wheels.yml", name, made, path=mac, environ=os.environ, **env)
        return made

    inputs = {"CHANNEL": CHANNEL, "PACKAGE": "*", "VARIANT": "*", "CHUNK": "0"}
    (entry,) = outputs(job("plan", **inputs))["build"]["include"]
    assert (entry["platform"], "macos" in entry["runs_on"]) == ("macos", True)
    built = job("build", **of_entry(entry))
    assert sorted(path.name for path in (built / "farm-out").iterdir()) == [
        "applet-1.0.0+mps.arm64-cp311-cp311-macosx_11_0_arm64.whl",
        "inputs.json",
    ]
    with Journal(built / "artifacts/farm.db") as journal:
        (run,) = journal.runs()
    assert (run.result, run.request.on) == ("success", "host")
