"""build.cmd under Wine's cmd with stand-in tools: every path, every failure, and what a compiler
would have seen.

What Wine cannot show (the real vcvarsall.bat, cl, nvcc, NTFS) is in the checklist of
docs/reference/windows.md.
"""

import json
import os
import re
import shutil
import subprocess
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from tests.e2e.conftest import wait
from tests.e2e.wine.relay import ended, kill_all
from tests.e2e.wine.windows_python import windows_path

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent / "windows_standin"
GCC = "x86_64-w64-mingw32-gcc"
TIMEOUT_S = 300
# A blank, and every character that means something to cmd, in the name of a user who is not ASCII.
KIT = "users/Jürgen & Söhne (100% !x! ^ Ω)/my kit"
USER = "users/Jürgen & Söhne (x86) ^ !x!/files"
VS = "Program Files (x86)/Microsoft Visual Studio"
INSTALLED = "Program Files (x86)/Microsoft Visual Studio/2019/BuildTools"
STALE = {
    "CUDA_PATH": r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v12.3",
    "CUDA_PATH_V12_3": r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v12.3",
    "CL": "/arch:AVX512",
    "CC": "icx",
    "ONEAPI_ROOT": r"C:\oneapi",
    "MKLROOT": r"C:\oneapi\mkl",
    "CMAKE_ARGS": "-DUSE_CUDA=0",
    "USE_FBGEMM": "1",
    "TORCH_CUDA_ARCH_LIST": "8.9",
    "PYTHONPATH": r"C:\other",
    "PYTHONSAFEPATH": "1",
    "PIP_USER": "1",
    "GIT_DIR": r"C:\other\.git",
    "LIB": r"C:\oneapi\lib",
    "VSCMD_VER": "17.9",
    "MAX_JOBS": "99",
    "ERRORLEVEL": "0",
}
VCVARS = r"""@echo off
rem stands in for Microsoft's: what it was asked for, and what build.cmd looks at afterwards
echo vcvarsall was asked for %*
set "VCToolsVersion={toolset}.30133"
set "VCINSTALLDIR=%~dp0..\.."
set "INCLUDE=C:\vc\include"
set "LIB=C:\vc\lib"
set "PATH=C:\vc\bin;%PATH%"
exit /b {code}
"""


@pytest.fixture(scope="module")
def tools(wine, tmp_path_factory):
    """A folder with the stand-in and the file holder, compiled; other tests find none of the
    stand-ins.
    """
    folder = tmp_path_factory.mktemp("tools")
    for name in ("standin", "lock"):
        command = [
            GCC,
            "-municode",
            "-O1",
            "-static",
            "-o",
            folder / f"{name}.exe",
            SOURCES / f"{name}.c",
        ]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
    yield folder
    clear(Path(wine["WINEPREFIX"]) / "drive_c")


def clear(c):
    """Removes what a `Machine` has on its disk."""
    for name in (
        "farm",
        "vc",
        "tools",
        "BuildTools",
        VS,
        str(Path(KIT).parent),
        str(Path(USER).parent),
    ):
        shutil.rmtree(c / name, ignore_errors=True)


class Machine:
    """A Windows machine with Visual Studio, Python and Git, where every tool is the stand-in."""

    def __init__(self, folder, environment, plan, tmp_path):
        self.folder, self.plan = folder, plan
        self.c = Path(environment["WINEPREFIX"]) / "drive_c"
        clear(self.c)
        self.record, self.rules_file = tmp_path / "record", tmp_path / "rules"
        self.environment = environment | {
            "FARM_TEST_RECORD": f"Z:{self.record}".replace("/", "\\"),
            "FARM_TEST_RULES": f"Z:{self.rules_file}".replace("/", "\\"),
            "WINEPATH": '"C:\\in quotes\\";C:\\tools\\;C:\\other toolkit\\bin;C:\\a & b (x86)\\',
        }
        self.tool(
            "tools/git.exe",
            "tools/py.exe",
            "tools/pythonhome/python.exe",
            "vc/bin/cl.exe",
            f"{VS}/Installer/vswhere.exe",
        )
        self.visual_studio()
        render(ROOT, plan).write(tmp_path / "rendered")
        self.kit = self.c / KIT
        shutil.copytree(tmp_path / "rendered" / "job", self.kit)
        digest, cuda = plan.digest[:12], plan.env["CUDA_HOME"].replace("/", "\\")
        self.out = self.c / "farm" / "out" / digest
        self.log = self.out / "build.log"
        self.rules = [
            ("py.exe", "sys.executable", r"print=C:\tools\pythonhome\python.exe"),
            ("vswhere.exe", "installationPath", r"print=C:\nowhere", r"print=C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools"),
            ("python.exe", "install_toolkit.py", rf"self={cuda}\bin\nvcc.exe", rf"write={cuda}\bin\cudart64_110.dll", rf"write={cuda}\NvToolsExt\bin\x64\nvToolsExt64_1.dll"),
            ("python.exe", "fetch_tools.py", r"self=C:\farm\tools\sccache\sccache.exe", r"write=C:\farm\tools\zlib\zlibwapi.dll"),
            ("python.exe", "-m venv", r"self=C:\farm\venv\Scripts\python.exe"),
            ("python.exe", "--require-hashes", r"write=C:\farm\venv\Library\bin\libiomp5md.dll"),
            ("python.exe", "count_jobs.py", "print=7"),
            ("nvcc.exe", "--version", f"print=Cuda compilation tools, release {plan.toolkit.cuda}, V11.4.152"),
            ("git.exe", " clone ", r"write=C:\farm\src\.git\HEAD"),
            ("git.exe", "rev-parse HEAD", f"print={plan.source.commit}"),
            ("python.exe", "-m build", "run=cl.exe /c a.cpp", "run=nvcc.exe -c a.cu", rf"write=C:\farm\out\{digest}\wheel\{plan.package}-1.whl"),
        ]  # fmt: skip

    def tool(self, *places):
        for place in places:
            (self.c / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / "standin.exe", self.c / place)

    def visual_studio(self, toolset=None, code=0):
        toolset = toolset or self.plan.windows.toolset
        self.tool(f"{INSTALLED}/VC/Tools/MSVC/{toolset}.30133/bin/Hostx64/x64/cl.exe")
        build = self.c / INSTALLED / "VC/Auxiliary/Build"
        build.mkdir(parents=True, exist_ok=True)
        (build / "vcvarsall.bat").write_text(
            VCVARS.format(toolset=toolset, code=code).replace("\n", "\r\n")
        )

    def change(self, tool, part, *actions):
        """Other actions for the rule of this tool and part of a command line, or a new rule before
        all others.
        """
        self.rules = [
            (tool, part, *actions),
            *(rule for rule in self.rules if rule[:2] != (tool, part)),
        ]

    def start(self, script="build.cmd", folder=None, **environment):
        self.rules_file.write_text("".join("\t".join(rule) + "\n" for rule in self.rules))
        self.record.unlink(missing_ok=True)
        return subprocess.Popen(
            ["wine", "cmd", "/d", "/c", script],
            cwd=folder or self.kit,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, script="build.cmd", folder=None, **environment):
        with self.start(script, folder, **environment) as process:
            code = process.wait(TIMEOUT_S)  # its few lines fit into the pipe
            # Not to the pipe's end: under Wine, what a build leaves running holds it.
            os.set_blocking(process.stdout.fileno(), False)
            out = process.stdout.read() or b""
        if code and self.log.exists():
            print(self.log.read_text("utf-8", "replace"))  # pytest shows it where a test fails
        return code, out.decode("utf-8", "replace")

    def calls(self, name=None):
        if not self.record.exists():
            return []
        found = [json.loads(line) for line in self.record.read_text().splitlines()]
        return [
            call for call in found if name is None or call["path"].lower().endswith("\\" + name)
        ]

    def steps(self):
        """The calls of the steps: not what each end of a build does."""
        ends = ("--stop-server", "import shutil", "causes.py")
        return [call for call in self.calls() if not any(part in call["command"] for part in ends)]


@pytest.fixture(scope="session")
def plan():
    return resolve(
        ROOT, BuildRequest(Variant.parse("sm35-avx-py311"), "torch", "windows", "kepler-2.0.1")
    )


@pytest.fixture
def machine(tools, wine, plan, tmp_path):
    return Machine(tools, wine, plan, tmp_path)


def test_a_compiler_sees_what_the_plan_promises_and_nothing_stale(machine):
    code, out = machine.run(**STALE)
    assert code == 0, out + machine.log.read_text()
    for compiler in ("cl.exe", "nvcc.exe"):
        seen = {key.upper(): value for key, value in machine.calls(compiler)[-1]["env"].items()}
        promised = {key.upper(): value for key, value in machine.plan.env.items()}
        assert {key: seen.get(key) for key in promised} == promised
        left = {
            key for key in STALE if key in seen and key not in promised and seen[key] == STALE[key]
        }
        assert left <= {"ERRORLEVEL"}
        assert (seen["MAX_JOBS"], seen["TEMP"], seen["TMP"]) == ("7", r"C:\farm\t", r"C:\farm\t")
        assert seen["CMAKE_BUILD_PARALLEL_LEVEL"] == "7"
        assert (seen["LIB"], seen["INCLUDE"]) == (r"C:\vc\lib", r"C:\vc\include")
        cuda = machine.plan.env["CUDA_HOME"].replace("/", "\\")
        path = seen["PATH"].split(";")
        assert path[:2] == [r"C:\farm\venv\Scripts", cuda + r"\bin"]
        assert r"C:\vc\bin" in path
        assert not [
            entry
            for entry in path
            if "other toolkit" in entry or "a & b" in entry or "sccache" in entry
        ]
        assert (
            machine.calls(compiler)[-1]["path"].lower()
            == {"cl.exe": r"c:\vc\bin\cl.exe", "nvcc.exe": (cuda + r"\bin\nvcc.exe").lower()}[
                compiler
            ]
        )


def test_the_wheel_its_libraries_and_the_log_are_where_the_last_line_says(machine):
    code, out = machine.run()
    assert code == 0, out
    assert [path.name for path in (machine.out / "wheel").iterdir()] == ["torch-1.whl"]
    assert sorted(path.name for path in (machine.out / "lib").iterdir()) == [
        "cudart64_110.dll", "libiomp5md.dll", "nvToolsExt64_1.dll", "zlibwapi.dll",
    ]  # fmt: skip
    last = out.strip().splitlines()[-1]
    digest = machine.plan.digest[:12]
    assert (
        rf"C:\farm\out\{digest}\wheel\torch-1.whl; next: farm repair "
        rf'"C:\farm\out\{digest}\wheel\torch-1.whl"' in last
    )
    assert last[0].isdigit(), "every line begins with its time"
    assert last in machine.log.read_text()
    [clone] = [call for call in machine.calls("git.exe") if " clone " in call["command"]]
    assert f"--branch {machine.plan.source.tag} --recurse-submodules" in clone["command"]
    assert "-c core.longpaths=true" in clone["command"]
    assert "vcvarsall was asked for x64 -vcvars_ver=14.29" in machine.log.read_text()
    [build] = [call for call in machine.calls("python.exe") if "-m build" in call["command"]]
    assert (build["path"], build["cwd"]) == (r"C:\farm\venv\Scripts\python.exe", r"C:\farm\src")


def forget(machine):
    """The tree is no longer known as that of this plan."""
    for path in (machine.c / "farm/src/.git").glob("*.tree"):
        path.unlink()


def test_a_second_run_goes_on_in_its_tree_and_another_compiler_cleans_it(machine):
    assert machine.run()[0] == 0
    built = machine.c / "farm/src/build/CMakeFiles"
    cleaning = ("reset --quiet --hard", "clean -ffdxq", "submodule")
    for toolset, again in (("14.29.30133", ()), ("14.29.30200", cleaning), ("14.29.30200", ())):
        built.mkdir(parents=True, exist_ok=True)
        script = machine.c / INSTALLED / "VC/Auxiliary/Build/vcvarsall.bat"
        script.write_text(re.sub(r"14\.29\.30\d+", toolset, script.read_text()))
        code, out = machine.run()
        assert code == 0, out
        assert (built.exists(), "is kept" in out) == (not again, not again)
        commands = [call["command"] for call in machine.calls()]
        first = (" clone ", "-m venv", "--require-hashes")
        assert not [command for command in commands if any(part in command for part in first)]
        assert (
            tuple(part for part in cleaning if any(part in command for command in commands))
            == again
        )


@pytest.mark.parametrize(
    ("tool", "part", "actions", "code", "step", "message"),
    [
        ("python.exe", "sys.exit(sys.version_info", ("exit=1",), 3, "tools", "another Python: 64-bit 3.11 is needed"),
        ("vswhere.exe", "installationPath", ("exit=87",), 3, "visual studio", "Visual Studio is missing"),
        ("vswhere.exe", "installationPath", ("print=C:\\nowhere",), 3, "visual studio", "Visual Studio is missing"),
        # Other products have its installer too, and take no compiler: SQL Server Management Studio.
        ("vswhere.exe", "installationPath", (r"print=C:\tools",), 3, "visual studio", "Visual Studio is missing"),
        ("python.exe", "check_machine.py", ("exit=3",), 3, "checks", "the lines above say what is missing"),
        ("python.exe", "check_machine.py", ("exit=9",), 9, "checks", "the lines above say what is missing"),
        ("python.exe", "install_toolkit.py", ("exit=6",), 9, "toolkit", "the last lines of the log name the archive"),
        ("python.exe", "fetch_tools.py", ("exit=9",), 9, "archives", "the last lines of the log name the archive"),
        ("python.exe", "-m venv", ("exit=1",), 9, "python packages", "does pip reach its index?"),
        ("python.exe", "--require-hashes", ("exit=1",), 9, "python packages", "does pip reach its index?"),
        ("nvcc.exe", "--version", ("exit=-1073741515",), 3, "toolkit", r"C:\farm\cuda-11.4-8.7.0 is not CUDA 11.4"),
        ("nvcc.exe", "--version", ("print=Cuda compilation tools, release 12.3, V12.3.107",), 3, "toolkit", "is not CUDA 11.4"),
        ("python.exe", "count_jobs.py", ("exit=1",), 3, "jobs", "set FARM_JOBS"),
        ("git.exe", " clone ", ("exit=128",), 9, "source", "can this machine reach https://github.com/pytorch/pytorch.git?"),
        ("git.exe", "rev-parse HEAD", ("print=" + "0" * 40,), 5, "source", "is another commit than the catalogue says"),
        ("python.exe", "-m build", ("exit=1",), 5, "build", "the first line with FAILED: or error in the log"),
        ("python.exe", "-m build", ("exit=-1073741819",), 5, "build", "the first line with FAILED: or error in the log"),
        ("python.exe", "-m build", ("print=done",), 5, "build", "left no wheel, or more than one"),
        ("python.exe", "-m build", ("write={out}\\wheel\\a.whl", "write={out}\\wheel\\b.whl"), 5, "build", "left no wheel, or more than one"),
        ("git.exe", "rev-parse HEAD", ("exit=128",), 9, "source", "can this machine reach https://github.com/pytorch/pytorch.git?"),
    ],
)  # fmt: skip
def test_it_stops_at_the_first_failure_with_the_reason(
    machine, tool, part, actions, code, step, message
):
    out = rf"C:\farm\out\{machine.plan.digest[:12]}"
    machine.change(tool, part, *(action.replace("{out}", out) for action in actions))
    seen, out = machine.run()
    assert seen == code, out
    *_, failed, following = out.strip().splitlines()
    assert f"step {step} FAILED (exit code" in failed
    assert message in following
    assert "done:" not in out
    last = machine.steps()[-1]
    assert part in last["command"], "nothing runs after the failure"
    assert f"step {step} FAILED" in machine.log.read_text()


@pytest.mark.parametrize(
    "part", ["src reset --quiet --hard", "src clean -ffdxq", "submodule --quiet foreach"]
)
def test_a_used_tree_that_cannot_be_cleaned_is_cloned_again(machine, part):
    """A git that was killed leaves index.lock, which stops every later one."""
    assert machine.run()[0] == 0
    forget(machine)
    (machine.c / "farm/src/old.txt").touch()
    machine.change("git.exe", part, "exit=128")
    code, out = machine.run()
    assert code == 0, out
    assert [call for call in machine.calls("git.exe") if " clone " in call["command"]]
    assert not (machine.c / "farm/src/old.txt").exists()


def test_a_used_tree_of_another_commit_is_cloned_again(machine):
    assert machine.run()[0] == 0
    (machine.c / "farm/src/old.txt").touch()
    # The stand-in's git says the same commit always: that of the old tree until it was cloned, then
    # the plan's.
    machine.change("git.exe", "rev-parse HEAD", "print=" + "0" * 40)
    code, out = machine.run()
    assert (code, "is another commit than the catalogue says" in out) == (5, True), out
    assert [call for call in machine.calls("git.exe") if " clone " in call["command"]]
    assert not (machine.c / "farm/src/old.txt").exists()


def test_a_machine_without_the_tools_is_told_what_to_install(machine):
    for missing, hint in (
        ("vc/bin/cl.exe", "put no cl.exe on PATH"),
        ("tools/git.exe", "winget install --id Git.Git"),
    ):
        (machine.c / missing).unlink()
        code, out = machine.run()
        assert code == 3, out
        assert hint in out.strip().splitlines()[-1]
    machine.tool("tools/git.exe", "vc/bin/cl.exe")
    machine.visual_studio(code=1)
    code, out = machine.run()
    assert (code, "repair the installation of Visual Studio" in out) == (3, True)
    (machine.c / VS / "Installer" / "vswhere.exe").unlink()
    code, out = machine.run()
    assert (code, "vs_BuildTools.exe --passive --wait --norestart --add Microsoft" in out) == (
        3,
        True,
    )
    (machine.c / "tools/py.exe").unlink()
    code, out = machine.run()
    assert (code, "Python 3.11 is missing: https://www.python.org/ftp/python/3.11.9/" in out) == (
        3,
        True,
    )


def test_a_kit_or_disk_that_cannot_be_used_stops_it_at_once(machine):
    (machine.c / "farm").mkdir()
    (machine.c / "farm/out").touch()
    code, out = machine.run()
    assert (code, "step folders FAILED" in out, "is C: writable and not full?" in out) == (
        9,
        True,
        True,
    ), out
    (machine.c / "farm/out").unlink()
    (machine.kit / "plan.json").unlink()
    code, out = machine.run()
    assert (code, "step folders FAILED" in out) == (9, True), out
    assert machine.calls() == []


def test_a_folder_of_another_user_is_refused_before_a_program_of_it_runs(machine):
    """Wine's own powershell does nothing: the stand-in answers as Windows' would for such a
    folder.
    """
    (machine.c / "farm").mkdir()
    machine.tool("tools/powershell.exe")
    machine.change("powershell.exe", "Get-Acl", "exit=77")
    code, out = machine.run()
    assert (code, r"C:\farm belongs to another user of this machine" in out) == (9, True), out
    assert [call["path"].rpartition("\\")[2].lower() for call in machine.calls()] == [
        "powershell.exe"
    ]


@pytest.mark.parametrize("code", [0, 1])
def test_farm_configure_stops_when_cmake_has_configured(machine, code):
    machine.rules.append(
        ("python.exe", "--cmake-only", r"write=C:\farm\src\build\build.ninja", f"exit={code}")
    )
    seen, out = machine.run(FARM_CONFIGURE="1")
    assert (seen, "step build FAILED" in out) == (5 * code, bool(code)), out
    assert (
        r"configured, and not built (FARM_CONFIGURE): C:\farm\src\build\build.ninja" in out
    ) == (not code)
    commands = [call["command"] for call in machine.calls("python.exe")]
    assert [command for command in commands if "setup.py build --cmake-only" in command]
    assert not [command for command in commands if "-m build" in command]


def test_a_visual_studio_that_is_not_whole_is_refused(machine):
    build = machine.c / INSTALLED / "VC/Auxiliary/Build/vcvarsall.bat"
    for other in ('set "SomethingElse=', 'set "VCToolsVersion=14.44.1" & rem '):
        machine.visual_studio()
        build.write_text(build.read_text().replace('set "VCToolsVersion=', other))
        code, out = machine.run()
        assert (code, "set up another toolset than 14.29" in out.strip().splitlines()[-1]) == (
            3,
            True,
        ), out
    command = (
        r'setup.exe" modify --passive --norestart --installPath "C:\Program Files '
        r'(x86)\Microsoft Visual Studio\2019\BuildTools" --add '
    )
    for gone in (build, machine.c / INSTALLED / "VC/Tools/MSVC/14.29.30133/bin/Hostx64/x64/cl.exe"):
        machine.visual_studio()
        gone.unlink()
        code, out = machine.run()
        assert (code, "step visual studio FAILED (exit code 3)" in out, command in out) == (
            3,
            True,
            True,
        ), out
    assert not machine.calls("cl.exe")


def test_a_left_over_toolset_does_not_hide_a_whole_one(machine):
    """The last Visual Studio that vswhere names has a folder of the toolset, and no compiler in
    it.
    """
    rest = machine.c / VS / "2022/Community"
    (rest / "VC/Tools/MSVC/14.29.30133").mkdir(parents=True)
    machine.change(
        "vswhere.exe",
        "installationPath",
        "print=C:\\" + INSTALLED.replace("/", "\\"),
        rf"print=C:\{VS}\2022\Community".replace("/", "\\"),
    )
    code, out = machine.run()
    assert code == 0, out


def test_a_clone_is_kept_where_its_container_goes(machine):
    """FARM_SOURCES is a volume: the second container unpacks what the first one packed."""
    machine.tool("windows/system32/tar.exe")
    (machine.c / "sources").mkdir()

    def clones():
        return [call for call in machine.calls("git.exe") if " clone " in call["command"]]

    packed = rf"C:\sources\{machine.plan.source.commit}.tar"
    machine.change("tar.exe", " -cf ", f"write={packed}.new")
    git = r"write=C:\farm\src\.git"
    machine.change("tar.exe", " -xf ", rf"{git}\HEAD", rf"{git}\farm.ok")
    code, out = machine.run(FARM_SOURCES=r"C:\sources")
    assert (code, len(clones())) == (0, 1), out
    shutil.rmtree(machine.c / "farm/src")
    code, out = machine.run(FARM_SOURCES=r"C:\sources")
    assert (code, clones()) == (0, []), out
    (machine.c / "windows/system32/tar.exe").unlink()
    shutil.rmtree(machine.c / "sources")


def test_nvcc_keeps_the_environment_of_the_toolset(machine):
    code, out = machine.run()
    assert code == 0, out
    [call] = [call for call in machine.calls("nvcc.exe") if "a.cu" in call["command"]]
    assert call["env"]["NVCC_APPEND_FLAGS"] == "--use-local-env"
    assert call["env"]["CUDAHOSTCXX"] == "C:/vc/bin/cl.exe"


@pytest.mark.parametrize("first", ["2019/BuildTools", "2022/Community"])
def test_the_visual_studio_whose_own_toolset_it_is_comes_first(machine, first):
    """14.29 beside a newer toolset in 2022, and alone in 2019, in both orders of vswhere."""
    newer = machine.c / VS / "2022/Community"
    shutil.copytree(machine.c / INSTALLED, newer)
    for folder, default in ((machine.c / INSTALLED, "14.29.30133"), (newer, "14.44.35207")):
        file = folder / "VC/Auxiliary/Build/Microsoft.VCToolsVersion.default.txt"
        file.write_text(f"{default}\r\n")
    script = newer / "VC/Auxiliary/Build/vcvarsall.bat"
    script.write_text("@exit /b 7\r\n")
    places = sorted(("2019/BuildTools", "2022/Community"), key=lambda place: place != first)
    lines = [f"print=C:\\{VS}\\{place}".replace("/", "\\") for place in places]
    machine.change("vswhere.exe", "installationPath", *lines)
    code, out = machine.run()
    assert code == 0, out


def test_a_toolset_with_which_cuda_code_does_not_compile_is_refused(machine):
    script = machine.c / INSTALLED / "VC/Auxiliary/Build/vcvarsall.bat"
    script.write_text(script.read_text().replace(".30133", ".30037"))
    code, out = machine.run()
    assert code == 3, out
    assert "14.29.30037 cannot compile CUDA code, 14.29.30133 or newer can" in out
    assert 'setup.exe" update --passive' in out


def test_a_compiler_that_would_hide_the_toolsets_is_named(machine):
    venv = r"self=C:\farm\venv\Scripts\python.exe"
    machine.change("python.exe", "-m venv", venv, r"self=C:\farm\venv\Scripts\cl.exe")
    code, out = machine.run()
    assert (code, r"another cl.exe than C:\vc\bin\cl.exe is first on PATH" in out) == (3, True), out


def test_a_python_that_makes_no_environments_is_named(machine):
    machine.change("python.exe", "sys.exit(sys.version_info", "exit=2")
    code, out = machine.run()
    assert (code, r"C:\tools\pythonhome\python.exe makes no virtual environments" in out) == (
        3,
        True,
    ), out


def test_a_compiler_without_memory_is_named(machine, windows_python):
    with_real_logged(machine, windows_python)
    message = "x.cpp: fatal error C1060: Kein Heapspeicher mehr im Compiler"
    machine.change("python.exe", "-m build", f"print={message}", "exit=1")
    code, out = machine.run()
    assert (code, "too little memory (C1060): set FARM_JOBS to less than 7" in out) == (5, True), (
        out
    )


def test_the_window_says_the_first_error_its_cause_and_what_to_do(machine, windows_python):
    """In the encoding of the machine, and though the log has more lines with the word error."""
    with_real_logged(machine, windows_python)
    script = machine.kit / "build.cmd"
    line = r'"%FARM_PYTHON%" C:\farm\job\causes.py'
    real = rf"{windows_path(windows_python.exe)} C:\farm\job\causes.py"
    assert line in script.read_text()
    script.write_text(script.read_text().replace(line, real))
    error = "nvcc fatal   : Cannot find compiler 'cl.exe' in PATH"
    machine.change("python.exe", "-m build", "print=FAILED: x.cu.obj", f"print={error}", "exit=1")
    code, out = machine.run()
    assert code == 5, out
    assert f"    {error}" in out
    assert "cause: nvcc finds no cl.exe on PATH" in out
    assert "next: repair the installation of Visual Studio" in out.strip().splitlines()[-1]


def test_a_build_whose_time_is_over_goes_on_at_the_next_start(machine):
    machine.change("python.exe", "-m build", "exit=75")
    code, out = machine.run(FARM_MINUTES="300")
    assert code == 75, out
    assert "the time of FARM_MINUTES is over: run this again" in out


@contextmanager
def held(machine, path):
    """A program that has a file open."""
    command = ["wine", machine.folder / "lock.exe", path]
    with subprocess.Popen(
        command, env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout.readline().strip() == b"held"
            yield holder
        finally:
            holder.kill()


def with_real_logged(machine, windows_python):
    """The kit whose programs write into the log by the real logged.py."""
    script, real = machine.kit / "build.cmd", windows_path(windows_python.exe)
    text = script.read_text()
    for name in ("logged.py", r"C:\farm\job\logged.py"):
        assert f'"%FARM_PYTHON%" {name}' in text
        text = text.replace(f'"%FARM_PYTHON%" {name}', f"{real} {name}")
    script.write_text(text)


def without_checks(machine):
    """The kit, whose real Python finds neither Windows' SDK nor NVIDIA's server here."""
    script = machine.kit / "build.cmd"
    line = '"%FARM_PYTHON%" check_machine.py'
    assert line in script.read_text()
    script.write_text(
        script.read_text().replace(line, r"C:\tools\pythonhome\python.exe check_machine.py")
    )


def test_a_second_build_leaves_the_first_alone(machine, windows_python):
    with_real_logged(machine, windows_python)
    hangs, busy = machine.c / "tools/hangs", machine.c / "farm/busy"
    hangs.unlink(missing_ok=True)
    rules = list(machine.rules)
    machine.change("python.exe", "-m build", "print=compiling", r"hang=C:\tools\hangs")
    with machine.start() as first:
        wait("the build runs", hangs.exists)
        log = machine.log.read_bytes()
        code, out = machine.run()
        assert (code, "another build runs on this machine" in out, first.poll()) == (
            9,
            True,
            None,
        ), out
        assert machine.log.read_bytes() == log
        assert (machine.c / "farm/job/build.cmd").exists()
        assert machine.calls() == [], "not even the server of its compiler cache is stopped"
        kill_all({"FARM_TEST_RECORD": machine.environment["FARM_TEST_RECORD"]})
        ended(first)
    wait("what a killed build held is free", lambda: not busy.exists())
    hangs.unlink()
    machine.rules = rules
    code, out = machine.run()
    assert (code, busy.exists()) == (0, False), out


def test_the_folder_of_the_script_goes_before_the_current_one(machine, tmp_path):
    """Which may be the kit of another plan."""
    kit = machine.c / "tools/Jürgen/kit"
    shutil.copytree(machine.kit, kit)
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "rendered/job", other)
    (other / "plan.json").write_text("another plan")
    for name in ("build.cmd", "report.cmd"):
        machine.change("python.exe", "-m build", "exit=1")
        code, out = machine.run(rf"C:\tools\Jürgen\kit\{name}", other)
        assert (code, "step build FAILED" in out) == (5, True), out
        assert (machine.c / "farm/job/plan.json").read_bytes() == (kit / "plan.json").read_bytes()
    assert (kit / "farm-report.txt").exists()


def test_a_kit_in_a_long_path_is_refused(machine):
    """Windows opens no file of it whose whole path has more than 259 characters."""
    kit = machine.c / "tools" / ("long" * 25) / ("name" * 20)
    shutil.copytree(machine.kit, kit)
    code, out = machine.run(folder=kit)
    assert (code, "step folders FAILED" in out, "copy the folder to a shorter one" in out) == (
        9,
        True,
        True,
    ), out


def test_the_stub_of_microsofts_store_is_no_python(machine):
    (machine.c / "tools/py.exe").unlink()
    stub = machine.c / "tools/WindowsApps"
    stub.mkdir()
    shutil.copy(machine.folder / "standin.exe", stub / "python.exe")
    machine.change("python.exe", "sys.exit(sys.version_info", "exit=9009")
    code, out = machine.run(WINEPATH=r"C:\tools;C:\tools\WindowsApps")
    assert (code, r"C:\tools\WindowsApps\python.exe is no Python" in out) == (3, True), out
    assert "python-3.11.9-amd64.exe /passive; or winget install --id Python.Python.3.11" in out


def test_a_python_given_by_name_is_found_after_path_is_made_anew(machine):
    (machine.c / "tools/py.exe").unlink()
    machine.change(
        "python.exe", "sys.exit(sys.version_info", r"print=C:\tools\pythonhome\python.exe"
    )
    code, out = machine.run(FARM_PYTHON="python", WINEPATH=r"C:\tools;C:\tools\pythonhome")
    assert code == 0, out


def stops(machine):
    return [call for call in machine.calls("sccache.exe") if "--stop-server" in call["command"]]


def test_no_build_leaves_the_server_of_its_compiler_cache(machine):
    """It holds the folder of the build, and ends neither by itself nor with a build that fails or
    is killed.
    """
    assert machine.run()[0] == 0
    assert len(stops(machine)) == 1
    forget(machine)
    machine.change("python.exe", "-m build", "run=cl.exe /c a.cpp", "exit=1")
    assert machine.run(SCCACHE_SERVER_PORT="4226")[0] == 5
    first, last = stops(machine)
    ports = {call["env"]["SCCACHE_SERVER_PORT"] for call in (first, last, *machine.calls("cl.exe"))}
    assert len(ports) == 1
    assert "4226" not in ports, "where the user's own server may be"
    calls = machine.calls()
    cleaned, built = (
        next(place for place, call in enumerate(calls) if part in call["command"])
        for part in ("reset --quiet --hard", "-m build")
    )
    assert calls.index(first) < cleaned, "before the folder is removed"
    assert calls.index(last) > built


def test_a_path_that_cmd_does_not_take_is_named(machine):
    """PATH above 8,191 characters: cmd finds no program any more."""
    folders = (rf"C:\Program Files\application {number}\bin" for number in range(300))
    code, out = machine.run(WINEPATH=";".join([r"C:\tools", *folders]))
    assert (code, "next: cmd finds no programs: PATH is longer than 8191 characters" in out) == (
        3,
        True,
    ), out
    assert not (machine.c / "farm").exists()


def test_one_build_at_a_time(machine):
    assert machine.run()[0] == 0
    with held(machine, r"C:\farm\job\build.cmd"):
        code, out = machine.run()
    assert (code, "one build at a time on one machine" in out) == (9, True), out
    assert machine.calls() == []


def test_a_library_that_cannot_be_copied_stops_it(machine):
    assert machine.run()[0] == 0
    with held(machine, r"C:\farm\tools\zlib\zlibwapi.dll"):
        code, out = machine.run()
    assert (code, "step libraries FAILED" in out) == (9, True), out
    assert "done:" not in out


def pinging():
    """Does a `ping -n 3` run, which is how cmd waits?"""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if re.search(rb"ping(\.exe)?\0-n\0?", (entry / "cmdline").read_bytes()):
                return True
    return False


@pytest.fixture
def lingering(machine):
    """A compiler's helper that goes on after the build, with every handle that it was given."""
    machine.tool("tools/mspdbsrv.exe")
    hangs = machine.c / "tools/hangs"
    machine.rules += [("mspdbsrv.exe", "", r"print=mspdbsrv began", r"hang=C:\tools\hangs")]
    yield hangs
    kill_all({"FARM_TEST_RECORD": machine.environment["FARM_TEST_RECORD"]})
    hangs.unlink(missing_ok=True)


def test_a_program_that_outlives_the_build_does_not_keep_the_log(
    machine, lingering, windows_python
):
    """cmd opens a log for itself alone; where it cannot, it starts no program and keeps the exit
    code of the last one.
    """
    with_real_logged(machine, windows_python)
    machine.change(
        "python.exe",
        "-m build",
        "print=before",
        "leave=mspdbsrv.exe",
        "print=after",
        *machine.rules[-2][2:],
    )
    code, out = machine.run()
    assert (code, lingering.exists()) == (0, True), out
    assert len(list((machine.out / "lib").iterdir())) == 4
    log = machine.log.read_text()
    assert "before" in log
    assert "after" in log
    assert out.strip().splitlines()[-1] in log
    # The next run begins its log anew, while that program still runs.
    code, out = machine.run()
    assert code == 0, out
    assert machine.log.read_text().count("step build") == 1


def test_a_held_file_is_waited_for_then_named(machine):
    assert machine.run()[0] == 0
    forget(machine)
    path = machine.c / "farm/src/build/held.obj"
    path.parent.mkdir()
    path.touch()
    with held(machine, r"C:\farm\src\build\held.obj") as holder:
        code, out = machine.run()
        assert (code, "a program holds a file in C:\\farm\\src open" in out) == (9, True), out
        assert not [call for call in machine.calls("python.exe") if "-m build" in call["command"]]
        second = machine.start()
        wait("build.cmd waits for the file", pinging)  # it does so by ping, five times
        holder.communicate(b"\n", timeout=60)
        second.communicate(timeout=TIMEOUT_S)
        assert second.returncode == 0


def test_the_number_of_jobs_may_be_given(machine):
    machine.change("python.exe", "count_jobs.py", "exit=1")
    assert machine.run(FARM_JOBS='"3"')[0] == 0
    assert machine.calls("cl.exe")[-1]["env"]["MAX_JOBS"] == "3"
    for given in ("four", "0", "2 & exit"):
        code, out = machine.run(FARM_JOBS=given)
        assert (code, "next: set FARM_JOBS to the number" in out) == (3, True), out


def test_companions_build_against_the_torch_of_the_variant(tools, wine, tmp_path):
    plan = resolve(
        ROOT,
        BuildRequest(Variant.parse("sm35-avx-py311"), "torchvision", "windows", "kepler-2.0.1"),
    )
    machine = Machine(tools, wine, plan, tmp_path)
    code, out = machine.run()
    assert (code, "put the wheel into the folder needs" in out) == (5, True), out
    code, out = machine.run(
        FARM_INDEX_URL="https://wheels.example.org/whl/sm61-avx/simple/?a=b&c=d"
    )
    assert code == 0, out
    [pip] = [
        call
        for call in machine.calls("python.exe")
        if "--target C:\\farm\\needs" in call["command"]
    ]
    assert pip["env"]["PIP_INDEX_URL"] == "https://wheels.example.org/whl/sm61-avx/simple/?a=b&c=d"
    assert pip["command"].rstrip().endswith(plan.needs[0])
    assert machine.calls("cl.exe")[-1]["env"]["PYTHONPATH"] == r"C:\farm\needs"
    machine.change("python.exe", "--target C:\\farm\\needs", "exit=1")
    code, out = machine.run(FARM_INDEX_URL="https://wheels.example.org/")
    assert (code, "step needs FAILED (exit code 1)" in out, plan.needs[0] in out) == (
        5,
        True,
        True,
    ), out
    machine.rules.pop(0)
    (machine.kit / "needs").mkdir()
    (machine.kit / "needs" / "torch-1.whl").touch()
    code, out = machine.run()
    assert code == 0, out
    [pip] = [
        call
        for call in machine.calls("python.exe")
        if "--target C:\\farm\\needs" in call["command"]
    ]
    assert (pip["env"]["PIP_NO_INDEX"], pip["env"]["PIP_FIND_LINKS"]) == ("1", r"C:\farm\job\needs")


def test_the_report_holds_what_is_needed_to_judge_a_first_build(machine):
    machine.tool("tools/nvidia-smi.exe")
    machine.rules += [
        ("nvidia-smi.exe", "", "print=Tesla K40c, driver 474.14"),
        ("git.exe", "--version", "print=git version 2.45.2"),
    ]
    machine.tool("tools/powershell.exe")
    machine.change("python.exe", "-m build", "exit=1")
    code, out = machine.run("report.cmd", CMDCMDLINE='cmd /c ""C:\\my kit\\report.cmd" "')
    assert code == 5, out
    assert "ress any key" in out, "started by a double click, its window stays"
    report = (machine.kit / "farm-report.txt").read_text()
    for part in (
        machine.plan.digest,
        "Tesla K40c",
        "git version 2.45.2",
        "build.cmd ended with 5",
        "step build FAILED",
    ):
        assert part in report
    assert "farm-report.txt (no Python" in out
    assert "$env:USERNAME" in machine.calls("powershell.exe")[-1]["command"]
    # What cannot be cleaned is not kept.
    machine.rules.append(("powershell.exe", "", "exit=1"))
    code, out = machine.run("report.cmd")
    assert (code, "no report was kept" in out, (machine.kit / "farm-report.txt").exists()) == (
        5,
        True,
        False,
    ), out


def test_the_report_is_one_zip_without_secrets(machine, windows_python):
    """By a real Python. The build's tools print what they should not."""
    machine.change(
        "git.exe", " clone ", "print=fatal: https://me:pass-word@git.example.org/", "exit=128"
    )
    machine.change("git.exe", "--version", "print=git version 2.45.2 hunter2-hunter2")
    environment = {
        "FARM_PYTHON": f'"{windows_path(windows_python.exe)}"',
        "MY_OWN_VARIABLE": "hunter2-hunter2",
    }
    ensurepip = windows_python.folder / "Lib/ensurepip"
    ensurepip.mkdir(
        exist_ok=True
    )  # build.cmd asks for it; the environments are made by the stand-in
    for rule in (
        "install_toolkit.py",
        "fetch_tools.py",
        "-m venv",
        "--require-hashes",
    ):  # prepare.cmd by the stand-in
        assert [each for each in machine.rules if each[1] == rule]
    prepare = machine.kit / "prepare.cmd"
    prepare.write_text(
        prepare.read_text().replace("%FARM_PYTHON%", r"C:\tools\pythonhome\python.exe")
    )
    without_checks(machine)
    code, out = machine.run("report.cmd", **environment)
    assert code == 9, out
    assert "farm-report.zip" in out
    assert not (machine.kit / "farm-report.txt").exists()
    with zipfile.ZipFile(machine.kit / "farm-report.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {"farm-report.txt", "build.log", "plan.json"} <= set(texts)
    assert "git version 2.45.2 [MY_OWN_VARIABLE]" in texts["farm-report.txt"]
    assert "step source FAILED" in texts["build.log"]
    whole = "".join(texts.values())
    assert [secret for secret in ("hunter2", "pass-word") if secret in whole] == []


def test_a_report_that_cannot_be_written_says_so(machine):
    kit = machine.c / "tools/kit"
    shutil.copytree(machine.kit, kit)
    (kit / "farm-report.txt").touch()
    with held(machine, r"C:\tools\kit\farm-report.txt"):
        code, out = machine.run("report.cmd", kit)
    assert (code, "farm-report.txt cannot be written" in out, machine.calls()) == (9, True, []), out


@pytest.fixture
def image(machine, tmp_path):
    """The folder of the image; what Windows or Docker would answer stands in it, where cmd looks
    first.
    """
    folder = machine.kit.parent / "image"
    shutil.copytree(tmp_path / "rendered" / "image", folder)
    for name in ("docker", "reg"):
        shutil.copy(machine.folder / "standin.exe", folder / f"{name}.exe")
        shutil.copy(machine.folder / "standin.exe", machine.kit / f"{name}.exe")
    machine.rules += [
        ("docker.exe", "info", "print=windows"),
        ("docker.exe", "container inspect", "exit=1"),
        ("reg.exe", "CurrentBuildNumber", "print=    CurrentBuildNumber    REG_SZ    20348"),
    ]
    return folder


@pytest.mark.parametrize(
    ("build", "wanted", "base", "message"),
    [
        ("17763", None, None, "build 17763 of Windows cannot build in a container: 20348 (Windows Server 2022)"),
        ("19045", None, None, "Windows 10 refuses process isolation"),
        ("20348", None, "4.8-windowsservercore-ltsc2022", None),
        ("26100", None, "4.8.1-windowsservercore-ltsc2025", None),
        ("26100", "ltsc2022", "4.8-windowsservercore-ltsc2022", None),
        ("20348", "ltsc2019", None, ("build 20348 of Windows does not run ltsc2019 under process isolation; it runs: "
    "ltsc2022")),
    ],
)  # fmt: skip
def test_the_base_image_is_chosen_by_the_build_of_the_host(
    machine, image, build, wanted, base, message
):
    machine.change(
        "reg.exe", "CurrentBuildNumber", f"print=    CurrentBuildNumber    REG_SZ    {build}"
    )
    code, out = machine.run("image.cmd", image, **({"FARM_TAG": wanted} if wanted else {}))
    builds = [call for call in machine.calls("docker.exe") if " build " in call["command"]]
    if message:
        assert (code, message in out, builds) == (4, True, []), out
        return
    assert code == 0, out
    assert (
        f"--build-arg BASE=mcr.microsoft.com/dotnet/framework/runtime:{base} "
        in builds[0]["command"]
    )
    assert "--isolation=process --memory 16g" in builds[0]["command"]
    assert builds[0]["env"]["DOCKER_BUILDKIT"] == "0"


def test_a_base_by_digest_is_used_and_one_by_tag_is_said_to_float(machine, image):
    machine.rules.append(
        (
            "docker.exe",
            "image inspect",
            "print=image.cmd: used mcr.example/runtime@sha256:" + "0" * 64,
        )
    )
    code, out = machine.run("image.cmd", image)
    assert (code, "the base is not pinned" in out, "image.cmd: used mcr.example" in out) == (
        0,
        True,
        True,
    ), out
    pinned = "mcr.example/runtime@sha256:" + "0" * 64
    code, out = machine.run("image.cmd", image, FARM_BASE=pinned)
    assert (code, "not pinned" in out) == (0, False), out
    [build] = [call for call in machine.calls("docker.exe") if " build " in call["command"]]
    assert f"--build-arg BASE={pinned} " in build["command"]


def test_an_engine_for_linux_containers_is_refused(machine, image):
    machine.change("docker.exe", "info", "print=linux")
    code, out = machine.run("image.cmd", image)
    assert (code, "switch Docker Desktop to Windows containers" in out) == (4, True)


def test_a_container_build_uses_limits_that_windows_engines_take_and_keeps_the_log(machine, image):
    machine.change("docker.exe", "cp .", r"run=cmd /c copy jobs.txt C:\tools\jobs.txt")
    code, out = machine.run(
        "container.cmd", FARM_MEMORY_GB="4", FARM_ARCHIVES="https://mirror.example.org/a?b&c"
    )
    assert code == 0, out
    commands = [call["command"] for call in machine.calls("docker.exe")]
    [create] = [call for call in machine.calls("docker.exe") if " create " in call["command"]]
    for part in (
        "--isolation=process",
        "--storage-opt size=150GB",
        "--memory 4g",
        "--cpu-count",
        "--env FARM_ARCHIVES ",
    ):
        assert part in create["command"]
    assert create["env"]["FARM_ARCHIVES"] == "https://mirror.example.org/a?b&c"
    assert not [
        word
        for word in ("ulimit", "memory-swap", "pids-limit", "cpuset", "--volume", "--mount")
        if word in create["command"]
    ]
    assert (machine.c / "tools/jobs.txt").read_text().strip() == "1"
    assert not (machine.kit / "jobs.txt").exists()
    steps = [
        "info",
        "build",
        "inspect",
        "container inspect",
        "create",
        "cp .",
        "start --attach",
        "cp farm-",
        "rm farm-",
    ]
    assert [step for command, step in zip(commands, steps, strict=True) if step in command] == steps
    machine.change("docker.exe", "start --attach", "exit=5")
    code, out = machine.run("container.cmd")
    assert (code, "the build ended with 5; log: ..\\out\\build.log" in out) == (5, True)
    assert not [call for call in machine.calls("docker.exe") if "rm farm-" in call["command"]]
    # What it compiled is in it: the next run takes it up.
    machine.change("docker.exe", "container inspect")
    machine.change("docker.exe", "start --attach")
    code, out = machine.run("container.cmd", FARM_JOBS="3")
    assert (code, "goes on in the container farm-" in out) == (0, True), out
    assert not [call for call in machine.calls("docker.exe") if " create " in call["command"]]
    assert (machine.c / "tools/jobs.txt").read_text().strip() == "3"


@pytest.mark.parametrize(
    ("part", "code", "runs"),
    # 1, not 4 and 9: Wine's cmd forgets the code of a script that was called, and keeps that it
    # failed.
    [
        ("info", 1, 1),
        (" build ", 1, 2),
        (" create ", 9, 5),
        ("cp .", 9, 6),
        ("cp farm-", 9, 8),
        ("rm farm-", 9, 9),
    ],
)
def test_a_container_build_stops_where_the_engine_fails(machine, image, part, code, runs):
    machine.change("docker.exe", part, "exit=125")
    seen, out = machine.run("container.cmd")
    assert (seen, len(machine.calls("docker.exe"))) == (code, runs), out


@pytest.fixture
def proof(machine, image):
    """The image after its installation: what prove.cmd calls, as stand-ins."""
    cuda = machine.plan.env["CUDA_HOME"].removeprefix("C:/")
    machine.tool(*(f"vc/bin/{name}.exe" for name in ("cl", "link", "rc")), f"{cuda}/bin/nvcc.exe")
    machine.tool(*(f"farm/venv/Scripts/{name}.exe" for name in ("cmake", "ninja")))
    (machine.c / "farm/t").mkdir()
    machine.rules += [("cl.exe", "one.cpp", r"self=C:\farm\t\one.exe")]
    return image / "scripts"


def test_an_image_proves_itself_by_compiling_for_its_lowest_gpu(machine, proof):
    code, out = machine.run("prove.cmd", proof)
    assert (code, "prove.cmd: the toolchain works" in out) == (0, True), out
    seen = [call["path"].rpartition("\\")[2].lower() for call in machine.calls()]
    assert seen == ["vswhere.exe", "cl.exe", "one.exe", "nvcc.exe"]
    assert "-gencode arch=compute_35,code=sm_35" in machine.calls("nvcc.exe")[0]["command"]


@pytest.mark.parametrize(
    ("tool", "part"), [("vswhere.exe", "installationPath"), ("cl.exe", "one.cpp"), ("one.exe", ""), ("nvcc.exe", "two.cu")]
)  # fmt: skip
def test_an_image_that_cannot_compile_is_none(machine, proof, tool, part):
    machine.change(tool, part, "exit=2")
    code, out = machine.run("prove.cmd", proof)
    assert (code, "the toolchain works" in out) == (9, False), out
    assert machine.calls()[-1]["path"].lower().endswith("\\" + tool), (
        "nothing runs after the failure"
    )


def test_an_image_without_a_tool_names_it(machine, proof):
    (machine.c / "farm/venv/Scripts/ninja.exe").unlink()
    code, out = machine.run("prove.cmd", proof)
    assert (code, "prove.cmd: ninja.exe is not on PATH" in out) == (9, True), out


@pytest.fixture
def scripts(machine, image):
    """The scripts of the image with stand-ins for what Server Core brings."""
    folder = image / "scripts"
    for name in ("curl", "certutil", "tar"):
        shutil.copy(machine.folder / "standin.exe", folder / f"{name}.exe")
    good = next(
        line.split("=")[1].strip('"\r')
        for line in (folder / "visual_studio.cmd").read_text().splitlines()
        if "FARM_SHA256=" in line
    )
    machine.rules += [
        ("curl.exe", "", r"self=C:\farm\t\download.exe"),
        ("certutil.exe", "", f"print={good}"),
    ]
    return folder


@pytest.mark.parametrize(
    ("installer", "toolset", "code", "message"),
    [
        ("0", True, 0, ""),
        ("3010", True, 0, ""),
        ("1", True, 9, "the Visual Studio installer ended with 1"),
        ("1603", True, 9, "1603: a package cannot be installed in this base image"),
        ("0", False, 9, "there is no cl.exe of toolset 14.29 in C:\\BuildTools"),
    ],
)
def test_the_installer_of_visual_studio(machine, scripts, installer, toolset, code, message):
    shutil.rmtree(machine.c / "BuildTools", ignore_errors=True)
    compiler = r"write=C:\BuildTools\VC\Tools\MSVC\14.29.30133\bin\Hostx64\x64\cl.exe"
    effect = [compiler] if toolset else [r"mkdir=C:\BuildTools\VC\Tools\MSVC\14.29.30133"]
    machine.rules.append(
        (
            "download.exe",
            "--add Microsoft.VisualStudio.Workload.VCTools",
            *effect,
            f"exit={installer}",
        )
    )
    seen, out = machine.run("visual_studio.cmd", scripts)
    assert (seen, message in out) == (code, True), out
    [call] = machine.calls("download.exe")
    for part in ("--quiet --wait --norestart --nocache", r"--installPath C:\BuildTools"):
        assert part in call["command"]


def test_a_download_with_another_sha256_is_removed_and_not_run(machine, scripts):
    machine.change("certutil.exe", "", "print=" + "0" * 64)
    code, out = machine.run("visual_studio.cmd", scripts)
    assert (code, "has another sha256 than the pinned" in out) == (6, True), out
    assert not machine.calls("download.exe")
    assert not (machine.c / "farm/t/download.exe").exists()
    machine.change("curl.exe", "", "exit=22")
    code, out = machine.run("install.cmd python", scripts)
    assert (code, "cannot be downloaded" in out) == (9, True), out


def test_the_packages_of_visual_studio_are_pinned_by_a_file(machine, scripts):
    shutil.rmtree(machine.c / "BuildTools", ignore_errors=True)
    machine.tool("BuildTools/VC/Tools/MSVC/14.29.30133/bin/Hostx64/x64/cl.exe")
    code, out = machine.run("visual_studio.cmd", scripts)
    assert (code, "the packages are those of Microsoft's channel of today" in out) == (0, True), out
    assert "--channelUri" not in machine.calls("download.exe")[0]["command"]
    (scripts / "VisualStudio.chman").write_text("{}")
    code, out = machine.run("visual_studio.cmd", scripts)
    assert (code, "of today" in out) == (0, False), out
    for option in ("--channelUri", "--installChannelUri"):
        assert (
            rf"{option} C:\farm\scripts\VisualStudio.chman"
            in machine.calls("download.exe")[0]["command"]
        )


def test_logs_of_a_failed_installer_are_collected_by_microsofts_program(machine, scripts):
    shutil.copy(machine.folder / "standin.exe", scripts / "powershell.exe")
    machine.rules += [
        ("download.exe", "--installPath", "exit=1603"),
        ("curl.exe", "vscollect", r"self=C:\farm\t\vscollect.exe"),
    ]
    code, out = machine.run("visual_studio.cmd", scripts)
    assert (code, "docker cp CONTAINER:C:\\vslogs.zip" in out) == (9, True), out
    [call] = machine.calls("vscollect.exe")
    assert call["command"].rstrip().endswith(r"-zip:C:\vslogs.zip")
    # One that is not Microsoft's is not run.
    machine.rules.insert(0, ("powershell.exe", "Get-AuthenticodeSignature", "exit=1"))
    assert machine.run("visual_studio.cmd", scripts)[0] == 9
    assert not machine.calls("vscollect.exe")


def test_a_download_is_taken_from_an_archive_of_ones_own(machine, scripts):
    """By folder and by URL; one that is not what is pinned is named, and the pinned address is
    asked.
    """
    own = machine.c / USER / "my archives"
    own.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(machine.c / "BuildTools", ignore_errors=True)
    machine.tool("BuildTools/VC/Tools/MSVC/14.29.30133/bin/Hostx64/x64/cl.exe")
    shutil.copy(machine.folder / "standin.exe", own / "vs_BuildTools.exe")
    folder = "C:\\" + str(own.relative_to(machine.c)).replace("/", "\\")
    code, out = machine.run("visual_studio.cmd", scripts, FARM_ARCHIVES=folder)
    assert (code, machine.calls("curl.exe")) == (0, []), out
    code, out = machine.run(
        "visual_studio.cmd", scripts, FARM_ARCHIVES="https://me:secret@mirror.example/a"
    )
    assert (code, "secret" in out) == (0, False), out
    [curl] = machine.calls("curl.exe")
    assert (
        curl["command"].rstrip().endswith('"https://me:secret@mirror.example/a/vs_BuildTools.exe"')
    )
    assert "-fsSL --retry 5" in curl["command"]
    machine.change("certutil.exe", "", "print=" + "0" * 64)
    code, out = machine.run("visual_studio.cmd", scripts, FARM_ARCHIVES=folder)
    assert (code, "vs_BuildTools.exe of FARM_ARCHIVES has another sha256" in out) == (6, True), out
    assert len(machine.calls("curl.exe")) == 1


@pytest.mark.parametrize("how", ["FARM_PYTHON", "quoted", "PATH"])
def test_a_python_below_a_user_with_an_umlaut(machine, how):
    """Python of one user alone, as python.org installs it by default, in a profile with blanks and
    any letter.
    """
    home = machine.c / USER / "Programs/Python311"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(machine.folder / "standin.exe", home / "python.exe")
    place = "C:\\" + str(home.relative_to(machine.c)).replace("/", "\\")
    (machine.c / "tools/py.exe").unlink()
    given = {
        "FARM_PYTHON": f"{place}\\python.exe",
        "quoted": f'"{place}\\python.exe"',
        "PATH": None,
    }[how]
    environment = {"FARM_PYTHON": given} if given else {"WINEPATH": rf"C:\tools;{place}"}
    code, out = machine.run(**environment)
    assert code == 0, out
    assert [
        call
        for call in machine.calls("python.exe")
        if call["path"].lower() == f"{place}\\python.exe".lower()
    ]


def test_a_script_without_its_folder_says_what_to_copy(machine, tmp_path):
    shutil.copy(machine.kit / "build.cmd", tmp_path)
    code, out = machine.run(folder=tmp_path)
    assert (code, "copy the whole folder job" in out) == (9, True), out
