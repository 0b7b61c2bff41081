"""What others make of a wheel: pip, uv, installer, packaging and the loader. None: it takes it; else what it says."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from packaging.metadata import Metadata, parse_email
from packaging.tags import parse_tag
from packaging.utils import parse_wheel_filename

TIMEOUT_S = 300
_HERE = Path(__file__).parent
_UV_PLATFORMS = {
    "manylinux": "x86_64-manylinux_2_28",
    "musllinux": "x86_64-unknown-linux-musl",
    "linux": "x86_64-unknown-linux-gnu",
    "win": "x86_64-pc-windows-msvc",
    "macosx": "aarch64-apple-darwin",
}


@dataclass(frozen=True)
class Target:
    """The machine that a wheel is installed for: the tags of the wheel before it was changed."""

    platforms: tuple[str, ...]
    python: str = "3.11"

    @classmethod
    def of(cls, filename: str) -> "Target":
        return cls(tuple(filename.removesuffix(".whl").rpartition("-")[2].split(".")))

    @property
    def any(self) -> bool:
        return self.platforms == ("any",)


Judge = Callable[[Path, Target, Path], str | None]


def _quiet_environment() -> dict[str, str]:
    """Without this machine's settings of pip and uv: no index, no options, no cache."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "PYTHON"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}


def _last(text: str) -> str:
    """What a tool complains of, in one line."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("[notice]")]
    errors = [line for line in lines if line.startswith(("ERROR", "error"))]
    return " / ".join(errors or lines[-1:])[:300] or "no reason"


@contextlib.contextmanager
def pip(where: Path, scratch: Path) -> Iterator[Judge]:
    """pip, of a wheel or of an installation's folder."""
    scratch.mkdir(parents=True, exist_ok=True)
    if where.is_file():
        with zipfile.ZipFile(where) as archive:
            archive.extractall(scratch / "pip")
        where = scratch / "pip"
    command = [sys.executable, "-S", "-W", "ignore", str(_HERE / "forked.py"), str(where)]
    environment = {
        **_quiet_environment(),
        "PATH": "",
    }  # it asks rustc and others for versions, to name them to an index
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
    )
    assert child.stdin
    assert child.stdout
    requests, answers = child.stdin, child.stdout

    def judge(wheel: Path, target: Target, folder: Path) -> str | None:
        arguments = ["install", "--no-deps", "--no-index", "--no-compile", "-q", "--target", str(folder)]
        if not target.any:
            arguments += [word for each in target.platforms for word in ("--platform", each)]
            arguments += ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python]
        log = scratch / "log"
        requests.write(json.dumps({"arguments": [*arguments, str(wheel)], "log": str(log)}) + "\n")
        code = int(answers.readline())
        return None if code == 0 else _last(log.read_text(errors="replace"))

    try:
        yield judge
    finally:
        requests.close()
        child.wait(TIMEOUT_S)
        answers.close()


def uv(scratch: Path) -> Judge:
    """uv, with a cache of its own."""
    program = Path(sys.executable).with_name("uv")
    environment = _quiet_environment()

    def judge(wheel: Path, target: Target, folder: Path) -> str | None:
        command = [str(program), "pip", "install", "--offline", "--no-index", "--no-deps", "--no-config", "-q"]
        command += ["--cache-dir", str(scratch), "--link-mode=copy", "--python", sys.executable]
        command += ["--target", str(folder)]
        if not target.any:
            word = re.match("[a-z]+", target.platforms[0])
            command += ["--python-version", target.python, "--python-platform", _UV_PLATFORMS[word[0] if word else ""]]
        done = subprocess.run(
            [*command, str(wheel)], capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
        return None if done.returncode == 0 else _last(done.stderr)

    return judge


def installer(wheel: Path, target: Target, folder: Path) -> str | None:
    """PyPA's installer, with every check that it has."""
    schemes = {name: str(folder / name) for name in ("headers", "scripts", "data")}
    schemes |= {"purelib": str(folder / "site"), "platlib": str(folder / "site")}
    try:
        with WheelFile.open(wheel) as source:
            source.validate_record()
            destination = SchemeDictionaryDestination(schemes, interpreter=sys.executable, script_kind="posix")
            install(source, destination, {})
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None


def packaging(wheel: Path, target: Target, folder: Path) -> str | None:
    """packaging, of PyPA: file name, tags, METADATA."""
    try:
        tags = parse_wheel_filename(wheel.name)[3]
        with zipfile.ZipFile(wheel) as archive:
            members = {name.rpartition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
            raw, unknown = parse_email(archive.read(members["METADATA"]))
            lines = archive.read(members["WHEEL"]).decode().splitlines()
        said = {tag for line in lines if line.startswith("Tag:") for tag in parse_tag(line[4:].strip())}
        # setuptools before 77 writes License-File into older metadata (pypa/setuptools#4759): most wheels have it.
        if raw.get("metadata_version") in ("2.1", "2.2", "2.3"):
            raw.pop("license_files", None)
        if unknown:
            return f"unrecognized or repeated: {', '.join(unknown)}"[:300]
        Metadata.from_raw(raw)
    except ExceptionGroup as group:
        return "; ".join(str(each) for each in group.exceptions)[:300]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None if said == tags else "the tags of the file name are not those of WHEEL"


_LOAD = """
import ctypes, os, sys
try:
    module = ctypes.CDLL(sys.argv[1], os.RTLD_NOW)
except OSError as error:
    sys.exit(f"dlopen: {error}")
name = "PyInit_" + os.path.basename(sys.argv[1]).partition(".")[0]
hasattr(module, name) or sys.exit(f"dlsym: no {name}")  # as Python asks for it
"""


def loader(wheel: Path, target: Target, folder: Path) -> str | None:
    """glibc's loader, asked by a child, which may crash, for the first extension module of a wheel for it."""
    if not target.platforms[0].startswith("manylinux"):
        return None
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".so")), None)
            if name is None:
                return None
            path = Path(archive.extract(name, folder))
    except Exception:
        return None  # what cannot be unpacked is the installers' to refuse
    command = [sys.executable, "-c", _LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)
    if done.returncode == 0:
        return None
    return done.stderr.strip()[-300:] or f"the process died with {-done.returncode}"


def ask(judges: Sequence[tuple[str, Judge]], wheel: Path, target: Target, scratch: Path) -> dict[str, str]:
    """Who refuses a wheel, and what it says. All are asked at once, each with a folder of its own to install into."""

    def one(name: str, judge: Judge) -> str | None:
        folder = scratch / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return judge(wheel, target, folder)

    with ThreadPoolExecutor(len(judges)) as pool:
        asked = [(name, pool.submit(one, name, judge)) for name, judge in judges]
        answers = [(name, each.result()) for name, each in asked]
    return {name: said for name, said in answers if said is not None}
