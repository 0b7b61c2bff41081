"""Published wheels for other Pythons, and without binaries: repair leaves them what they are, and verify takes them."""

import subprocess
import sys
import zipfile

import pytest

from farm.wheel.metadata import parse_wheel_name
from farm.wheel.policy import Policy
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify

LINUX = ("--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64")
# What pip is asked for, and words that choose the wheel.
WHEELS = {
    "PyPy on Linux": (
        "pydantic-core==2.50.4",
        (*LINUX, "--implementation=pp", "--python-version=3.11", "--abi=pypy311_pp73"),
    ),
    "PyPy on Windows": (
        "lxml==6.1.3",
        ("--platform=win_amd64", "--implementation=pp", "--python-version=3.10", "--abi=pypy310_pp73"),
    ),
    "PyPy on macOS": (
        "pillow==11.0.0",
        ("--platform=macosx_11_0_arm64", "--implementation=pp", "--python-version=3.10", "--abi=pypy310_pp73"),
    ),
    "GraalPy": (
        "pydantic-core==2.50.2",
        (*LINUX, "--implementation=graalpy", "--python-version=3.11", "--abi=graalpy242_311_native"),
    ),
    "32-bit Windows": ("markupsafe==3.0.2", ("--platform=win32", "--python-version=3.11")),
    "pure": ("zope.event==6.2", ()),
}


@pytest.mark.parametrize("name", WHEELS)
def test_wheels_by_other_makers(name, tmp_path, require):
    wanted, words = WHEELS[name]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(tmp_path)]
    done = subprocess.run([*command, *words, wanted], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        require(wanted, done.stderr[-300:])
    [wheel] = tmp_path.glob("*.whl")
    assert verify(wheel, Policy()).findings == ()
    for into in ("own.libs", None):
        folder = tmp_path / str(into)
        folder.mkdir()
        result = repair(wheel, folder, RepairOptions(into=into))
        assert parse_wheel_name(result.wheel.name).tags == parse_wheel_name(wheel.name).tags
        assert verify(result.wheel, Policy()).findings == ()
        with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(result.wheel) as after:
            assert packages(before) == packages(after)


def packages(archive):
    """CRC by file, without `.dist-info`: what is installed as it was built."""
    files = (entry for entry in archive.infolist() if not entry.is_dir() and ".dist-info/" not in entry.filename)
    return {entry.filename: entry.CRC for entry in files}
