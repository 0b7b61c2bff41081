"""Real parts: a Docker engine, real compilers, real pip, emulated CPUs."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from xdist.scheduler import LoadScopeScheduling

from farm.base.errors import NoRunnerError
from farm.engines.docker import connect
from tests.e2e.wine import windows_python as windows
from tests.servers import rgw
from tests.servers.buckets import ISOLATED, KEYS
from tests.servers.process import MissingError

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
VARIANT = "sm35-avx-py311"
TIMEOUT_S = 900
OBJECT = re.compile(r"^\[\d+/\d+\] Building \w+ object (\S+)", re.MULTILINE)
"""What Ninja says of each object that was compiled; group 1 is its path."""


# The groups that take longest begin first (docs/explanation/benchmarks.md has times): begun last,
# one would run alone at the end.
LONGEST = (
    "e2e/dispatch",
    "e2e/docker",
    "e2e/wine",
    "e2e/servers",
    "e2e/own_package",
    "e2e/distributions",
    "e2e/installers",
    "e2e/emulation",
)


def group_of(nodeid: str) -> str:
    """A folder is a group."""
    if "[windows_host" in nodeid:  # with the tests that have the Wine prefix
        return "e2e/wine"
    return "/".join(Path(nodeid.partition("::")[0]).parts[1:3])


class GroupScheduling(LoadScopeScheduling):
    """Groups run at the same time, the tests of one group one after another.

    By the names of the tests: xdist's own groups (`--dist loadgroup`) do nothing with pytest 9
    (xdist 3.8).
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist`: one test, by hand
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.parent == HERE:
            raise pytest.UsageError(
                f"{item.path}: put it into a folder of tests/e2e; a folder is a group"
            )
    ranks = {group: rank for rank, group in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(group_of(item.nodeid), len(ranks)))


def wait(what: str, check: Callable[[], Any], seconds: float = TIMEOUT_S) -> Any:
    """The first true answer of `check`; fails after so many seconds: generous ones, as machines are
    busy.

    A check that costs much, such as a command, is made less often: what is waited for needs the CPU
    more.
    """
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        if found := check():
            return found
        time.sleep(max(0.1, 3 * (time.monotonic() - now)))
    raise AssertionError(f"not within {seconds} s: {what}")


def need(what: str, reason: str) -> None:
    """Skip, or fail where everything is required."""
    message = f"{what} is missing: {reason}"
    if os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    try:
        made = connect()
    except NoRunnerError as error:
        need("a Docker engine", str(error))
        raise
    yield made
    made.close()


@pytest.fixture(scope="session")
def emulator() -> str:
    found = shutil.which("qemu-x86_64")
    if not found:
        need("qemu-x86_64", "install the Debian package qemu-user")
    return str(found)


@pytest.fixture
def own_machine_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host engine's lock of this machine is this test's own: a job of another group's test
    would be in its way.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextlib.contextmanager
def without_random_addresses() -> Iterator[None]:
    """What is started here finds its heap at the same address each time, where the kernel allows to
    say so.

    Wine's loader lies at 0x7d000000, and Debian's Wine has no preloader that reserves what Windows
    programs share, the page at 0x7ffe0000. The kernel puts the heap anywhere in the gigabyte behind
    the loader: one program in some thousands lay on that page, and died without a word while it
    started.
    """
    personality, no_randomize, ask = (
        ctypes.CDLL(None).personality,
        0x0040000,
        0xFFFFFFFF,
    )  # sys/personality.h
    personality.argtypes = [ctypes.c_ulong]
    before = personality(ask)
    personality(before | no_randomize)
    try:
        yield
    finally:
        personality(before)


@pytest.fixture(scope="session")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a Wine prefix of its own, with MinGW-w64 beside it; root installs what is
    missing.

    Its server and services run for the whole session, with no pipe of ours: by default they end
    three seconds after the last program, a reader of that program's pipes waits for them, and one
    started right then fails to start.
    """
    packages = ("wine64", "wine", "gcc-mingw-w64-x86-64")
    tools = ("wine", "x86_64-w64-mingw32-gcc")
    if not all(map(shutil.which, tools)) and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-q"], check=False, timeout=TIMEOUT_S)
        command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages]
        subprocess.run(command, check=False, timeout=TIMEOUT_S)
    if not all(map(shutil.which, tools)):
        need("Wine or MinGW-w64", f"install the Debian packages {' '.join(packages)}")
    prefix = tmp_path_factory.mktemp("wine") / "prefix"
    environment = {
        **os.environ,
        "WINEPREFIX": str(prefix),
        "WINEDEBUG": "-all",
        "DISPLAY": "",
        "LC_ALL": "C.UTF-8",
    }
    # It would write the menus and file types of Windows programs into ~/.local and ~/.config.
    environment["WINEDLLOVERRIDES"] = "winemenubuilder.exe=d"

    def run(*command: str) -> None:
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

    with without_random_addresses():
        run("wine", "cmd", "/c", "exit")
        run("wineserver", "-k", "-w")
        run("wineserver", "-p")
        run("wine", "cmd", "/c", "exit")
        yield environment
        run("wineserver", "-k")


@pytest.fixture(scope="session")
def windows_python(
    wine: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> windows.WindowsPython:
    """CPython 3.11.9 of python.org under Wine: `windows_python.run("-c", "...")`; with what the
    host engine needs.
    """
    made = windows.make(tmp_path_factory.mktemp("windows-python"), wine, need)
    made.install(need, "psutil")
    return made


@pytest.fixture(scope="session")
def require() -> Callable[[str, object], None]:
    """`need`, for tests that find out late what is missing."""
    return lambda what, reason: need(what, str(reason))


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys for a test server, and nothing of this machine's own configuration."""
    for name, value in {**KEYS, **ISOLATED}.items():
        monkeypatch.setenv(name, value)
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    return KEYS


@pytest.fixture(scope="session")
def running_ceph() -> Iterator[rgw.Gateway]:
    """A real S3 server over http and https; one for all tests."""
    with tempfile.TemporaryDirectory(prefix="farm-") as folder, contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(rgw.gateway(Path(folder) / "rgw"))
        except MissingError as error:
            need("Ceph's gateway", str(error))
            raise
        yield started


@pytest.fixture
def ceph(
    running_ceph: rgw.Gateway, credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> rgw.Gateway:
    """The server, with its credentials and its authority in the environment."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(running_ceph.ca))
    return running_ceph


@dataclass(frozen=True)
class Farm:
    """The farm's command in a project folder of its own."""

    project: Path
    code: Path = ROOT

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": str(self.code), "CI": "true", **environment}
        # What a shell starts in the background has SIGINT ignored, and so would its children.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "farm.cli.main"]
        command += ["--project", str(self.project), *arguments]
        return subprocess.Popen(
            command,
            env=environ,
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def submit(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            "submit", "--variant", VARIANT, "--package", "canary", *arguments, **environment
        )

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    @property
    def index(self) -> Path:
        return self.project / "artifacts" / "index"

    def folder(self, run: str) -> Path:
        return self.project / "artifacts" / "runs" / run


def make_project(folder: Path) -> Path:
    """A project with the real configuration and templates, and artifacts of its own."""
    for name in ("ci", "dockerfiles"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def pack_fast(project: Path) -> None:
    """Has a project pack toolchains for bundles with little compression: three minutes less, and
    the same format.
    """
    packer = project / "dockerfiles/scripts/pack_toolchain.py"
    text = packer.read_text()
    assert "\nPRESET = 4\n" in text
    packer.write_text(text.replace("\nPRESET = 4\n", "\nPRESET = 0\n"))


def containers_of(client: docker.DockerClient, run: str) -> list[str]:
    found = client.containers.list(
        all=True, filters={"label": f"farm.run={run}"}, ignore_removed=True
    )
    return [str(container.id) for container in found]


@pytest.fixture
def farm(tmp_path: Path, client: docker.DockerClient) -> Iterator[Farm]:
    made = Farm(make_project(tmp_path / "project"))
    yield made
    runs = made.project / "artifacts" / "runs"
    for run in runs.iterdir() if runs.is_dir() else ():
        for container in containers_of(client, run.name):
            client.containers.get(container).remove(force=True)


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, client: docker.DockerClient
) -> tuple[Farm, dict[str, Any]]:
    """A project in which the main job has run once, and what it said."""
    made = Farm(make_project(tmp_path_factory.mktemp("finished") / "project"))
    result = made.submit("--json")
    assert result.returncode == 0, result.stderr
    return made, json.loads(result.stdout)
