"""Environments, and pip with an index made of files."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from farm.errors import InfrastructureError, SmokeFailedError, UsageError
from farm.smoke.environment import find_python, install, make_environment
from farm.smoke.runner import Expectation, run_probe


def program(folder: Path, name: str, script: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_this_python_is_found():
    assert find_python("py{}{}".format(*sys.version_info[:2])) == Path(sys.executable)


def test_another_python_is_found_on_the_path(tmp_path, monkeypatch):
    other = program(tmp_path, "python3.99", "echo cpython 3 99 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399") == other


@pytest.mark.parametrize(
    "script",
    ["echo cpython 3 98 0", "echo pypy 3 99 0", "echo cpython 3 99 1", "echo cpython 3 99 0; exit 127", "exit 1"],
)
def test_a_program_that_only_has_the_name_is_no_python(tmp_path, monkeypatch, script):
    program(tmp_path, "python3.99", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399") is None


def test_a_free_threaded_python_has_its_own_name(tmp_path, monkeypatch):
    program(tmp_path, "python3.99", "echo cpython 3 99 0")
    free = program(tmp_path, "python3.99t", "echo cpython 3 99 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399t") == free


def test_pyenvs_shims_are_not_run_and_stand_for_its_newest_version(tmp_path, monkeypatch):
    shims = tmp_path / "shims"
    shims.mkdir()
    program(shims, "python3.99", f"touch {tmp_path}/ran; exit 127")
    for version in ("3.99.9", "3.99.10", "3.9.99"):
        folder = tmp_path / "versions" / version / "bin"
        folder.mkdir(parents=True)
        program(folder, "python" + ".".join(version.split(".")[:2]), "echo cpython 3 99 0")
    monkeypatch.setenv("PATH", str(shims))
    assert find_python("py399") == tmp_path / "versions/3.99.10/bin/python3.99"
    assert find_python("py398") is None
    assert not (tmp_path / "ran").exists()


def test_a_python_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399") is None


@pytest.mark.parametrize("name", ["311", "python3.11", "py", "py3", "py3.11", "py3111", "../py311"])
def test_a_name_that_is_no_python(name):
    with pytest.raises(UsageError, match="names no Python"):
        find_python(name)


def test_an_environment_is_separate(tmp_path):
    python = make_environment(tmp_path / "env", Path(sys.executable))
    answer = subprocess.run(
        [python, "-I", "-c", "import sys; print(sys.prefix); import pytest"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.strip() == str(tmp_path / "env")
    assert "No module named 'pytest'" in answer.stderr


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        make_environment(tmp_path, Path(sys.executable))
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interpreter_that_cannot_make_one(tmp_path):
    broken = program(tmp_path, "python", "echo No module named venv >&2; exit 1")
    with pytest.raises(InfrastructureError, match="No module named venv"):
        make_environment(tmp_path / "env", broken)
    with pytest.raises(InfrastructureError, match="cannot make a virtual environment"):
        make_environment(tmp_path / "env", tmp_path / "absent")


def add_wheel(index: Path, name: str, version: str, source: str, requires: str = "") -> None:
    """Puts a pure-Python wheel with one module into an index of files."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with (folder / "index.html").open("a") as page:
        page.write(f'<!DOCTYPE html><a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>\n')


VERSION = "1.2.3+cu118.sm35.avx"


@pytest.fixture
def index(tmp_path, good_source):
    folder = tmp_path / "index"
    add_wheel(folder, "fakemod", VERSION, good_source.replace('"1.2.3"', f'"{VERSION}"'))
    return folder


@pytest.fixture(params=["pip", "uv"])
def uv(request):
    """The program of uv that stands beside this interpreter, or None for pip."""
    if request.param == "pip":
        return None
    program = Path(sys.executable).with_name("uv")
    assert program.exists(), "uv is one of the development tools"
    return str(program)


@pytest.fixture
def python(tmp_path, uv):
    return make_environment(tmp_path / "env", Path(sys.executable), uv=uv)


NONE_SUCH = r"No matching distribution found for fakemod==9|no version of fakemod==9"


def test_install_then_probe(tmp_path, index, python, uv):
    log = tmp_path / "logs" / "pip.log"
    install(python, f"fakemod=={VERSION}", source=("--index-url", index.as_uri()), log=log, timeout_s=120, uv=uv)
    assert re.search("Successfully installed|Installed 1 package", log.read_text())
    report = run_probe(python, module="fakemod", expect=Expectation(version=VERSION), timeout_s=120)
    assert report.outcome == "passed"
    (imported,) = [c.seen for c in report.checks if c.name == "import"]
    assert (tmp_path / "env" / imported).is_file()


def test_what_is_not_in_the_index_fails_with_the_installers_words(tmp_path, index, python, uv):
    log = tmp_path / "pip.log"
    with pytest.raises(SmokeFailedError, match=NONE_SUCH) as caught:
        install(python, "fakemod==9", source=("--index-url", index.as_uri()), log=log, timeout_s=120, uv=uv)
    assert caught.value.hint == f"log: {log}"


def test_what_a_wheel_needs_and_the_index_lacks_is_named(tmp_path, index, python, uv, good_source):
    add_wheel(index, "needy", "1", good_source, "Requires-Dist: absentmod\n")
    with pytest.raises(SmokeFailedError, match="absentmod") as caught:
        install(
            python, "needy==1", source=("--index-url", index.as_uri()), log=tmp_path / "pip.log", timeout_s=120, uv=uv
        )
    assert "the index lacks absentmod: `farm index dependencies`" in caught.value.hint


def test_no_other_index_can_answer(tmp_path, index, python, uv, monkeypatch, good_source):
    other = tmp_path / "other"
    add_wheel(other, "fakemod", "9", good_source)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", other.as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", str(other / "fakemod"))
    monkeypatch.setenv("UV_EXTRA_INDEX_URL", other.as_uri())
    monkeypatch.setenv("UV_FIND_LINKS", str(other / "fakemod"))
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nextra-index-url = {other.as_uri()}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    with pytest.raises(SmokeFailedError, match=NONE_SUCH):
        install(
            python, "fakemod==9", source=("--index-url", index.as_uri()), log=tmp_path / "pip.log", timeout_s=120, uv=uv
        )


def test_a_wheel_with_other_bytes_than_the_index_says_is_refused(tmp_path, index, python, uv):
    (wheel,) = index.glob("fakemod/*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("planted.py", "x = 1")
    with pytest.raises(SmokeFailedError, match=r"DO NOT MATCH THE HASHES|Hash mismatch"):
        install(
            python,
            f"fakemod=={VERSION}",
            source=("--index-url", index.as_uri()),
            log=tmp_path / "pip.log",
            timeout_s=120,
            uv=uv,
        )


def test_a_requirement_is_no_option(tmp_path, index, python, uv):
    with pytest.raises(UsageError, match="is not a requirement"):
        install(
            python, "--target=/", source=("--index-url", index.as_uri()), log=tmp_path / "pip.log", timeout_s=120, uv=uv
        )
