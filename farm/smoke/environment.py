"""Fresh virtual environments for smoke tests, and the installation of one wheel from one index."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.tags import platform_tags
from packaging.utils import canonicalize_name

from farm.base.errors import FarmError, InfrastructureError, SmokeFailedError, UsageError
from farm.base.failures import line_that_says
from farm.base.outputs import runs_nothing
from farm.base.text import plain_lines
from farm.platforms.facts import DEFAULT, facts
from farm.wheel.metadata import parse_wheel_name

TAIL_LINES = 15
POLL_S = 0.1
_ABSENT = re.compile(
    r"No matching distribution found for ([\w.-]+)|"
    r"[Bb]ecause (\S+) was not found in the (?:package registry|provided package locations)|"
    r"there (?:is|are) no versions? of ([\w.-]+)"
)
_ASK = """
import sys
free = "t" in getattr(sys, "abiflags", "")  # sysconfig would take as long again to import
print(sys.implementation.name, *sys.version_info[:2], int(free))
"""


def find_python(name: str) -> Path | None:
    """An interpreter for `py311` or `py313t` (free-threaded): this one or one of the PATH; None if there is none.

    Raises:
        UsageError: The name is not of that form.
    """
    match = re.fullmatch(r"py(\d)(\d{1,2})(t?)", name, re.ASCII)
    if match is None:
        raise UsageError(f"{name!r} is not the name of a Python version", hint="an example: py311")
    version, free = f"{match[1]}.{match[2]}", bool(match[3])
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version and free == running_free():
        return Path(sys.executable)
    wanted = ["cpython", *version.split("."), str(int(free))]
    return next((found for found in _candidates(version + match[3]) if _answers(found, wanted)), None)


def other_platform(filenames: Iterable[str]) -> str | None:
    """Why none of these wheels is for this machine, as pip judges platform tags: its glibc is older, or it is another
    system. None where one is, and where no names are given.
    """
    here = list(platform_tags())
    wanted = {tag.rpartition("-")[2] for name in filenames for tag in parse_wheel_name(name).tags}
    if not wanted or not wanted.isdisjoint([*here, "any"]):
        return None
    newest = next((tag for tag in here if tag.startswith("manylinux_")), here[0])
    return f"the wheel is for {' or '.join(sorted(wanted))}, this machine for {newest}"


def running_free() -> bool:
    """True if this Python is free-threaded."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _candidates(version: str) -> Iterator[Path]:
    """Programs `python3.11` of the PATH. A shim of pyenv is not run, which takes its shell script 0.1 s: it stands for
    the interpreters below pyenv's `versions`, newest first, of which it names one or none.
    """
    for folder in dict.fromkeys(os.get_exec_path()):
        # Not `Path.is_dir`: it raises where another user's folder may not be read, as below `su`, which keeps the PATH.
        if Path(folder).name == "shims" and os.path.isdir(versions := Path(folder).parent / "versions"):  # noqa: PTH112
            there = versions.glob(f"{version.removesuffix('t')}.*/bin/python{version}")
            yield from sorted(
                there, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))], reverse=True
            )
        elif (found := shutil.which(f"python{version}", path=folder)) is not None:
            yield Path(found)
            # Version managers put programs of this name on the PATH that only say that there is no such version.


def _answers(python: Path, wanted: list[str]) -> bool:
    try:
        answer = subprocess.run([python, "-I", "-S", "-c", _ASK], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.decode(errors="replace").split() == wanted


def find_uv() -> str | None:
    """The program of uv, where it is on the PATH: it makes environments and installs several times faster than pip."""
    return shutil.which("uv")


def make_environment(dest: Path, python: Path, *, uv: str | None = None) -> Path:
    """Makes a virtual environment in the new folder `dest` and returns its interpreter.

    It has no pip: uv (its program is `uv`) or the controller's own pip installs into it, which saves seconds.

    Raises:
        UsageError: `dest` is there already and not empty.
        InfrastructureError: The interpreter cannot make one; nothing there can be run.
    """
    if dest.exists() and any(dest.iterdir()):
        raise UsageError(f"{dest}: is not empty", hint="name a folder that does not exist yet")
    if runs_nothing(dest):
        raise InfrastructureError(
            f"{dest}: its file system is mounted noexec, where no library of a wheel can be loaded",
            hint="mount it without noexec, or set artifacts in ci/farm.yaml to a folder on another disk",
        )
    # Isolated: PYTHONPATH and packages of the user must have no part in it.
    command = [str(python), "-I", "-m", "venv", "--without-pip", str(dest)]
    if uv is not None:
        command = [uv, "venv", "--no-config", "--quiet", "--python", str(python), str(dest)]
    try:
        made = subprocess.run(
            command,
            env=_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{python}: cannot make a virtual environment: {error}") from error
    if made.returncode != 0:
        raise InfrastructureError(
            f"{python}: cannot make a virtual environment in {dest}: {_last_lines(made.stdout + made.stderr)}",
            hint="on Debian the module venv is in the package python3-venv",
        )
    return dest / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


_UV_FOLDERS = ("UV_CACHE_DIR", "UV_CREDENTIALS_DIR")
"""Where uv writes, for those whose home cannot be written; they choose no index."""
_SECRET = re.compile(r"^(FARM|AWS|ACTIONS|GITHUB)_|TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of variables that an environment's own Python must not see: a wheel's `.pth` file runs when it starts."""


def _environ() -> dict[str, str]:
    """The environment without credentials and what tells pip and uv of other indexes or interpreters.

    pip's `--isolated` leaves the machine's own pip.conf in force; this file name turns that off as well.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _UV_FOLDERS or not (name.startswith("UV_") or name == "VIRTUAL_ENV" or _SECRET.search(name))
    }
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


@dataclass(frozen=True)
class Target:
    """A folder for the packages of another machine, with its Python (`py311`) and glibc (`2.36`)."""

    folder: Path
    python: str
    machine: str
    glibc: str

    def options(self, *, uv: bool) -> list[str]:
        """The words for pip or uv."""
        version, major, minor = self.python[2:].rstrip("t"), *self.glibc.split(".")
        words = [f"--target={self.folder}", f"--python-version={version[0]}.{version[1:]}"]
        if uv:
            return [*words, f"--python-platform={self.machine}-manylinux_{major}_{minor}"]
        tags = [f"manylinux_{major}_{number}" for number in range(int(minor), 16, -1)]  # glibc 2.17: manylinux2014
        words += [f"--platform={tag}_{self.machine}" for tag in (*tags, "manylinux2014", facts(DEFAULT).tag)]
        return [*words, "--implementation=cp", *(f"--abi={abi}" for abi in (f"cp{self.python[2:]}", "abi3", "none"))]


def install(
    python: Path,
    requirement: str,
    *,
    target: Target | None = None,
    source: tuple[str, ...],
    log: Path,
    timeout_s: float,
    uv: str | None = None,
    line: Callable[[str], object] = lambda _: None,
) -> None:
    """Installs one requirement, and what it depends on, from one index and nowhere else.

    The user's configuration of pip and uv is left out: an extra index named there could answer for our package.

    Args:
        python: The interpreter of the environment.
        requirement: For example `canary==0.1.0+cu118.sm35.avx`, or a wheel's path.
        target: Where it is installed for another machine than this; None: into the environment.
        source: The options that name the index, such as `("--index-url", "https://…")`; pip and uv share them.
        log: All that pip says goes there.
        timeout_s: Limit in seconds.
        uv: uv's program, to install with it; None: with this interpreter's pip.
        line: Gets each line that the installer prints.

    Raises:
        SmokeFailedError: The installer failed or did not finish; the text has its last lines.
        InfrastructureError: This interpreter has no pip that can install into another environment; the disk is full;
            the index does not answer, or has no page of the project.
    """
    if requirement.startswith("-"):
        raise UsageError(f"{requirement!r} is not a requirement")
    # No cache: the wheel must come from the index under test. As with uv, what is imported is compiled then.
    words = ["install", "--isolated", "--no-cache-dir", "--no-compile", "--no-input", "--disable-pip-version-check"]
    words += ["--only-binary=:all:", *(target.options(uv=False) if target else ()), *source, requirement]
    command = [sys.executable, "-I", "-m", "pip", f"--python={python}", *words]
    if uv is not None:
        command = [uv, "pip", "install", f"--python={python}", "--no-config", "--no-cache", "--no-progress"]
        command += ["--only-binary=:all:", *(target.options(uv=True) if target else ()), *source, requirement]
    log.parent.mkdir(parents=True, exist_ok=True)
    what = " ".join(["uv pip install" if uv else "pip install", *map(_shown, source), requirement])
    end = time.monotonic() + timeout_s
    code = _logged(command, log, line, end)
    if code and uv is None and b"This version of pip does not support python" in log.read_bytes():
        # pip 26 takes 3.10 and newer: an older Python brings a pip of its age.
        code = _logged([str(python), "-I", "-m", "ensurepip"], log, line, end)
        code = code if code != 0 else _logged([str(python), "-I", "-m", "pip", *words], log, line, end)
    if code is None:
        raise SmokeFailedError(f"{what} did not finish in {timeout_s:g} s", hint=f"log: {log}")
    if code == 0:
        return
    raise _failure(f"{what} failed with exit code {code}", python, requirement, source, log)


def _failure(what: str, python: Path, requirement: str, source: tuple[str, ...], log: Path) -> FarmError:
    """The error of an installer that failed, by the last lines of its log: what is missing, and what to do about it."""
    output = _last_lines(log.read_bytes())
    # `--python` came with pip 22.3.
    if "No module named pip" in output or "no such option: --python" in output:
        return InfrastructureError(
            f"{sys.executable} has no pip 22.3 or newer: {output}", hint="install pip beside the farm"
        )
    if line_that_says("disk-full", output.splitlines()):
        return InfrastructureError(
            f"{what}: it cannot write:\n{output}",
            hint=f"make room in {log.parent} and in {tempfile.gettempdir()}, or set TMPDIR to another folder",
        )
    if "ensurepip" in output:
        return InfrastructureError(
            f"this pip is too new for {python}, which has none of its own: {output}",
            hint="put uv on the PATH, which installs into it, or add its ensurepip (Debian: pythonX.Y-venv)",
        )
    hint = f"log: {log}"
    absent = _ABSENT.search(output)
    name = next(filter(None, absent.groups())) if absent else None
    # It is a dependency that the index lacks, not the wheel that was asked for.
    if name and canonicalize_name(name) != canonicalize_name(requirement.partition("==")[0]):
        todo = "publish it too, or have pip ask its own index as well (--extra-index-url for this one)"
        hint = f"no index has {name} as the wheel needs it: {todo}; {hint}"
    elif source:
        # pip says of indexes that do not let it read, or are none, only that they have no such version.
        status, silent = _asked(requirement, source)
        if silent:
            return _unanswered(f"{what}: {source[-1]}", silent, hint)
        if status == 404:
            return _empty(f"{what}: {source[-1]}", "" if "--find-links" in source else requirement, hint)
        if status in (401, 403):
            hint = (
                f"{source[-1]} answers {status} without credentials, and pip sends none: let everybody read the bucket "
                f"(docs/index-stores.md has the policy); {hint}"
            )
    return SmokeFailedError(f"{what}:\n{output}", hint=hint)


_ADDRESS = "correct its address (--index-url, index_public_url in ci/farm.yaml)"


def _unanswered(what: str, reason: str, hint: str) -> FarmError:
    todo = f"start its server, or {_ADDRESS}"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        todo = "name the certificate of your own authority: SSL_CERT_FILE=FILE"
    return InfrastructureError(f"{what} does not answer ({reason})", hint=f"{todo}; {hint}")


def _empty(what: str, requirement: str, hint: str) -> FarmError:
    """The error of an index that has nothing of a `requirement`, or of a page of links, which needs none."""
    if not requirement:
        return InfrastructureError(f"{what} is not there", hint=f"publish a wheel there, or {_ADDRESS}; {hint}")
    return InfrastructureError(
        f"{what} has no page of {requirement.partition('==')[0]}",
        hint=f"publish a wheel there, or {_ADDRESS}, which ends in /whl/<group>/simple/; {hint}",
    )


def _shown(word: str) -> str:
    """A word of a command without the user name and password of a URL."""
    return re.sub("(?<=://)[^/@]*@", "****@", word)


def _asked(requirement: str, source: tuple[str, ...]) -> tuple[int, str]:
    """`_answer` of an index: of its page of the project, where everybody may read."""
    url, (name, version, _) = source[-1], requirement.partition("==")
    status, silent = _answer(url)
    if "--find-links" in source or silent or status in (401, 403):
        return status, silent
    # A root without a page of its own may have pages of projects. A wheel's path has no version.
    return _answer(f"{url.rstrip('/')}/{canonicalize_name(name)}/") if version else (0, "")


def _answer(url: str) -> tuple[int, str]:
    """The status with which a page answers everybody, else 0; and why it does not answer at all, else nothing."""
    import http.client  # noqa: PLC0415  takes long, and is rarely needed
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    if not url.startswith(("http://", "https://")) or "@" in url:
        return 0, ""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, ""
    except urllib.error.URLError as error:
        return 0, str(error.reason)
    except (OSError, http.client.HTTPException) as error:  # it is no web server, or closes the connection
        return 0, str(error).strip() or type(error).__name__
    except ValueError:
        return 0, ""


def _logged(command: list[str], log: Path, line: Callable[[str], object], end: float) -> int | None:
    """Runs a command whose output goes to `log`, line by line to `line` too: its exit code; None: ended at `end`."""
    with log.open("wb") as file, log.open("rb") as written:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=_environ()
        )
        try:
            return _followed(child, written, line, end)
        except BaseException:
            child.kill()
            child.wait()
            raise


def _followed(
    child: subprocess.Popen[bytes], written: IO[bytes], line: Callable[[str], object], end: float
) -> int | None:
    """Passes on the lines that a child writes until it ends: its exit code. None: it was killed at `end`."""
    rest = b""
    while True:
        try:
            code = child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            code = None
        *whole, rest = (rest + written.read()).split(b"\n")
        for text in whole:
            line(text.decode("utf-8", "replace"))
        if code is not None:
            return code
        if time.monotonic() > end:
            child.kill()
            child.wait()
            return None


def _last_lines(raw: bytes) -> str:
    return "\n".join(plain_lines(raw.decode("utf-8", "replace")).strip().splitlines()[-TAIL_LINES:])
