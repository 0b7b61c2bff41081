"""Ctrl-C at many moments of every command: exit code 130, one quiet line, and nothing half-written.

A moment is an operation that Python tells of (PEP 578): an import, a file that is opened or
renamed, a process that is started. So the moments are the same on any machine, however busy.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.indexes.wheels import build_wheel

ROOT = Path(__file__).parents[3]
SELECT = ["--variant", "cpu-avx-py311", "--package", "canary"]
WHEEL = "canary-0.1.0+cpu.avx-cp311-cp311-manylinux_2_17_x86_64.whl"
ANY, CHANGES = 2, 4
"""At most so many moments of each command, spread over all operations and over those that change
files.
"""

INTERRUPTED = "farm: interrupted; nothing incomplete was published"
# The whole process group is told, as by a terminal. The program ends as a console script does.
PROGRAM = """
import itertools, json, os, signal, sys
kind, number, notes = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seen = {"any": itertools.count(1), "changes": itertools.count(1)}  # threads take turns at these
CHANGES = {"os." + name for name in ("mkdir", "rename", "remove", "rmdir", "link", "symlink", "utime", "chmod")}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def hook(event, arguments):
    if event == "import" and arguments[0] == "pyexpat":
        return  # imported by C, which makes an ImportError of an interrupt; ElementTree goes on without it
    kinds = []
    if event == "open" or event.partition(".")[0] in ("import", "os", "shutil", "subprocess", "sqlite3", "tempfile"):
        kinds.append("any")
    if event in CHANGES or event == "open" and (arguments[2] or 0) & WRITES or event == "subprocess.Popen":
        kinds.append("changes")
    for each in kinds:
        if (each, next(seen[each])) == (kind, number):
            os.killpg(0, signal.SIGINT)
from farm.cli.main import main
sys.addaudithook(hook)
try:
    sys.exit(main(sys.argv[4:]))
finally:
    found = {each: next(count) - 1 for each, count in seen.items()}
    with open(notes, "w") as stream:
        json.dump(found, stream)
"""


class Place:
    """A folder with a project, a wheel and an index; commands run in it."""

    def __init__(self, folder, template):
        self.folder = folder
        shutil.copytree(template, folder, symlinks=True)

    def run(self, arguments, kind="none", number=0):
        environ = {key: value for key, value in os.environ.items() if not key.startswith("FARM_")}
        # Compiled files that one run leaves would be operations that the next one has not.
        environ |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        environ |= {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp")}
        notes = self.folder.with_name("notes.json")
        command = [sys.executable, "-c", PROGRAM, kind, str(number), str(notes), *arguments]
        done = subprocess.run(
            command,
            env=environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        return done, json.loads(notes.read_text())

    def files(self):
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*")}


def pure_wheel(folder, version):
    return build_wheel(folder, f"canary-{version}-cp311-cp311-manylinux_2_17_x86_64.whl").path.name


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """What each command starts from: a project with the plan's wheel, published into `index`."""
    folder = tmp_path_factory.mktemp("template")
    for name in ("home", "tmp", "new"):
        (folder / name).mkdir()
    shutil.copytree(ROOT / "ci", folder / "ci")
    place = Place(folder / "made", folder)
    done, _ = place.run(["plan", *SELECT, "--json"])
    assert done.returncode == 0, done.stderr
    assert pure_wheel(place.folder, json.loads(done.stdout)["version"]) == WHEEL
    done, _ = place.run(["publish", WHEEL, *SELECT, "--index", "index"])
    assert done.returncode == 0, done.stderr
    return place.folder


INDEX = ("--index", "index")
COMMANDS = [
    ("init", "new"),
    ("plan", *SELECT, "--json"),
    ("render", *SELECT, "-o", "rendered"),
    ("why", *SELECT),
    ("matrix",),
    ("detect",),
    ("completion", "bash"),
    ("status",),
    ("clean",),
    ("inspect", WHEEL),
    ("verify", WHEEL, *SELECT),
    ("repair", WHEEL, "--into", "canary", "--version", "0.1.0+cpu.avx.1", "-o", "repaired"),
    ("publish", WHEEL, *SELECT, "--index", "fresh"),
    ("index", "check", *INDEX),
    ("index", "reconcile", *INDEX),
    ("index", "yank", WHEEL, "--reason", "a test", *INDEX),
    ("publish", WHEEL, "--to", "cpu-avx", "--index", "further"),
    ("index", "remove", WHEEL, "--reason", "a test", *INDEX),
    ("index", "promote", WHEEL, "--to", "cpu", *INDEX),
    ("site", "build", *INDEX),
]


def spread(count, most):
    """At most so many of the numbers from 1 to `count`."""
    return sorted({1 + step * (count - 1) // most for step in range(min(count, most))})


def interrupted(command, kind, number, folder, template):
    """A place where the command was interrupted at that operation, and what it said.

    Writers that race, as those that try a store do, make more operations in one run than in
    another: where a run ends before its moment, an earlier one is taken.
    """
    while True:
        place = Place(folder, template)
        done, counts = place.run(command, kind, number)
        if counts[kind] >= number:
            return place, done
        assert done.returncode == 0, done.stderr
        shutil.rmtree(folder)
        number = max(1, counts[kind] * 3 // 4)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_interrupted_command_is_quiet_and_may_be_run_again(command, template, tmp_path):
    whole = Place(tmp_path / "whole", template)
    done, counts = whole.run(command)
    assert done.returncode == 0, done.stderr
    wrong = []
    for kind, most in (("any", ANY), ("changes", CHANGES)):
        for number in spread(counts[kind], most):
            place, done = interrupted(
                command, kind, number, tmp_path / f"{kind}-{number}", template
            )
            lines = done.stderr.splitlines()
            if done.returncode != 130 or lines[-1:] != [INTERRUPTED] or "Traceback" in done.stderr:
                wrong.append(f"{kind} {number}: exit code {done.returncode}: {done.stderr[-1500:]}")
            if kind == "changes":
                again, _ = place.run(command)
                left = place.files() ^ whole.files()
                if again.returncode or left:
                    wrong.append(
                        f"{kind} {number}, again: exit code {again.returncode}: "
                        f"{again.stderr[-900:]}{sorted(left)}"
                    )
            shutil.rmtree(place.folder)
    assert not wrong, "\n".join(wrong)
