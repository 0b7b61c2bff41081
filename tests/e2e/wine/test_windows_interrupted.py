"""build.cmd killed, cut off, without room or network: a true message, and the next run goes on.

docs/how-to/windows.md has the table. Compilers, Python packages and Visual Studio are stand-ins.
Real are git and curl (this machine's, by relay.py), the installer of NVIDIA's archives in Windows'
Python, and the full or read-only disk.
"""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import wait
from tests.e2e.wine.relay import ended, kill_all, relay
from tests.e2e.wine.test_windows_build import Machine, forget, plan, tools, without_checks  # noqa: F401 fixtures
from tests.e2e.wine.windows_python import windows_path
from tests.integration.toolkit.conftest import served, zipped  # noqa: F401 a fixture

TIMEOUT_S = 300
HANG = "C:\\tools\\hangs"
VENV = r"self=C:\farm\venv\Scripts\python.exe"
# Where it is killed: tool, part of its command line, what it has done by then.
STEPS = [
    ("python.exe", "sys.exit(sys.version_info"),
    ("vswhere.exe", "installationPath", r"print=C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools"),
    ("python.exe", "install_toolkit.py", r"write=C:\farm\.cuda-11.4-8.7.0-x1\tree\bin\nvcc.exe"),
    ("python.exe", "fetch_tools.py", r"self=C:\farm\tools\sccache\sccache.exe"),
    ("python.exe", "-m venv", VENV),
    ("python.exe", "--require-hashes", r"write=C:\farm\venv\Library\bin\libiomp5md.dll"),
    ("nvcc.exe", "--version", "print=Cuda compilation tools, release 11.4, V11.4.152"),
    ("python.exe", "count_jobs.py", "print=7"),
    ("git.exe", " clone ", r"write=C:\farm\src\.git\HEAD"),
    ("git.exe", "rev-parse HEAD",),
    ("python.exe", "-m build", r"write=C:\farm\src\build\half.obj", r"write=C:\farm\t\tmp1\half.cpp", r"write={out}\wheel\half.whl"),
]  # fmt: skip


@pytest.fixture
def machine(tools, wine, plan, tmp_path):  # noqa: F811
    return Machine(tools, wine, plan, tmp_path)


def killed_when(machine, happened, relayed=None, **environment):
    """Starts build.cmd, waits until `happened()`, and kills all of it at once."""
    process = machine.start(**environment)
    wait("the moment of the kill", happened)
    kill_all({"FARM_TEST_RECORD": machine.environment["FARM_TEST_RECORD"]})
    if relayed:
        relayed.kill()
    ended(process)


def test_killed_at_any_step_the_next_run_goes_on(machine):
    """Each run is killed one step later than the one before it; the last is not, and leaves what a
    first one leaves.
    """
    hangs = machine.c / "tools/hangs"
    out = rf"C:\farm\out\{machine.plan.digest[:12]}"
    for tool, part, *done in STEPS:
        rules = list(machine.rules)
        machine.rules.insert(
            0, (tool, part, *(action.replace("{out}", out) for action in done), f"hang={HANG}")
        )
        hangs.unlink(missing_ok=True)
        killed_when(machine, hangs.exists)
        assert part in machine.calls()[-1]["command"]
        machine.rules = rules
    code, output = machine.run()
    assert code == 0, output + machine.log.read_text()
    assert [path.name for path in (machine.out / "wheel").iterdir()] == ["torch-1.whl"]
    assert len(list((machine.out / "lib").iterdir())) == 4
    left = [path.name for path in (machine.c / "farm").iterdir() if path.name.startswith(".cuda")]
    assert (
        left,
        (machine.c / "farm/t/tmp1").exists(),
        (machine.c / "farm/src/build").exists(),
    ) == ([], False, True)


def git(folder, *words):
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@example.org", *words],
        cwd=folder, capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return done.stdout.strip()


def repository(folder, name):
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.fixture
def upstream(tmp_path):
    """A repository with a submodule, and its tag."""
    repository(tmp_path / "git/part", "part.cpp")
    whole = repository(tmp_path / "git/whole", "setup.py")
    git(whole, "submodule", "--quiet", "add", f"file://{tmp_path}/git/part", "third_party/part")
    git(whole, "commit", "-q", "-m", "two")
    git(whole, "tag", "v1")
    return whole


@pytest.fixture
def cloning(tools, wine, plan, upstream, tmp_path):  # noqa: F811
    """A machine that clones the repository with a real git, which obeys `hook` after a checkout."""
    source = plan.source.model_copy(
        update={
            "url": f"file://{upstream}",
            "tag": "v1",
            "commit": git(upstream, "rev-parse", "HEAD"),
        }
    )
    machine = Machine(tools, wine, plan.model_copy(update={"source": source}), tmp_path)
    machine.rules = [rule for rule in machine.rules if rule[0] != "git.exe"]
    home = tmp_path / "home"
    hook = home / "hooks/post-checkout"
    hook.parent.mkdir(parents=True)
    (home / ".gitconfig").write_text(
        f'[protocol "file"]\nallow = always\n[core]\nhooksPath = {hook.parent}\n'
    )
    place = tmp_path / "relay"
    place.mkdir()
    with relay(place, machine.c) as relayed:
        relayed.environment = {"HOME": str(home), "GIT_TERMINAL_PROMPT": "0"}
        shutil.copy(relayed.exe, machine.c / "tools/git.exe")
        yield machine, relayed, hook


def clones(relayed):
    """How often a clone was made since the last look."""
    made = [command for command in relayed.commands if "clone" in command]
    relayed.commands.clear()
    return len(made)


def test_real_git_killed_or_with_a_dead_submodule(cloning, upstream):
    machine, relayed, hook = cloning
    part = machine.c / "farm/src/third_party/part/part.cpp"
    away = upstream.with_name("away")
    # The submodule's server is away: HEAD is right, and the folder of the submodule empty.
    upstream.with_name("part").rename(away)
    code, out = machine.run()
    assert (code, "step source FAILED" in out, "can this machine reach file://" in out) == (
        9,
        True,
        True,
    ), out
    away.rename(upstream.with_name("part"))
    # Killed between the checkout and the submodules.
    reached = hook.with_name("reached")
    hook.write_text(f"#!/bin/sh\ntouch {reached}\nsleep 600\n")
    hook.chmod(0o755)
    killed_when(machine, reached.exists, relayed)
    hook.unlink()
    assert (machine.c / "farm/src/.git/HEAD").exists()
    assert not part.exists()
    clones(relayed)
    code, out = machine.run()
    assert (code, clones(relayed), part.exists()) == (0, 1, True), out + machine.log.read_text()
    # A tree of another plan whose submodule lost its files is mended without the network.
    forget(machine)
    part.unlink()
    upstream.with_name("part").rename(away)
    code, out = machine.run()
    assert (code, clones(relayed), part.exists()) == (0, 0, True), out + machine.log.read_text()
    away.rename(upstream.with_name("part"))
    # One that a killed git locked is cloned again.
    forget(machine)
    (machine.c / "farm/src/.git/index.lock").touch()
    code, out = machine.run()
    assert (code, clones(relayed), part.exists()) == (0, 1, True), out + machine.log.read_text()


@pytest.fixture
def fetching(machine, windows_python, served, tmp_path):  # noqa: F811
    """prepare.cmd with an archive of NVIDIA's kind and one tool on a server; curl and Python are
    real.
    """
    kit = machine.kit
    toolkit = zipped(
        "cuda_nvcc-windows-x86_64-11.4.1-archive",
        {
            "bin/nvcc.exe": (machine.folder / "standin.exe").read_bytes(),
            "bin/x": os.urandom(300_000),
        },
    )
    tool = zipped("top", {"sccache.exe": b"sccache"})
    served.files = {"/nvcc.zip": toolkit, "/sccache.zip": tool}
    row = {
        "component": "cuda_nvcc",
        "version": "11.4.1",
        "url": f"{served.url}/nvcc.zip",
        "size": len(toolkit),
    }
    row |= {"sha256": hashlib.sha256(toolkit).hexdigest(), "kind": "zip", "place": "toolkit"}
    (kit / "toolkit.json").write_text(
        json.dumps({"schema": 1, "layout": "windows", "archives": [row]})
    )
    row = {"name": "sccache", "version": "1", "url": "http://127.0.0.1:9/sccache.zip", "max_mb": 1}
    row |= {"sha256": hashlib.sha256(tool).hexdigest(), "members": {"*sccache.exe": "sccache/"}}
    (kit / "tools.json").write_text(json.dumps([row]))
    for name in ("t", "venv"):
        (machine.c / "farm" / name).mkdir(parents=True)
    [receipt] = [
        line for line in (kit / "prepare.cmd").read_text().split() if line.endswith(".ok")
    ][:1]
    (machine.c / receipt.removeprefix("C:\\").replace("\\", "/")).touch()
    place = tmp_path / "relay"
    place.mkdir()
    curl = machine.c / "windows/system32/curl.exe"
    with relay(place, machine.c) as relayed:
        shutil.copy(relayed.exe, curl)
        yield (
            relayed,
            {"FARM_PYTHON": windows_path(windows_python.exe), "FARM_LOG": r"C:\farm\t\log"},
            tool,
        )
    curl.unlink()


def test_half_a_download_and_half_an_unpack(machine, fetching, served):  # noqa: F811
    relayed, environment, tool = fetching
    log = machine.c / "farm/t/log"
    # The connection breaks again and again; then the machine loses power.
    served.faults["/nvcc.zip"] = [("cut", 100_000), ("cut", 0), ("cut", 0), ("cut", 0)]

    def parts():
        return [path.stat().st_size for path in (machine.c / "farm/downloads").glob("*.part")]

    process = machine.start("prepare.cmd", **environment)
    wait("the first part", lambda: parts() == [100_000])
    kill_all({"FARM_TEST_RECORD": machine.environment["FARM_TEST_RECORD"]})
    relayed.kill()
    ended(process)
    served.faults.clear()
    served.log.clear()
    unpacked = machine.c / "farm/.cuda-11.4-8.7.0-killed/tree"
    unpacked.mkdir(parents=True)
    code, out = machine.run("prepare.cmd", **environment)
    text = log.read_text(errors="replace")
    assert ("/nvcc.zip", "bytes=100000-") in [entry[:2] for entry in served.log], text
    assert list((machine.c / "farm").glob("cuda-*/bin/nvcc.exe")), text
    assert not unpacked.exists()
    # The second archive's server is not there: said with what to do, nothing half-written.
    assert code == 9, out
    assert "127.0.0.1:9/sccache.zip" in text
    assert "set FARM_ARCHIVES to it" in text
    assert not (machine.c / "farm/tools/sccache.ok").exists()
    # A folder of one's own helps; a wrong file in it is named and not used.
    own = machine.c / "users/Jürgen/my archives"
    own.mkdir(parents=True)
    (own / "sccache.zip").write_bytes(b"something else")
    environment["FARM_ARCHIVES"] = "C:\\users\\Jürgen\\my archives"
    assert machine.run("prepare.cmd", **environment)[0] == 9
    assert "another sha256 than the pinned" in log.read_text(errors="replace")
    (own / "sccache.zip").write_bytes(tool)
    code, out = machine.run("prepare.cmd", **environment)
    assert code == 0, out + log.read_text(errors="replace")
    assert (machine.c / "farm/tools/sccache/sccache.exe").read_bytes() == b"sccache"
    assert all("--fail" in command and "--config" in command for command in relayed.commands)


@pytest.fixture
def disk(wine, require):
    """C:\\farm as a disk of its own of 4 MB, made after the machine; a callable mounts it anew with
    other options.
    """
    if os.geteuid() != 0:
        require("a small disk", "run as root: mount is needed")
    farm = Path(wine["WINEPREFIX"]) / "drive_c/farm"
    farm.mkdir()

    def mount(*options):
        done = subprocess.run(
            ["mount", *options], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            require("a small disk", f"mount: {done.stderr.strip()}")

    mount("-t", "tmpfs", "-o", "size=4m", "farm-test", str(farm))
    yield lambda options: mount("-o", f"remount,{options}", str(farm))
    subprocess.run(["umount", "-l", str(farm)], check=True, timeout=60)


def fill(path, leave):
    """A file that takes all of the disk but `leave` bytes."""
    free = os.statvfs(path.parent)
    path.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - leave))


def test_a_full_or_read_only_disk(machine, disk):
    filler = machine.c / "farm/filler"
    disk("ro")
    code, out = machine.run()
    assert (code, "step folders FAILED" in out, "is C: writable and not full?" in out) == (
        9,
        True,
        True,
    ), out
    disk("rw")
    fill(filler, 8192)
    code, out = machine.run()
    assert (code, "step folders FAILED" in out, "is C: writable and not full?" in out) == (
        9,
        True,
        True,
    ), out
    filler.unlink()
    code, out = machine.run()
    assert code == 0, out


def test_a_disk_that_fills_while_libraries_are_copied(machine, disk):
    cuda = machine.plan.env["CUDA_HOME"].replace("/", "\\")
    machine.change(
        "python.exe",
        "install_toolkit.py",
        rf"self={cuda}\bin\nvcc.exe",
        rf"self={cuda}\bin\cudart64_110.dll",
    )
    built = next(rule for rule in machine.rules if rule[1] == "-m build")[2:]
    machine.change("python.exe", "-m build", *built, r"fill=C:\farm\filler")
    code, out = machine.run()
    assert (code, "step libraries FAILED" in out, "next: is C: full?" in out) == (9, True, True), (
        out
    )
    assert "full, or not readable" in out  # Wine asks dir by a file on that disk
    assert "done:" not in out
    (machine.c / "farm/filler").unlink()
    machine.change("python.exe", "-m build", *built)
    code, out = machine.run()
    assert code == 0, out
    assert (machine.out / "lib/cudart64_110.dll").stat().st_size > 100_000


FULL = "make room: less than 256 MB are free"
# Where the disk fills: tool, part of its command line, how that program ends; the step that fails.
FILLED = [
    ("vswhere.exe", "installationPath", 0, "visual studio"),
    ("python.exe", "-m venv", 1, "python packages"),
    ("python.exe", "--require-hashes", 1, "python packages"),
    ("nvcc.exe", "--version", 0, "toolkit"),
    ("python.exe", "count_jobs.py", 0, "jobs"),
    ("git.exe", " clone ", 128, "source"),
    ("git.exe", "rev-parse HEAD", 0, "source"),
    ("python.exe", "-m build", 1, "build"),
]


@pytest.fixture
def roomy(machine, disk, windows_python):
    """A disk of 384 MB; what build.cmd asks Python about it is asked the real one."""
    disk("size=384m")
    script = machine.kit / "build.cmd"
    text = script.read_text()
    assert '"%FARM_PYTHON%" -c "import shutil' in text
    real = windows_path(windows_python.exe)
    script.write_text(
        text.replace('"%FARM_PYTHON%" -c "import shutil', f'{real} -c "import shutil')
    )
    return machine.c / "farm/filler"


def test_a_disk_that_fills_at_any_step(machine, roomy):
    """Whatever the program that met it says or leaves, the reason is named; each run gets one step
    further.
    """
    for tool, part, ends, step in FILLED:
        rules = list(machine.rules)
        machine.rules.insert(
            0, (tool, part, r"fill=C:\farm\filler", "print=something", f"exit={ends}")
        )
        code, out = machine.run()
        assert part in machine.steps()[-1]["command"], out
        assert (code, f"step {step} FAILED" in out, FULL in out) == (9, True, True), out
        machine.rules = rules
        roomy.unlink()
    code, out = machine.run()
    assert code == 0, out
    # With room, a failure keeps its own reason and code.
    machine.change("python.exe", "-m build", "exit=1")
    code, out = machine.run()
    assert (code, "the first line with FAILED: or error in the log" in out) == (5, True), out


def test_a_disk_that_is_full_for_the_toolkit_or_an_archive(machine, roomy, fetching):
    """The real installer, curl and Python; build.cmd as it is."""
    environment = {"FARM_PYTHON": fetching[1]["FARM_PYTHON"], "FARM_ARCHIVES": r"C:\tools\archives"}
    own = machine.c / "tools/archives"
    own.mkdir()
    tool = zipped("top", {"sccache.exe": os.urandom(600_000)})
    (own / "sccache.zip").write_bytes(tool)
    [row] = json.loads((machine.kit / "tools.json").read_text())
    row["sha256"] = hashlib.sha256(tool).hexdigest()
    (machine.kit / "tools.json").write_text(json.dumps([row]))
    machine.tool("farm/venv/Scripts/python.exe")
    without_checks(machine)
    for step, leave in (("toolkit", 250_000), ("archives", 1_300_000)):
        fill(roomy, leave)
        code, out = machine.run(**environment)
        assert (code, f"step {step} FAILED" in out, FULL in out) == (9, True, True), out
        text = machine.log.read_text(errors="replace")
        assert "check disk space and permissions" in text
        assert "check the network" not in text
        roomy.unlink()
    code, out = machine.run(**environment)
    assert code == 0, out


def test_paths_that_compilers_cannot_open_are_named_before_the_build(
    cloning, upstream, windows_python
):
    """Real git makes them; the longest that is possible is built."""
    machine, _, _ = cloning
    script = machine.kit / "build.cmd"
    real = windows_path(windows_python.exe)
    script.write_text(
        script.read_text().replace(
            '"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" long_paths.py',
            f'"%FARM_PYTHON%" logged.py {real} long_paths.py',
        )
    )
    now = machine.plan.source.commit
    folder = "f" * 120
    name = "n" * (259 - len(rf"C:\farm\src\{folder}\.cpp")) + ".cpp"
    (upstream / folder).mkdir()
    for extra, code_wanted in (("", 0), ("x", 5)):
        (upstream / folder / (extra + name)).write_text("int x;")
        git(upstream, "add", ".")
        git(upstream, "commit", "-q", "-m", "long")
        git(upstream, "tag", "-f", "v1")
        before, now = now, git(upstream, "rev-parse", "HEAD")
        script.write_text(script.read_text().replace(before, now))
        code, out = machine.run()
        assert code == code_wanted, out
    assert "step source FAILED" in out
    assert "cl.exe, nvcc and CMake cannot open" in out
    assert (
        rf"260 characters, 259 are possible: C:\farm\src\{folder}\x{name}"
        in machine.log.read_text()
    )
    assert not [call for call in machine.calls("python.exe") if "-m build" in call["command"]]


def test_real_git_on_a_full_disk(cloning, disk):
    machine, relayed, _ = cloning
    disk("rw")
    code, out = machine.run()
    assert code == 0, out + machine.log.read_text()
    shutil.rmtree(machine.c / "farm/src")
    filler = machine.c / "farm/filler"
    fill(filler, 32768)
    code, out = machine.run()
    assert (code, "step source FAILED" in out, "is C: full?" in out) == (9, True, True), out
    filler.unlink()
    code, out = machine.run()
    assert (code, clones(relayed)) == (0, 3), out + machine.log.read_text()


def test_the_place_of_python_is_written_as_utf8(machine):
    """It may hold any letter; cmd reads the file as UTF-8, which Python does not write to a file
    unless asked.

    That cmd finds such a Python is not tried: Wine's cmd without a console has no code page.
    """
    code, out = machine.run(PYTHONHOME=r"C:\another")
    assert code == 0, out
    [py] = machine.calls("py.exe")
    assert (py["env"]["PYTHONUTF8"], py["env"].get("PYTHONHOME")) == ("1", None)
