"""A real CPython for Windows, run by Wine: what can be known about Windows on a machine that has
none.

Real are python.org's 3.11.9 (`python311.dll`, every `.pyd`, OpenSSL, SQLite), Microsoft's C++
runtime, and the wheels for win_amd64 that `site` installs. Not real: Windows itself is Wine 8 (its
kernel32, ntdll, UCRT, file system and loader), and has no `bcryptprimitives.dll`: ours stands in;
`python.exe` is a few lines of C around the DLL, and `python3.dll` a list of names, as python.org's
are; the standard library's `.py` files are the running Python
3.11's (Debian's 3.11.x for a 3.11.9, without its tests); `venv`'s launcher is ours too;
there is no NVIDIA driver.
So what fails here may work on Windows, and what works here "ran under Wine", no more.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pefile

PARTS = Path(__file__).parent / "windows_parts"
GCC = "x86_64-w64-mingw32-gcc"
TIMEOUT_S = 900
# Of no use there: other tests, files for another system, and Debian's own marks.
LEFT_OUT = (
    "__pycache__",
    "test",
    "tests",
    "config-*",
    "lib-dynload",
    "*-packages",
    "EXTERNALLY-MANAGED",
    "ensurepip",
)
RUNTIME = ("msvcp140", "vcruntime140", "concrt140")


def windows_path(path: Path | str) -> str:
    """The path as a program under Wine writes it."""
    return f"Z:{path}".replace("/", "\\")


@dataclass(frozen=True)
class WindowsPython:
    """Attributes: `folder` holds python.exe; `wine` is the environment of a prefix that runs."""

    folder: Path
    wine: Mapping[str, str]

    @property
    def exe(self) -> Path:
        return self.folder / "python.exe"

    def start(
        self,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **more: object,
    ):
        """Popen with pipes (Wine gives Python no valid handle for a file or /dev/null).

        `env` is added to the environment, its paths written for Windows; nothing of this machine's
        Python gets in. What Python prints is in its own encoding for pipes, as on Windows: cp1252.
        """
        outside = {
            name: value
            for name, value in self.wine.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        command = [
            "wine",
            str(self.exe),
            *(windows_path(a) if isinstance(a, Path) else str(a) for a in arguments),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            command,
            env={**outside, **(env or {})},
            cwd=cwd or self.folder,
            text=True,
            encoding="cp1252",
            errors="replace",
            **{**pipes, **more},
        )

    def run(
        self,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end; a `Path` among the arguments is written for Windows, anything else
        passed as text.
        """
        process = self.start(*arguments, cwd=cwd, env=env)
        try:
            out, err = process.communicate("", timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(
            [str(a) for a in arguments], process.returncode, out, err
        )

    def install(self, need: Callable[[str, str], None], *requirements: str) -> None:
        """Wheels into its own site-packages."""
        site(self.folder / "Lib" / "site-packages", need, *requirements)


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This machine's pip, for wheels of Windows and Python 3.11."""
    command, *rest = arguments
    only = [
        "--platform",
        "win_amd64",
        "--python-version",
        "3.11",
        "--only-binary=:all:",
        "--no-deps",
        "-q",
    ]
    whole = [sys.executable, "-m", "pip", command, *only, *rest]
    return subprocess.run(whole, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def site(folder: Path, need: Callable[[str, str], None], *requirements: str) -> Path:
    """A folder for PYTHONPATH with the wheels that `requirements` name (as pip's arguments: `-r
    FILE`, `a==1`).

    By uv: pip takes the markers of a lock for this machine, and so asks for what is not for
    Windows.
    """
    target = [
        "--python-platform",
        "x86_64-pc-windows-msvc",
        "--python-version",
        "3.11",
        "--target",
        str(folder),
    ]
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        *target,
    ]
    done = subprocess.run(
        [*command, *requirements], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        need(f"wheels for Windows ({' '.join(requirements)})", done.stderr.strip()[-300:])
    return folder


def take(wheel: Path, folder: Path, wanted: Callable[[str], Path | None]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if place := wanted(name):
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (folder / place).write_bytes(archive.read(name))


def python_part(name: str) -> Path | None:
    head, _, last = name.rpartition("/")
    if head != "deploy_libs" or last.lower().startswith(("api-ms-", "vcruntime", "tcl", "tk")):
        return None
    return Path(last) if last == "python311.dll" else Path("DLLs", last)


def runtime_part(name: str) -> Path | None:
    head, _, last = name.rpartition("/")
    return Path(last) if head.endswith("/Scripts") and last.startswith(RUNTIME) else None


def forwarders(library: Path) -> str:
    """The definition of a python3.dll: like python.org's it holds no code, every name points at
    python311.dll.
    """
    with pefile.PE(str(library), fast_load=True) as pe:
        pe.parse_data_directories([pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_EXPORT"]])
        names = [
            symbol.name.decode() for symbol in pe.DIRECTORY_ENTRY_EXPORT.symbols if symbol.name
        ]
    return "LIBRARY python3\nEXPORTS\n" + "".join(f"{name} = python311.{name}\n" for name in names)


def compile_c(output: Path, *arguments: object) -> None:
    subprocess.run(
        [GCC, "-O1", "-s", "-o", str(output), *map(str, arguments)], check=True, timeout=TIMEOUT_S
    )


def make(folder: Path, wine: Mapping[str, str], need: Callable[[str, str], None]) -> WindowsPython:
    """A Python for Windows in `folder`; `need` says what is missing and does not return."""
    if sys.version_info[:2] != (3, 11):
        need(
            "the standard library of Python 3.11",
            f"this is Python {sys.version_info[0]}.{sys.version_info[1]}",
        )
    done = pip(
        "download",
        "--require-hashes",
        "-r",
        str(PARTS / "python.txt"),
        "-d",
        str(folder / "wheels"),
    )
    if done.returncode:
        need("the wheels that hold Python for Windows", done.stderr.strip()[-300:])
    home = folder / "python"
    for pattern, wanted in (("panda3d-*.whl", python_part), ("msvc_runtime-*.whl", runtime_part)):
        [wheel] = (folder / "wheels").glob(pattern)
        take(wheel, home, wanted)
    shutil.rmtree(folder / "wheels")
    library = sysconfig.get_path("stdlib")
    shutil.copytree(
        library,
        home / "Lib",
        ignore=shutil.ignore_patterns(*LEFT_OUT),
        ignore_dangling_symlinks=True,
    )
    compile_c(home / "python.exe", PARTS / "launch.c", "-municode")
    (home / "Lib/venv/scripts/nt").mkdir()
    compile_c(home / "Lib/venv/scripts/nt/python.exe", PARTS / "venvlauncher.c", "-municode")
    compile_c(home / "bcryptprimitives.dll", PARTS / "bcryptprimitives.c", "-shared", "-ladvapi32")
    stable = folder / "python3.def"
    stable.write_text(forwarders(home / "python311.dll"))
    compile_c(home / "python3.dll", stable, "-shared", "-nostdlib", "-Wl,--entry=0")
    made = WindowsPython(home, {**os.environ, **wine})
    result = made.run(
        "-c",
        "import ctypes, hashlib, lzma, sqlite3, ssl, sys; print(sys.platform, sys.version[:6])",
    )
    assert result.stdout.split() == ["win32", "3.11.9"], result.stdout + result.stderr
    return made
