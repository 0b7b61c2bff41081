"""Windows without Windows: real DLLs from MinGW-w64 in torch-like wheels, and from torch itself,
loaded by Wine.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from farm.base import zipapps
from farm.smoke.runner import PROBE, Check, SmokeReport, find_causes
from tests.e2e.wine.windows_python import PARTS, site, windows_path

ROOT = Path(__file__).parents[3]
GCC = "x86_64-w64-mingw32-gcc"
TIMEOUT_S = 300
INFO = "torch-1.0.dist-info"
NOT_FOUND = 126  # ERROR_MOD_NOT_FOUND
# As torch/__init__.py: LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, no
# PATH.
LOADER = r"""
#include <windows.h>
#include <stdio.h>
int main(int argc, char **argv) {
    SetErrorMode(SEM_FAILCRITICALERRORS);
    for (int i = 1; i < argc; i++) {
        HMODULE module = LoadLibraryExA(argv[i], NULL, 0x1100);
        printf("%lu\n", module ? 0 : GetLastError());
        fflush(stdout);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def load(wine, tmp_path_factory):
    """Loads DLLs one after another in one process; gives GetLastError of each, 0 for one that
    loaded.
    """
    folder = tmp_path_factory.mktemp("loader")
    compile_c(folder, "loader.exe", LOADER, "-static")

    def run(*paths):
        command = [
            "wine",
            str(folder / "loader.exe"),
            *(f"Z:{path}".replace("/", "\\") for path in paths),
        ]
        result = subprocess.run(
            command, env=wine, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return [int(line) for line in result.stdout.split()]

    return run


def test_nothing_is_written_into_the_users_home(wine, tmp_path):
    """At the second start of a prefix Wine makes menus and file types of what Windows has."""
    environment = wine | {"HOME": str(tmp_path), "WINEPREFIX": str(tmp_path / "prefix")}
    for _ in range(2):
        for command in (["wine", "cmd", "/c", "exit"], ["wineserver", "-w"]):
            null = subprocess.DEVNULL
            subprocess.run(
                command,
                env=environment,
                stdin=null,
                stdout=null,
                stderr=null,
                timeout=TIMEOUT_S,
                check=True,
            )
    assert [path.name for path in tmp_path.iterdir()] == ["prefix"]


def compile_c(folder, name, source, *options):
    path = folder / f"{name}.c"
    path.write_text(source)
    subprocess.run(
        [GCC, "-O1", "-o", str(folder / name), str(path), *options], check=True, timeout=TIMEOUT_S
    )
    return folder / name


def farm(*arguments):
    command = [sys.executable, "-m", "farm.cli.main", *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result


def pack(path, files):
    """A wheel of `files` (member name to content)."""
    files = {
        **files,
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: "
        b"cp311-cp311-win_amd64\n",
    }
    rows = [f"{INFO}/RECORD,,"]
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(content)}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, f"{INFO}/RECORD": "\n".join(rows).encode()}.items():
            archive.writestr(name, content)
    return path


def install(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "torch"


@pytest.fixture(scope="module")
def built(wine, tmp_path_factory):
    """A torch-like wheel that lacks two DLLs, one behind the other, and the folder that has
    them.
    """
    folder = tmp_path_factory.mktemp("built")

    def dll(name, function, *needs):
        calls = "".join(f"int {other}(void);\n" for _, other in needs)
        body = " + ".join([f"{other}()" for _, other in needs] or ["1"])
        source = f"{calls}__declspec(dllexport) int {function}(void) {{ return {body}; }}\n"
        libraries = [str(folder / needed) for needed, _ in needs]
        return compile_c(folder, name, source, "-shared", "-static-libgcc", *libraries)

    deep = dll("deepmath.dll", "deep")
    omp = dll("libiomp5md.dll", "omp", (deep.name, "deep"))
    cpu = dll("torch_cpu.dll", "cpu", (omp.name, "omp"))
    c10 = dll("c10.dll", "c10")
    first = dll("aoti_custom_ops.dll", "aoti", (c10.name, "c10"), (cpu.name, "cpu"))
    libs = folder / "libs"
    libs.mkdir()
    shutil.move(deep, libs / "DeepMath.DLL")
    shutil.move(omp, libs)
    files = {f"torch/lib/{path.name}": path.read_bytes() for path in (first, c10, cpu)}
    wheel = pack(
        folder / "torch-1.0-cp311-cp311-win_amd64.whl", {"torch/__init__.py": b"", **files}
    )
    return wheel, libs


def why_126(given):
    """The explanation of Windows' message by these files."""
    done = farm("inspect", given, "--why-126", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    return found


def test_error_126_before_repair_and_none_after(built, load, tmp_path):
    wheel, libs = built
    before = install(wheel, tmp_path / "before") / "lib"
    names = ["aoti_custom_ops.dll", "c10.dll", "torch_cpu.dll"]
    assert load(*(before / name for name in names)) == [NOT_FOUND, 0, NOT_FOUND]

    for given in (wheel, before.parent):
        found = why_126(given)
        assert (
            "torch/lib/aoti_custom_ops.dll is the first that fails (it is innocent"
            in found["cause"]
        )
        chain = "torch/lib/aoti_custom_ops.dll -> torch/lib/torch_cpu.dll -> libiomp5md.dll"
        assert found["culprits"] == [
            f"libiomp5md.dll, needed by torch/lib/torch_cpu.dll (chain: {chain})"
        ]
        assert "intel-openmp" in found["cure"]

    repaired = farm(
        "repair", wheel, "--lib-dir", libs, "--into", "torch/lib", "-o", tmp_path / "out", "--json"
    )
    assert repaired.returncode == 0, repaired.stderr
    result = json.loads(repaired.stdout)
    added = ["torch/lib/DeepMath.DLL", "torch/lib/libiomp5md.dll"]
    assert [item["path"] for item in result["vendored"]] == added
    after = install(result["wheel"], tmp_path / "after") / "lib"
    assert load(*(after / name for name in names)) == [0, 0, 0]
    assert why_126(result["wheel"])["culprits"] == []


def download(folder, requirement, require):
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--platform",
        "win_amd64",
        "--python-version",
        "3.11",
        "-q",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), requirement]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False
    )
    if done.returncode:
        require(f"the wheel of {requirement}", done.stderr.strip()[-200:])
    return next(folder.glob("*.whl"))


def without(wheel, folder, member):
    """The wheel without one member (its row in RECORD stays, as careless tools leave it)."""
    path = folder / wheel.name
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for entry in source.infolist():
            if entry.filename != member:
                with source.open(entry) as stream, target.open(entry.filename, "w") as out:
                    shutil.copyfileobj(stream, out, 1 << 20)
    return path


@pytest.fixture(scope="module")
def openmp(require, tmp_path_factory):
    """torch 2.0.1 (172 MB), the same without libiomp5md.dll, and a folder that has it."""
    folder = tmp_path_factory.mktemp("official")
    for name in ("torch", "intel", "broken", "libs"):
        (folder / name).mkdir()
    official = download(folder / "torch", "torch==2.0.1", require)
    broken = without(official, folder / "broken", "torch/lib/libiomp5md.dll")
    with zipfile.ZipFile(download(folder / "intel", "intel-openmp==2023.1.0", require)) as archive:
        [member] = [
            name for name in archive.namelist() if name.endswith("Library/bin/libiomp5md.dll")
        ]
        (folder / "libs" / "libiomp5md.dll").write_bytes(archive.read(member))
    return official, broken, folder / "libs"


@pytest.fixture(scope="module")
def mended(openmp, tmp_path_factory):
    """The official wheel's name, and what `farm repair` makes of the broken one, twice."""
    official, broken, libs = openmp
    wheels = []
    for name in ("one", "two"):
        folder = tmp_path_factory.mktemp(name)
        done = farm("repair", broken, "--lib-dir", libs, "--into", "torch/lib", "-o", folder)
        assert done.returncode == 0, done.stderr
        wheels += folder.iterdir()
    return official.name, wheels


@pytest.fixture(scope="module")
def installed(openmp, tmp_path_factory):
    """The broken wheel, unpacked once."""
    return install(openmp[1], tmp_path_factory.mktemp("before"))


def test_the_official_wheel_gets_its_openmp_back(load, openmp, mended, installed, tmp_path):
    """torch 2.0.1: what is broken is named, repaired, the same twice, and Wine loads it."""
    [culprit] = why_126(openmp[1])["culprits"]
    assert culprit.startswith("libiomp5md.dll, needed by torch/lib/torch_cpu.dll")
    lib = installed / "lib"
    assert load(lib / "c10.dll", lib / "torch_cpu.dll") == [0, NOT_FOUND]
    name, wheels = mended
    assert [wheel.name for wheel in wheels] == [name, name]
    assert len({hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}) == 1
    assert why_126(wheels[0])["culprits"] == []
    repaired = lib_of(wheels[0], installed, tmp_path)
    assert load(repaired / "c10.dll", repaired / "torch_cpu.dll") == [0, 0]


def lib_of(wheel, installed, folder):
    """torch/lib of the repaired wheel, installed in `folder`: what it shares with the broken one as
    hard links.
    """
    shutil.copytree(installed.parent, folder, copy_function=os.link, dirs_exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = folder / entry.filename
            if not entry.is_dir() and (
                not path.exists() or entry.filename.startswith("torch-2.0.1.dist-info/")
            ):
                path.unlink(missing_ok=True)
                archive.extract(entry, folder)
    return folder / "torch" / "lib"


@pytest.fixture(scope="module")
def needs(require, tmp_path_factory):
    """What torch imports beside itself."""
    return site(
        tmp_path_factory.mktemp("needs"),
        require,
        "--require-hashes",
        "-r",
        str(PARTS / "torch.txt"),
    )


def probe(windows_python, folder, needs, report):
    """The smoke probe on Windows' Python: its checks by name, and the exit code."""
    path = ";".join(map(windows_path, (folder, needs)))
    options = [
        "--module=torch",
        "--cpu-only",
        "--expect-quantized=fbgemm",
        f"--json={windows_path(report)}",
    ]
    program = report.with_name("probe.pyz")
    program.write_bytes(zipapps.pack(PROBE))
    done = windows_python.run(program, *options, env={"PYTHONPATH": path}, timeout=2 * TIMEOUT_S)
    document = json.loads(report.read_bytes())
    assert document["complete"], done.stderr
    return done.returncode, document


def test_pythons_own_message_and_the_file_behind_it(windows_python, installed, needs, tmp_path):
    """`import torch` in Python for Windows: WinError 126 names a file that is there and whole; the
    farm says so.
    """
    code, document = probe(windows_python, installed.parent, needs, tmp_path / "report.json")
    assert code == 1
    [check] = document["checks"]
    match = re.fullmatch(
        r'OSError: \[WinError 126\] .* Error loading "(.*)" or one of its dependencies\.',
        check["seen"],
    )
    assert match, check["seen"]
    named = installed.parent / match[1].removeprefix("Z:").replace("\\", "/")
    assert named.is_file()
    found = why_126(installed)
    assert [each.partition(",")[0] for each in found["culprits"]] == ["libiomp5md.dll"]
    assert (
        f"{named.relative_to(installed.parent).as_posix()} is the first that fails (it is innocent"
        in found["cause"]
    )
    report = SmokeReport(
        module="torch", emulated=None, outcome="failed", checks=(Check.model_validate(check),)
    )
    [cause] = find_causes(report, hung=False)
    assert cause.id == "winerror-126"
    assert "--explain" in cause.fix


def test_the_repaired_torch_works_in_windows_python(
    windows_python, mended, installed, needs, tmp_path
):
    """The probe's whole CPU part, on the official binaries and the DLL that `farm repair` put
    back.
    """
    lib_of(mended[1][0], installed, tmp_path / "site")
    code, document = probe(windows_python, tmp_path / "site", needs, tmp_path / "report.json")
    states = {check["name"]: check["status"] for check in document["checks"]}
    seen = {
        check["name"]: check["seen"] for check in document["checks"] if check["status"] != "not_run"
    }
    assert code == 0, seen
    assert document["facts"]["system"].startswith("Windows-")
    assert seen["version"] == "2.0.1+cpu"
    compiled = "torch.compile on cpu"
    assert {check["name"] for check in document["checks"] if check["group"] == "cpu"} - {
        compiled
    } <= {name for name, state in states.items() if state == "passed"}
    reasons = {
        check["name"]: check["reason"]
        for check in document["checks"]
        if check["status"] == "not_run"
    }
    assert reasons.pop(compiled).startswith(
        "cl.exe is not on PATH: start this from the x64 Native Tools"
    )
    assert set(reasons.values()) == {"built without CUDA", "only the CPU part was asked for"}
