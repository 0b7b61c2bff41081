"""What installers refuse, or what they would overwrite."""

from contextlib import nullcontext

import pytest

from farm.base.errors import VerificationFailedError
from farm.wheel.policy import Policy
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify

TAG = "cp311-cp311-manylinux_2_17_x86_64"
WHEEL = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}\n"
METADATA = "Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n%s\nText\n"


@pytest.fixture
def refused(tmp_path, make_wheel):
    """The findings of a wheel with these files."""

    def run(files=None, policy=None, **kwargs):
        path = make_wheel(tmp_path, {"canary/__init__.py": b"", **(files or {})}, **{"tag": TAG, **kwargs})
        report = verify(path, Policy(**(policy or {})))
        return [(f.check, f.where, f.what) for f in report.findings]

    return run


def test_a_good_wheel_of_all_schemes(refused):
    files = {f"canary-1.0.data/{where}": b"x" for where in ("scripts/run", "headers/c.h", "data/share/x", "data/bin/y")}
    files |= {"canary-1.0.data/platlib/canary/extra.py": b"", "canary.pth": b""}
    commands = b"[console_scripts]\ncanary = canary.cli:main [extra]\n[canary.plugins]\nx.y = canary\n"
    assert refused({**files, "canary-1.0.dist-info/entry_points.txt": commands}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WHEEL.replace("1.0", "2.0"), "Wheel-Version 2.0"),
        (WHEEL.replace("Wheel-Version: 1.0\n", ""), "Wheel-Version is missing"),
        (WHEEL.replace("1.0", "one"), "Wheel-Version is one"),
        (WHEEL.replace("1.0", "1.0\nWheel-Version: 1.0"), "Wheel-Version is 1.0, 1.0"),
        (WHEEL.replace("false", "maybe"), "Root-Is-Purelib is maybe"),
    ],
)
def test_wheel_file(refused, text, found):
    [(check, where, what)] = refused(wheel_file=text.encode())
    assert (check, where) == ("install", "canary-1.0.dist-info/WHEEL")
    assert found in what


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("Requires-Python: <3.9\n", "excludes every Python that the tag cp311-cp311"),
        ("Requires-Python: >=3.12\n", "excludes every Python that the tag cp311-cp311"),
        ("Requires-Python: !=3.11.*\n", "excludes every Python that the tag cp311-cp311"),
        ("Requires-Python: about 3\n", "cannot be read"),
        ("Requires-Python: >=3.8\nRequires-Python: >=3.9\n", "2 Requires-Python headers"),
        ("Requires-Dist: numpy >>1\n", "cannot be read"),
        ("Requires-Dist: numpy; python_verson<'3'\n", "cannot be read"),
        ("Requires-Dist: numpy @ https://example.org/numpy.whl\n", "a direct URL"),
        ("Requires-Dist: canary\n", "requires itself"),
        ("Requires-Dist: a; 'x' in extras\n", "are for lock files"),
        ("Requires-Dist: a; dependency_groups == 'x'\n", "are for lock files"),
        ("Requires-Dist: a===anything\n", "is no version"),
        ("Provides-Extra: a b\n", "is not a valid name"),
    ],
)
def test_metadata(refused, lines, found):
    [(check, where, what)] = refused(metadata=(METADATA % lines).encode())
    assert (check, where) == ("install", "canary-1.0.dist-info/METADATA")
    assert found in what


@pytest.mark.parametrize("name", ["canary ", "\n canary"])
def test_a_name_with_blanks_or_line_ends(refused, name):
    [(_, _, what)] = refused(metadata=(METADATA % "").replace("Name: canary", f"Name: {name}").encode())
    assert what == f"Name {name!r} is not a valid distribution name: blanks or line ends around it"


@pytest.mark.parametrize("version", ["99.9", "2", "", "2.1 ", "2.1\nMetadata-Version: 2.1"])
def test_metadata_version(refused, version):
    [(_, _, what)] = refused(metadata=(METADATA % "").replace("2.1", version).encode())
    assert what.startswith("Metadata-Version is ")


@pytest.mark.parametrize(
    "lines",
    [f"Requires-Python: {each}\n" for each in (">=3.11", "~=3.11.4", "<4,>3.6")]
    + ["Requires-Dist: a===1.0; extra == 'extras'\n"],
)
def test_metadata_that_fits(refused, lines):
    assert refused(metadata=(METADATA % lines).encode()) == []


@pytest.mark.parametrize(
    ("version", "listed", "member", "found"),
    [
        ("2.4", "LICENSE", "licenses/LICENSE", []),
        ("2.4", "third/party.txt", "licenses/third/party.txt", []),
        ("2.4", "LICENSE", "LICENSE", ["License-File 'LICENSE' is not at canary-1.0.dist-info/licenses/LICENSE"]),
        ("2.5", "lic", "licenses/lic/x", ["License-File 'lic' is not at canary-1.0.dist-info/licenses/lic"]),
        ("2.1", "LICENSE", "LICENSE", []),  # setuptools before 77, whose METADATA is older than the folder
    ],
)
def test_license_files_are_where_metadata_says(refused, version, listed, member, found):
    """PEP 639; PyPI refuses such a wheel, after its sdist and its other wheels may have been taken."""
    metadata = (METADATA % f"License-File: {listed}\n").replace("2.1", version).encode()
    assert [what for _, _, what in refused({f"canary-1.0.dist-info/{member}": b""}, metadata=metadata)] == found


def test_both_names_of_a_level_are_one_tag(refused):
    """xgboost 2.1.4 says manylinux2014 in its name and manylinux_2_17 in WHEEL."""
    assert refused(tag=TAG.replace("_2_17", "2014"), wheel_file=WHEEL.encode()) == []
    [(check, _, what)] = refused(tag=TAG.replace("_2_17", "_2_28"), wheel_file=WHEEL.encode())
    assert (check, "differ" in what) == ("names", True)


def test_a_tag_of_python_2_that_is_left_over(refused):
    """soundfile 0.14.0 is py2.py3 and requires Python 3.10."""
    metadata = (METADATA % "Requires-Python: >=3.10\n").encode()
    assert refused(tag="py2.py3-none-any", metadata=metadata) == []
    [(_, _, what)] = refused(tag="py2-none-any", metadata=metadata)
    assert "excludes every Python that the tag py2-none" in what


def test_a_direct_url_that_the_policy_allows(refused):
    metadata = METADATA % "Requires-Dist: numpy @ https://example.org/numpy.whl\n"
    assert refused(metadata=metadata.encode(), policy={"direct_urls": True}) == []


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"other.egg-info/PKG-INFO": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"}, None),
        ({"other.egg-info/PKG-INFO": b""}, "no valid Version"),
        ({"other.egg-info/PKG-INFO": b"Name: other\nVersion: %s\n" % (b"1" * 5000)}, "no valid Version"),
        ({"other.egg-info/PKG-INFO": b"Name: other\nVersion: 1.0\nAuthor: \xe9\n"}, "not UTF-8"),
        ({"other.egg-info/SOURCES.txt": b""}, "is missing"),
        ({"other-1.0.egg-info": b""}, "no valid Version"),
        ({"canary-1.0.data/purelib/other-1.0.dist-info/METADATA": b"Name: other\n"}, "no valid Version"),
        ({"canary/data/other.egg-info/PKG-INFO": b""}, None),
    ],
)
def test_metadata_of_other_packages(refused, files, wrong):
    found = [what for _, _, what in refused(files)]
    assert len(found) == (wrong is not None)
    assert all(wrong in what for what in found)


@pytest.mark.parametrize(
    "text",
    [
        b"[console_scripts]\n../x = canary:main\n",
        b"[console_scripts]\n/bin/x = canary:main\n",
        b"[console_scripts]\na b = canary:main\n",
        b"[gui_scripts]\n.. = canary:main\n",
        b"[console_scripts]\nx = canary\n",
        b"[console_scripts]\nx = canary:main()\n",
        b"[console_scripts]\nx = import os; os:system\n",
        b"x = canary:main\n",
        b"[console_scripts\nx = canary:main\n",
        b"[console_scripts]\nx = canary:main\nx = canary:other\n",
        b"[console_scripts]\nx\xff = canary:main\n",
        b"[]\nx = canary\n",
    ],
)
def test_entry_points(refused, text):
    found = refused({"canary-1.0.dist-info/entry_points.txt": text})
    assert {where for _, where, _ in found} == {"canary-1.0.dist-info/entry_points.txt"}


@pytest.mark.parametrize(
    ("member", "found"),
    [
        ("canary-1.0.data/wrong/x", "is not a scheme"),
        ("canary-1.0.data/x", "is not a scheme"),
        ("canary-1.0.data/scripts/deep/run", "uv takes files alone"),
        ("other-1.0.data/purelib/x", "data folder of another wheel"),
        ("canary-1.0.data/platlib/canary/__init__.py", "the same path as canary/__init__.py"),
        ("canary-1.0.data/purelib/Canary/__init__.py", "differs only by case"),
        ("canary-1.0.data/data/lib/python3.11/site-packages/canary/__init__.py", "the same path"),
        ("canary-1.0.data/data/Lib/site-packages/canary/__init__.py", "the same path"),
        ("canary-1.0.data/purelib/canary", "which is a file"),
        ("canary-1.0.data/data/lib/python3.11/os.py", "Python's own library"),
        ("canary-1.0.data/data/Lib/os.py", "Python's own library"),
        ("canary-1.0.data/data/bin/python3", "belongs to the environment"),
        ("canary-1.0.data/scripts/python", "belongs to the environment"),
        ("canary-1.0.data/data/pyvenv.cfg", "belongs to the environment"),
        ("sitecustomize.py", "at its start"),
        ("json/__init__.py", "has the name of json"),
        ("os.py", "has the name of os"),
    ],
)
def test_what_is_overwritten(refused, member, found):
    [(check, _, what)] = refused({member: b"x"})
    assert check == "install"
    assert found in what


def test_two_schemes_and_a_command_meet(refused):
    commands = b"[console_scripts]\nrun = canary:main\n"
    files = {
        "canary-1.0.dist-info/entry_points.txt": commands,
        "canary-1.0.data/scripts/run": b"",
        "canary-1.0.data/data/bin/run": b"",
    }
    assert [what.partition(" as ")[2] for _, _, what in refused(files)] == [
        "entry point run: one overwrites the other",
        "entry point run: one overwrites the other",
    ]


@pytest.mark.parametrize(
    "name",
    ["canary/" + "a" * 300 + ".py", "canary/é" * 1 + "é" * 130 + ".py", "canary/a\u202eyp.py", "canary/a\u200b.py"],
)
def test_names_that_no_disk_or_reader_takes(refused, name):
    [(check, _, what)] = refused({name: b""})
    assert check == "archive"
    assert "255 bytes" in what or "invisible" in what


@pytest.mark.parametrize(
    ("tag", "member", "ok"),
    [
        ("cp311-cp311", "_C.cpython-311-x86_64-linux-gnu.so", True),
        ("cp311-cp311", "_C.cpython-39-x86_64-linux-gnu.so", False),
        ("cp311-cp311", "_C.cpython-311-aarch64-linux-gnu.so", False),
        ("cp311-cp311", "_C.abi3.so", True),
        ("cp37-abi3", "_C.abi3.so", True),
        ("cp37-abi3", "_C.cpython-311-x86_64-linux-gnu.so", False),
        ("cp313-cp313t", "_C.cpython-313t-x86_64-linux-gnu.so", True),
        ("cp313-cp313t", "_C.cpython-313-x86_64-linux-gnu.so", False),
        ("pp310-pypy310_pp73", "_C.pypy310-pp73-x86_64-linux-gnu.so", True),
        ("cp311-cp311", "_C.pypy310-pp73-x86_64-linux-gnu.so", False),
        ("py3-none", "_C.cpython-39-x86_64-linux-gnu.so", True),
        ("cp311-cp311", "libplain.so", True),
    ],
)
def test_suffixes_against_tags(refused, make_elf, tag, member, ok):
    found = refused({f"canary/{member}": make_elf(needed=["libc.so.6"])}, tag=f"{tag}-manylinux_2_17_x86_64")
    assert [check for check, _, _ in found] == ([] if ok else ["abi"])


@pytest.mark.parametrize(
    ("tag", "member", "needed", "ok"),
    [
        ("cp311-cp311", "_C.cp311-win_amd64.pyd", "python311.dll", True),
        ("cp311-cp311", "_C.pyd", "python39.dll", False),
        ("cp311-cp311", "_C.cp311-win_amd64.pyd", "PYTHON39.dll", False),
        ("cp311-cp311", "_C.cp39-win_amd64.pyd", "python311.dll", False),
        ("cp37-abi3", "_C.pyd", "python3.dll", True),
        ("cp37-abi3", "_C.pyd", "python311.dll", False),
        ("cp315-abi3t", "_C.abi3t-win_amd64.pyd", "python3t.dll", True),
        ("cp315-abi3t", "_C.pyd", "python315t.dll", False),
        ("cp311-cp311", "_C.cp311-win32.pyd", "python311.dll", False),
        ("cp313-cp313t", "_C.cp313t-win_amd64.pyd", "python313t.dll", True),
        ("cp313-cp313t", "_C.cp313t-win_amd64.pyd", "python313.dll", False),
        ("pp310-pypy310_pp73", "_C.pypy310-pp73-win_amd64.pyd", "libpypy3.10-c.dll", True),
        ("pp311-pypy311_pp73", "_C.pypy311-pp73-win_amd64.pyd", "libpypy3.10-c.dll", False),
        ("cp310-cp310", "_C.cp310-win_amd64.pyd", "libpypy3.10-c.dll", False),
    ],
)
def test_the_python_that_a_dll_loads(refused, make_pe, tag, member, needed, ok):
    found = refused({f"canary/{member}": make_pe(needed=[needed, "KERNEL32.dll"])}, tag=f"{tag}-win_amd64")
    assert [check for check, _, _ in found] == ([] if ok else ["abi"])


@pytest.mark.parametrize(
    ("member", "machine", "ok"),
    [
        ("attach_x86.dll", 0x14C, True),  # as debugpy has it, for processes of 32 bits
        ("tool-win32.dll", 0x14C, True),
        ("helper.arm64.dll", 0xAA64, True),
        ("libportaudio32bit-asio.dll", 0x14C, True),  # sounddevice's
        ("libportaudioarm64.dll", 0xAA64, True),
        ("runtimes/win-x86/native/core.dll", 0x14C, True),
        ("runtimes/win-x86/native/_core.pyd", 0x14C, False),
        ("libportaudio132bit.dll", 0x14C, False),
        ("attach_x86.dll", 0xAA64, False),  # the name says another machine than the file is for
        ("attach_x86_64.dll", 0x14C, False),
        ("prefix86.dll", 0x14C, False),
        ("core.dll", 0x14C, False),
        ("_x86.pyd", 0x14C, False),  # the interpreter itself would load it
        ("_x86.abi3.pyd", 0x14C, False),
    ],
)
def test_a_library_for_processes_of_another_machine_says_so_in_its_name(refused, make_pe, member, machine, ok):
    found = refused(
        {f"canary/{member}": make_pe(machine=machine, needed=["KERNEL32.dll"])}, tag="cp311-cp311-win_amd64"
    )
    assert [check for check, _, _ in found] == ([] if ok else ["imports"])


@pytest.mark.parametrize(
    ("members", "lost"),
    [
        ({"amd64/core.dll": 0x8664, "x86/core.dll": 0x14C}, 0),  # clr_loader's
        ({"win-x64/core.dll": 0x8664, "win-arm64/core.dll": 0xAA64, "core.dll": 0x8664}, 1),
        ({"amd64/core.dll": 0x8664}, 1),
        ({"amd64/core.dll": 0x8664, "amd64/more.dll": 0x8664}, 2),
    ],
)
def test_a_wheel_for_every_machine_may_hold_libraries_for_several(
    refused, make_pe, make_wheel, tmp_path, members, lost
):
    files = {f"canary/{name}": make_pe(machine=machine, needed=["KERNEL32.dll"]) for name, machine in members.items()}
    wheel_file = WHEEL.replace(TAG, "py3-none-any").replace("false", "true").encode()
    found = refused(files, tag="py3-none-any", wheel_file=wheel_file)
    assert [check for check, _, _ in found] == ["platform"] * lost
    path = make_wheel(tmp_path, {"canary/__init__.py": b"", **files}, tag="py3-none-any", wheel_file=wheel_file)
    (tmp_path / "repaired").mkdir()
    with nullcontext() if not lost else pytest.raises(VerificationFailedError, match="holds libraries"):
        assert repair(path, tmp_path / "repaired", RepairOptions(into="canary")).wheel.name == path.name


def test_what_needs_a_library_of_another_machine_does_not_get_it(refused, make_pe):
    files = {
        "canary/_C.pyd": make_pe(needed=["attach_x86.dll", "KERNEL32.dll"]),
        "canary/attach_x86.dll": make_pe(machine=0x14C, needed=["KERNEL32.dll"]),
    }
    (found,) = refused(files, tag="cp311-cp311-win_amd64")
    assert found[:2] == ("imports", "canary/_C.pyd")


@pytest.mark.parametrize(
    ("tag", "ok"),
    [
        ("linux_armv6l", True),
        ("linux_armv7l", True),
        ("linux_aarch64", False),
        ("manylinux_2_17_armv7l.linux_armv6l", True),
        ("manylinux_2_17_armv6l", False),
    ],
)
def test_machines_whose_wheels_are_installed_without_a_level(refused, tag, ok):
    """https://github.com/pypi/warehouse/blob/main/warehouse/forklift/legacy.py: the two `linux_` tags that it takes."""
    found = refused({"canary/__init__.py": b""}, tag=f"py3-none-{tag}")
    assert [check for check, _, _ in found] == ([] if ok else ["platform"])


def test_the_python_that_a_library_needs(refused, make_elf):
    files = {"canary/_C.so": make_elf(needed=["libpython3.9.so.1.0"])}
    assert (
        "abi",
        "canary/_C.so",
        "loads libpython3.9.so.1.0, another Python's library than that of cp311-cp311",
    ) in refused(files)
