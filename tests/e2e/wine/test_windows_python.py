"""The farm on Python for Windows (windows_python.py says what is real there), beside the same farm
on this machine.
"""

import hashlib
import json
import subprocess
import zipfile
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm.index.pages import json_key
from tests.e2e.conftest import Farm, make_project
from tests.e2e.wine.test_wine import ROOT, compile_c, pack
from tests.e2e.wine.windows_python import PARTS, WindowsPython, windows_path
from tests.integration.toolkit.conftest import zipped

KEPLER = ("--variant", "sm35-avx-py311", "--channel", "kepler-2.0.1", "--platform", "windows")
CANARY = ("--variant", "sm35-avx-py311", "--package", "canary")
CPU = ("--variant", "cpu-avx-py311", "--package", "canary")
# What torch says of itself, and no more: the probe's other checks fail, each by itself.
TALKS_LIKE_TORCH = b"""
__version__ = "2.0.1+cu114.sm35.avx"
class version:
    cuda = "11.4"
class cuda:
    get_arch_list = staticmethod(lambda: ["sm_35"])
"""


@dataclass(frozen=True)
class WindowsFarm:
    """The farm's command on Windows' Python."""

    python: WindowsPython
    project: Path

    def run(self, *arguments: object, code: int = 0) -> str:
        done = self.script("-m", "farm.cli.main", "--project", self.project, *arguments)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def script(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.python.run(
            *arguments, cwd=self.project, env={"PYTHONPATH": windows_path(ROOT)}, timeout=600
        )


@pytest.fixture(scope="module")
def windows(windows_python, require, tmp_path_factory):
    windows_python.install(require, "-r", str(ROOT / "requirements.lock"))
    windows_python.install(require, "pip")
    return WindowsFarm(windows_python, make_project(tmp_path_factory.mktemp("windows") / "project"))


@pytest.fixture(scope="module")
def linux(tmp_path_factory):
    return Farm(make_project(tmp_path_factory.mktemp("linux") / "project"))


def test_it_is_pythons_own_windows_build(windows_python):
    done = windows_python.run(
        "-c", "import sys, os; print(sys.version); print(os.sep, os.name); print(sys.executable)"
    )
    assert done.returncode == 0, done.stderr
    version, kind, exe = done.stdout.splitlines()
    assert version.startswith("3.11.9 (tags/v3.11.9:de54cf5, ")
    assert version.endswith("[MSC v.1938 64 bit (AMD64)]")
    assert kind == "\\ nt"
    assert exe.endswith("\\python\\python.exe")


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("selectors", [KEPLER, CANARY], ids=["kepler", "canary"])
def test_a_plan_and_what_is_rendered_from_it_are_the_same_bytes(
    windows, linux, selectors, tmp_path
):
    assert json.loads(windows.run("plan", *selectors, "--json")) == linux.json("plan", *selectors)
    windows.run("render", *selectors, "-o", tmp_path / "windows")
    linux.json("render", *selectors, "-o", str(tmp_path / "linux"))
    rendered = tree(tmp_path / "windows")
    assert rendered == tree(tmp_path / "linux")
    assert len(rendered) > 8


def test_it_says_what_it_sees_of_the_machine(windows):
    """Nothing needed is installed: no traceback, each absence by its name."""
    found = json.loads(windows.run("doctor", "--build", "--json", code=4))["findings"]
    states = {finding["check"]: finding["state"] for finding in found}
    assert {name: states[name] for name in ("Git", "memory", "jobs", "Python")} == {
        "Git": "missing",
        "memory": "ok",
        "jobs": "ok",
        "Python": "ok",
    }
    detected = windows.run("detect")
    assert "Windows 10" in detected
    assert "-py311" in detected


def test_a_windows_wheel_is_explained_and_repaired(windows, linux, tmp_path):
    folder, libs = tmp_path / "built", tmp_path / "libs"
    folder.mkdir()
    libs.mkdir()
    source = "__declspec(dllexport) int omp(void) { return 42; }\n"
    omp = compile_c(libs, "libiomp5md.dll", source, "-shared", "-static-libgcc")
    source = "int omp(void); __declspec(dllexport) int cpu(void) { return omp(); }\n"
    cpu = compile_c(folder, "torch_cpu.dll", source, "-shared", "-static-libgcc", str(omp))
    files = {"torch/__init__.py": b"", "torch/lib/torch_cpu.dll": cpu.read_bytes()}
    wheel = pack(folder / "torch-1.0-cp311-cp311-win_amd64.whl", files)

    seen = json.loads(windows.run("inspect", wheel, "--json"))
    assert seen == linux.json("inspect", str(wheel))
    [why] = json.loads(windows.run("inspect", wheel, "--explain", "WinError 126", "--json"))
    assert [each.partition(",")[0] for each in why["culprits"]] == ["libiomp5md.dll"]
    windows.run("repair", wheel, "--lib-dir", libs, "--into", "torch/lib", "-o", tmp_path / "there")
    linux.json(
        "repair",
        str(wheel),
        "--lib-dir",
        str(libs),
        "--into",
        "torch/lib",
        "-o",
        str(tmp_path / "here"),
    )
    there, here = (zipfile.ZipFile(tmp_path / name / wheel.name) for name in ("there", "here"))
    with there, here:
        assert there.namelist() == here.namelist()
        assert [there.read(name) for name in there.namelist()] == [
            here.read(name) for name in here.namelist()
        ]
        there.extractall(tmp_path / "installed")
    dll = windows_path(tmp_path / "installed" / "torch" / "lib" / "torch_cpu.dll")
    done = windows.python.run(
        "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cpu())", dll
    )
    assert done.stdout.split() == ["42"], done.stderr


def wheel_for(folder, version, tag):
    """A canary without machine code."""
    info = f"canary-{version}.dist-info"
    path = pack(folder / "any.whl", {"canary/__init__.py": b""})
    renamed = folder / f"canary-{version}-{tag}.whl"
    rows = f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(renamed, "w") as new:
        for name in old.namelist():
            text = old.read(name).replace(
                b"Name: torch\nVersion: 1.0", f"Name: canary\nVersion: {version}".encode()
            )
            text = text.replace(b"cp311-cp311-win_amd64", tag.encode())
            if not name.endswith("RECORD"):
                new.writestr(name := name.replace("torch-1.0.dist-info", info), text)
                digest = urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
                rows += f"{name},sha256={digest},{len(text)}\n"
        new.writestr(f"{info}/RECORD", rows)
    path.unlink()
    return renamed


def test_it_publishes_into_a_folder(windows, linux, tmp_path):
    """Once by the command, which proves the store first; then two at once, whose pages are the same
    pages.
    """
    version = linux.json("plan", *CPU)["version"]
    wheel = wheel_for(tmp_path, version, "cp311-cp311-manylinux_2_17_x86_64")
    index = tmp_path / "index"
    for changed in (True, False):
        document = json.loads(
            windows.run("publish", wheel, *CPU, "--index", windows_path(index), "--json")
        )
        assert document["changed"] is changed
    wheels = [wheel_for(tmp_path, f"1.0.{n}+cu118.sm35.avx", "py3-none-any") for n in range(8)]
    script = [PARTS / "publishers.py", index]
    both = [
        windows.python.start(*script, *half, cwd=tmp_path, env={"PYTHONPATH": windows_path(ROOT)})
        for half in (wheels[::2], wheels[1::2])
    ]
    for one in both:
        assert one.stdout.readline() == "ready\n", one.stderr.read()
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    for one in both:
        out, err = one.communicate(timeout=300)
        assert one.returncode == 0, err
        assert len(out.splitlines()) == 4
    assert "0 broken, 0 unfinished" in windows.run("index", "check", "--index", windows_path(index))
    checked = linux.run("index", "check", "--index", str(index))
    assert checked.returncode == 0, checked.stderr
    page = json.loads((index / json_key("sm35-avx", "canary")).read_bytes())
    assert {file["filename"] for file in page["files"]} == {wheel.name for wheel in wheels}
    assert not list((index / ".tmp").iterdir())


def test_what_windows_alone_refuses(windows, tmp_path):
    done = windows.python.run(
        PARTS / "held.py", cwd=tmp_path, env={"PYTHONPATH": windows_path(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "refused while it is read",
        "new",
        "left []",
        "discarded None",
        "alive True True",
        "another of its number True",
        "killed True",
        "one dispatcher",
        "free again nt",
    ]


def torch_that(folder, source):
    """A wheel of a torch that does as `source` says; pip takes a RECORD without hashes."""
    version = "2.0.1+cu114.sm35.avx"
    wheel, info = (
        folder / f"torch-{version}-cp311-cp311-win_amd64.whl",
        f"torch-{version}.dist-info",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/__init__.py", source)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-win_amd64\n")
        archive.writestr(
            f"{info}/RECORD",
            "".join(f"{name},,\n" for name in [*archive.namelist(), f"{info}/RECORD"]),
        )
    return wheel


def report_beside(wheel):
    return json.loads(wheel.with_name(f"{wheel.name}.smoke.json").read_bytes())


def test_a_smoke_test_makes_an_environment_and_keeps_its_report(windows, tmp_path):
    wheel = torch_that(tmp_path, TALKS_LIKE_TORCH)
    windows.run("smoke", "--wheel", wheel, *KEPLER, code=8)
    report = report_beside(wheel)
    states = {check["name"]: check["status"] for check in report["checks"]}
    seen = {check["name"]: check["seen"] for check in report["checks"]}
    assert seen["import"] == "Lib\\site-packages\\torch\\__init__.py"
    assert [states[name] for name in ("version", "CUDA version", "architectures")] == ["passed"] * 3
    assert (states["matmul float32 on cpu"], states["driver"]) == ("failed", "not_run")
    assert report["facts"]["system"].startswith("Windows-10")


def test_a_torch_that_hangs_is_ended(windows, tmp_path):
    """`venv` puts a launcher before Python: both end, else their folders could not be removed."""
    wheel = torch_that(tmp_path, "import time\nwhile True:\n    time.sleep(1)\n")
    windows.run("smoke", "--wheel", wheel, *KEPLER, "--time-limit", "8", code=8)
    assert report_beside(wheel)["reason"] == "did not finish in 8 s in the check 'import'"
    [env] = (windows.project / "artifacts" / "smoke").glob("*/env")
    ask = (
        "import glob, os, shutil, sys; shutil.rmtree(sys.argv[1]); "
        "print(glob.glob(os.environ['TEMP'] + '/farm-*'))"
    )
    done = windows.python.run("-c", ask, env)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_virus_scanner_has_each_new_file_open_for_a_while(windows, tmp_path):
    """The installers of toolkit and tools try again, and do not fall over what they cannot
    remove.
    """
    toolkit = zipped("cuda_nvcc-windows-x86_64-11.4.1-archive", {"bin/nvcc.exe": b"nvcc"})
    tool = zipped("top", {"sccache.exe": b"sccache"})
    row = {
        "component": "cuda_nvcc",
        "version": "11.4.1",
        "size": len(toolkit),
        "kind": "zip",
        "place": "toolkit",
    }
    tools = {
        "name": "sccache",
        "version": "1",
        "max_mb": 1,
        "members": {"*sccache.exe": "sccache/"},
    }
    for name, content, entry in (("nvcc", toolkit, row), ("sccache", tool, tools)):
        (tmp_path / f"{name}.zip").write_bytes(content)
        entry |= {
            "url": f"http://127.0.0.1:9/{name}.zip",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    (tmp_path / "toolkit.json").write_text(
        json.dumps({"schema": 1, "layout": "windows", "archives": [row]})
    )
    (tmp_path / "tools.json").write_text(json.dumps([tools]))
    (tmp_path / "cuda").mkdir()
    scripts, environment = ROOT / "dockerfiles/scripts", {"FARM_ARCHIVES": windows_path(tmp_path)}

    def scanned(script, *arguments):
        done = windows.python.run(
            PARTS / "scanner.py", scripts / script, *arguments, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return set(done.stdout.splitlines()[-1].split()[1:])

    seen = scanned("install_toolkit.py", "toolkit.json", "--prefix", "cuda", "--cache", "cache")
    digest = row["sha256"]
    assert {
        "incoming",
        "nvcc.exe",
        ".redist.json.new",
        f"{digest}.zip",
        f"{digest}.zip.own",
    } <= seen
    assert (tmp_path / "cuda/bin/nvcc.exe").read_bytes() == b"nvcc"
    assert not list((tmp_path / "cache").iterdir())
    assert "archive" in scanned("fetch_tools.py", "tools.json", "tools")
    assert (tmp_path / "tools/sccache/sccache.exe").read_bytes() == b"sccache"
