"""Fresh virtual environments for smoke tests, and the installation of one wheel from one index."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import platform_tags
from packaging.utils import canonicalize_name

from farm.base import processes
from farm.base.errors import FarmError, InfrastructureError, SmokeFailedError, UsageError
from farm.base.failures import line_naming_cause
from farm.base.safe_files import is_noexec
from farm.base.text import plain_lines
from farm.platforms.facts import DEFAULT, facts
from farm.wheel.metadata import parse_wheel_name

TAIL_LINES = 15
POLL_S = 0.1
_ABSENT = re.compile(r"No matching distribution found for ([\w.-]+)")
COMPILER = (
    "INCLUDE",
    "LIB",
    "LIBPATH",
    "VCINSTALLDIR",
    "VCToolsInstallDir",
    "WindowsSdkDir",
    "WindowsSDKVersion",
)
"""Variables of a Visual Studio prompt: on Windows torch.compile needs them, as cl.exe finds no
header without.
"""
_ASK = """
import sys
free = "t" in getattr(sys, "abiflags", "")  # sysconfig would take as long again to import
print(sys.implementation.name, *sys.version_info[:2], int(free))
"""


def find_python(name: str) -> Path | None:
    """An interpreter for `py311` or `py313t` (free-threaded): this one or one of the PATH; None if
    there is none.
    """
    match = re.fullmatch(r"py(\d)(\d{1,2})(t?)", name, re.ASCII)
    if match is None:
        raise UsageError(f"{name!r} is not the name of a Python version", hint="an example: py311")
    version = f"{match[1]}.{match[2]}"
    free = bool(match[3])
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version and free == running_free():
        return Path(sys.executable)
    expected = ["cpython", *version.split("."), str(int(free))]
    for candidate in _candidates(version + match[3]):
        if _answers(candidate, expected):
            return candidate
    return None


def other_platform(filenames: Iterable[str]) -> str | None:
    """Why none of these wheels is for this machine, as pip judges platform tags: its glibc is
    older, or it is another system. None where one is, and where no names are given.
    """
    supported = list(platform_tags())
    wheel_tags = set()
    for name in filenames:
        for tag in parse_wheel_name(name).tags:
            wheel_tags.add(tag.rpartition("-")[2])
    if not wheel_tags or not wheel_tags.isdisjoint([*supported, "any"]):
        return None
    newest = [tag for tag in supported if tag.startswith("manylinux_")] or supported
    return f"the wheel is for {' or '.join(sorted(wheel_tags))}, this machine for {newest[0]}"


def running_free() -> bool:
    """True if this Python is free-threaded."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _candidates(version: str) -> Iterator[Path]:
    """Programs `python3.11` of the PATH. A shim of pyenv is not run, which takes its shell script
    0.1 s: it stands for the interpreters below pyenv's `versions`, newest first, of which it names
    one or none.
    """
    for folder in dict.fromkeys(os.get_exec_path()):
        # Not `Path.is_dir`: it raises where another user's folder may not be read, as below `su`,
        # which keeps the PATH.
        versions = Path(folder).parent / "versions"
        if Path(folder).name == "shims" and os.path.isdir(versions):  # noqa: PTH112
            interpreters = versions.glob(f"{version.removesuffix('t')}.*/bin/python{version}")
            yield from sorted(interpreters, key=_numbers_in, reverse=True)
        elif (on_path := shutil.which(f"python{version}", path=folder)) is not None:
            yield Path(on_path)
            # Version managers put programs of this name on the PATH that only say that there is no
            # such version.


def _numbers_in(path: Path) -> list[int]:
    return list(map(int, re.findall(r"\d+", str(path))))


def _answers(python: Path, wanted: list[str]) -> bool:
    try:
        answer = subprocess.run(
            [python, "-I", "-S", "-c", _ASK], capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.decode(errors="replace").split() == wanted


def make_environment(dest: Path, python: Path) -> Path:
    """Make a virtual environment without pip in the new folder `dest`; returns its interpreter."""
    if dest.exists() and any(dest.iterdir()):
        raise UsageError(f"{dest}: is not empty", hint="name a folder that does not exist yet")
    if is_noexec(dest):
        raise InfrastructureError(
            f"{dest}: its file system is mounted noexec, where no library of a wheel can be loaded",
            hint="mount it without noexec, or set artifacts in ci/farm.yaml to a folder on "
            "another disk",
        )
    # Isolated: PYTHONPATH and packages of the user must have no part in it.
    command = [str(python), "-I", "-m", "venv", "--without-pip", str(dest)]
    try:
        result = subprocess.run(
            command,
            env=_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(
            f"{python}: cannot make a virtual environment: {error}"
        ) from error
    if result.returncode != 0:
        raise InfrastructureError(
            f"{python}: cannot make a virtual environment in {dest}: "
            f"{_last_lines(result.stdout + result.stderr)}",
            hint="on Debian the module venv is in the package python3-venv",
        )
    if os.name == "nt":
        return dest / "Scripts/python.exe"
    return dest / "bin/python"


_SECRET = re.compile(
    r"^(FARM|AWS|ACTIONS|GITHUB)_|TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE
)
"""Names of variables that an environment's own Python must not see: a wheel's `.pth` file runs when
it starts.
"""


def _environ() -> dict[str, str]:
    """The environment without credentials.

    pip's `--isolated` leaves the machine's own pip.conf in force; this file name turns that off as
    well.
    """
    variables = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return {**variables, "PIP_CONFIG_FILE": os.devnull}


def probe_environment(home: Path, passed: Sequence[str] = ()) -> dict[str, str]:
    """The variables of a probe: as few as of a build on a host, and those of the caller that
    `passed` names.

    With the caller's others a wheel may run code that its user's CPU or card would not:
    `OPENBLAS_CORETYPE=Haswell` ends it by SIGILL on an emulated Nehalem that it runs on. `home` is
    a folder of its own for the same reason.
    """
    variables = processes.environment(str(home), tree=False)
    for name in passed:
        if name not in os.environ:
            raise UsageError(f"{name} is not set, so it cannot be passed to the smoke test")
        variables[name] = os.environ[name]
    if os.name == "nt":
        for name in COMPILER:
            if name in os.environ:
                variables[name] = os.environ[name]
    return variables


@dataclass(frozen=True)
class Target:
    """A folder for the packages of another machine, with its Python (`py311`) and glibc
    (`2.36`).
    """

    folder: Path
    python: str
    machine: str
    glibc: str

    def options(self) -> list[str]:
        """The words for pip."""
        version = self.python[2:].rstrip("t")
        words = [f"--target={self.folder}", f"--python-version={version[0]}.{version[1:]}"]
        major, _, minor = self.glibc.partition(".")
        for number in range(int(minor), 16, -1):  # glibc 2.17: manylinux2014
            words.append(f"--platform=manylinux_{major}_{number}_{self.machine}")
        for tag in ("manylinux2014", facts(DEFAULT).tag):
            words.append(f"--platform={tag}_{self.machine}")
        words.append("--implementation=cp")
        for abi in (f"cp{self.python[2:]}", "abi3", "none"):
            words.append(f"--abi={abi}")
        return words


def install(
    python: Path,
    requirement: str,
    *,
    target: Target | None = None,
    source: tuple[str, ...],
    log: Path,
    timeout_s: float,
    line: Callable[[str], object] = lambda _: None,
) -> None:
    """Install one requirement or wheel, and what it depends on, from one index and nowhere else.

    The user's configuration of pip is left out: an extra index named there could answer for our
    package. `source`: its options that name the index. All that pip says goes to `log`, and line by
    line to `line`.

    Raises:
        SmokeFailedError: pip failed or did not finish; the text has its last lines.
        InfrastructureError: The disk is full; the index does not answer, or has no page of the
            project; pip is too new for the environment's Python.
    """
    if requirement.startswith("-"):
        raise UsageError(f"{requirement!r} is not a requirement")
    # No cache: the wheel must come from the index under test.
    words = [
        "install",
        "--isolated",
        "--no-cache-dir",
        "--no-compile",
        "--no-input",
        "--disable-pip-version-check",
        "--only-binary=:all:",
    ]
    if target:
        words += target.options()
    words += [*source, requirement]
    log.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + timeout_s
    code = _run_logged(
        [sys.executable, "-I", "-m", "pip", f"--python={python}", *words], log, line, end
    )
    if code and b"This version of pip does not support python" in log.read_bytes():
        # pip 26 takes 3.10 and newer: an older Python brings a pip of its age.
        code = _run_logged([str(python), "-I", "-m", "ensurepip"], log, line, end)
        code = code or _run_logged([str(python), "-I", "-m", "pip", *words], log, line, end)
    shown_source = [re.sub("(?<=://)[^/@]*@", "****@", word) for word in source]
    command_text = " ".join(["pip install", *shown_source, requirement])
    if code is None:
        raise SmokeFailedError(
            f"{command_text} did not finish in {timeout_s:g} s", hint=f"log: {log}"
        )
    if code:
        raise _failure(
            f"{command_text} failed with exit code {code}", python, requirement, source, log
        )


def _failure(
    what: str, python: Path, requirement: str, source: tuple[str, ...], log: Path
) -> FarmError:
    """The error of a pip that failed: what is missing, and what to do about it."""
    output = _last_lines(log.read_bytes())
    hint = f"log: {log}"
    if line_naming_cause("disk-full", output.splitlines()):
        hint = (
            f"make room in {log.parent} and in {tempfile.gettempdir()}, or set TMPDIR to "
            "another folder"
        )
        return InfrastructureError(f"{what}: it cannot write:\n{output}", hint=hint)
    if "ensurepip" in output:
        hint = "install its ensurepip (Debian: pythonX.Y-venv)"
        return InfrastructureError(
            f"this pip is too new for {python}, which has none: {output}", hint=hint
        )
    absent = _ABSENT.search(output)
    name = requirement.partition("==")[0]
    # It is a dependency that the index lacks, not the wheel that was asked for.
    if absent and canonicalize_name(absent[1]) != canonicalize_name(name):
        todo = "publish it into the same group, or name an index that has it for pip"
        hint = f"no index has {absent[1]} as the wheel needs it: {todo}; {hint}"
        return SmokeFailedError(f"{what}:\n{output}", hint=hint)
    return _of_index(what, name, source, hint) or SmokeFailedError(f"{what}:\n{output}", hint=hint)


def _of_index(what: str, name: str, source: tuple[str, ...], hint: str) -> FarmError | None:
    """The error of an index that does not let pip read; pip says of it only that it has no such
    version.
    """
    import http.client  # noqa: PLC0415  takes long, and is rarely needed
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    # With more than one index in play it is not this one that answered.
    if len(source) != 2:
        return None
    url = source[1]
    if not url.startswith(("http://", "https://")) or "@" in url:
        return None
    page = f"{url.rstrip('/')}/{canonicalize_name(name)}/"
    address = "correct its address (--index-url, index_public_url in ci/farm.yaml)"
    try:
        with urllib.request.urlopen(urllib.request.Request(page, method="HEAD"), timeout=20):
            return None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            todo = "let everybody read the bucket (docs/how-to/index-stores.md has the policy)"
            return SmokeFailedError(
                f"{what}: {url} answers {error.code} to pip", hint=f"{todo}; {hint}"
            )
        todo = (
            f"publish a wheel there, or {address}, which ends in /whl/<group>/simple/; a "
            "bucket without a web "
        )
        todo += f"server needs ?pages=slash (docs/how-to/install-from-an-index.md); {hint}"
        if error.code == 404:
            return InfrastructureError(f"{what}: {url} has no page of {name}", hint=todo)
        return None
    except (OSError, http.client.HTTPException) as error:
        # It is no web server, or closes the connection.
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        todo = f"start its server, or {address}"
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            todo = "name the certificate of your own authority: SSL_CERT_FILE=FILE"
        return InfrastructureError(
            f"{what}: {url} does not answer ({reason})", hint=f"{todo}; {hint}"
        )


def _run_logged(
    command: list[str], log: Path, line: Callable[[str], object], end: float
) -> int | None:
    """Run a command whose output goes to `log`, line by line to `line` too: its exit code; None:
    ended at `end`.
    """
    partial_line = b""
    with log.open("wb") as file, log.open("rb") as written:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=_environ()
        )
        try:
            while True:
                try:
                    code = child.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    code = None
                *full_lines, partial_line = (partial_line + written.read()).split(b"\n")
                for text in full_lines:
                    line(text.decode("utf-8", "replace"))
                if code is not None or time.monotonic() > end:
                    return code
        finally:
            child.kill()
            child.wait()


def _last_lines(raw: bytes) -> str:
    return "\n".join(plain_lines(raw.decode("utf-8", "replace")).strip().splitlines()[-TAIL_LINES:])
