"""Platforms: one table of names and machines, one interface, and nothing else in the farm asks for
their names.
"""

import ast
import platform as python_platform
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.tags import platform_tags

from farm.base.errors import NoRunnerError, UsageError
from farm.base.project import LOCAL
from farm.plan.platforms.base import platform
from farm.plan.settings import load_runners, load_settings
from farm.platforms.facts import PLATFORMS, facts, here, named, of_tag
from farm.run.backends import ENGINES, check_engine, this_machine
from farm.run.workspace import Watcher, Workspace
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
NAMES = re.compile(
    r"(linux|windows|macos|darwin|win32)(_.*)?|.*\b(linux\|windows|windows\|macos|linux\|macos)\b.*",
    re.IGNORECASE,
)
FOREIGN = {  # words of other formats that look like a platform's name
    ("wheel/pe.py", "win32"),
    (
        "wheel/repair.py",
        "linux_",
    ),  # how the platform tag of a wheel that is not repaired yet begins
}
SINGLE_FOLDERS = ("recipes/", "run/standalone/", "smoke/probe")


def literals(path):
    """(line, text) of strings that name a platform; `sys.platform == "win32"`, which mypy reads, is
    none.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    allowed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            allowed.add(node.value)  # a docstring
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "sys.platform":
            allowed |= set(node.comparators)
    return sorted(
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in allowed
        if NAMES.fullmatch(node.value)
    )


def test_no_module_outside_the_folder_names_a_platform():
    found = {}
    for path in sorted((ROOT / "farm").rglob("*.py")):
        name = path.relative_to(ROOT / "farm").as_posix()
        if name.startswith(("platforms/", "plan/platforms/", *SINGLE_FOLDERS)):
            continue
        if hits := [(line, word) for line, word in literals(path) if (name, word) not in FOREIGN]:
            found[name] = hits
    assert found == {}, "ask farm.platforms.facts for the trait that is meant"
    assert literals(Path(__file__)), "this file names platforms"


def test_this_machine_is_one_of_the_table():
    found = here()
    assert found is not None
    assert found is named(python_platform.system())
    machine = found.machine(python_platform.machine())
    assert any(found.fits(tag, machine) for tag in platform_tags())
    assert not any(
        one.fits(tag, machine)
        for one in PLATFORMS.values()
        if one != found
        for tag in platform_tags()
    )


@pytest.mark.parametrize(
    ("tag", "name", "machine"),
    [
        ("manylinux_2_17_x86_64", "linux", "x86_64"),
        ("linux_aarch64", "linux", "aarch64"),
        ("win_amd64", "windows", "x86_64"),
        ("win_arm64", "windows", "aarch64"),
        ("macosx_11_0_arm64", "macos", "arm64"),
    ],
)
def test_wheel_tags(tag, name, machine):
    found = of_tag(tag)
    assert found is facts(name)
    assert found.fits(tag, machine)
    assert [each.name for each in PLATFORMS.values() if each.fits(tag, machine)] == [name]


def test_a_wheel_for_any_platform_is_for_none():
    assert of_tag("any") is None


@pytest.mark.parametrize("spelling", ["AMD64", "amd64", "x86_64", "x64", "X86-64"])
def test_spellings_of_a_machine(spelling):
    assert {each.machine(spelling) for each in PLATFORMS.values()} == {"x86_64"}


def test_arm_is_called_as_each_platform_calls_it():
    assert {each.name: each.machine("arm64") for each in PLATFORMS.values()} == {
        "linux": "aarch64",
        "windows": "aarch64",
        "macos": "arm64",
    }


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_is_behind_the_interface(name):
    found = platform(name)
    assert found.facts is facts(name)
    assert (ROOT / "dockerfiles" / name / f"{found.entry}.j2").is_file()


def test_an_unknown_platform_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="unknown platform 'windoes'") as caught:
        plan_of("sm35-avx-py311", platform="windoes")
    assert caught.value.hint == "nearest: windows"


@pytest.fixture
def mac(monkeypatch):
    """Python as it is on a Mac with Apple silicon, as far as the farm asks it."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("farm.run.backends.machine", lambda: "arm64")


@pytest.fixture(scope="module")
def mps():
    return plan_of("mps-arm64-py313", platform="macos")


def test_a_mac_is_the_machine_that_its_plans_name(mac, mps):
    system, machine = this_machine()
    assert (system.facts.name, machine) == (mps.platform, mps.machine) == ("macos", "arm64")


def test_the_worker_of_a_mac_takes_its_plans(mac, mps, tmp_path):
    """Plans said arm64 and the worker aarch64: nothing for a Mac was ever built on one."""
    workspace = Workspace(tmp_path, load_settings(ROOT), Watcher())
    (worker,) = ENGINES["host"].open(workspace, LOCAL, load_runners(ROOT)[LOCAL]).workers()
    assert (worker.platform, worker.machine) == (mps.platform, mps.machine)


def test_a_mac_builds_what_is_for_it_on_the_host(mac, mps, monkeypatch, tmp_path):
    host = ENGINES["host"]
    monkeypatch.setitem(
        ENGINES,
        "host",
        replace(host, traits=replace(host.traits, platforms=frozenset({here().name}))),
    )
    check_engine(Workspace(tmp_path, load_settings(ROOT), Watcher()), "host", mps)


def test_a_plan_for_a_mac_is_refused_on_other_machines(mps, tmp_path):
    workspace = Workspace(tmp_path, load_settings(ROOT), Watcher())
    for engine in ("host", "docker"):
        with pytest.raises(
            NoRunnerError, match=f"the {engine} engine cannot run macos jobs"
        ) as caught:
            check_engine(workspace, engine, mps)
        assert "--on host" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_platform_without_builds_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with pytest.raises(NoRunnerError, match="does not build on freebsd14"):
        this_machine()
