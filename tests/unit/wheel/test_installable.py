"""What installers refuse, or what they would overwrite."""

import pytest

from farm.base.errors import UsageError
from farm.policy.rules import Policy
from farm.wheel.inspect import inspect
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.verify import verify

TAG = "cp311-cp311-manylinux_2_17_x86_64"
WHEEL = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}\n"
METADATA = "Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n%s\nText\n"


@pytest.fixture
def refused(tmp_path, make_wheel):
    """The findings of a wheel with these files."""

    def run(files=None, policy=None, **kwargs):
        path = make_wheel(
            tmp_path, {"canary/__init__.py": b"", **(files or {})}, **{"tag": TAG, **kwargs}
        )
        report = verify(path, Policy(**(policy or {})))
        return [(f.check, f.where, f.what) for f in report.findings]

    return run


def test_a_good_wheel_of_all_schemes(refused):
    files = {
        f"canary-1.0.data/{where}": b"x"
        for where in ("scripts/run", "headers/c.h", "data/share/x", "data/bin/y")
    }
    files |= {"canary-1.0.data/platlib/canary/extra.py": b"", "canary.pth": b""}
    commands = (
        b"[console_scripts]\ncanary = canary.cli:main [extra]\n[canary.plugins]\nx.y = canary\n"
    )
    assert refused({**files, "canary-1.0.dist-info/entry_points.txt": commands}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WHEEL.replace("1.0", "2.0"), "Wheel-Version is 2.0"),
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
        ("Requires-Python: <3.9\n", "excludes cp311"),
        ("Requires-Python: >=3.12\n", "excludes cp311"),
        ("Requires-Python: !=3.11.*\n", "excludes cp311"),
        ("Requires-Python: about 3\n", "invalid"),
        ("Requires-Python: >=3.8\nRequires-Python: >=3.9\n", "is there twice"),
        ("Requires-Dist: numpy >>1\n", "invalid"),
        ("Requires-Dist: numpy; python_verson<'3'\n", "invalid"),
        ("Requires-Dist: numpy @ https://example.org/numpy.whl\n", "a direct URL"),
        ("Provides-Extra: a b\n", "invalid"),
    ],
)
def test_metadata(refused, lines, found):
    [(check, where, what)] = refused(
        metadata=(METADATA % lines).encode(), policy={"python": "cp311"}
    )
    assert (check, where) == ("install", "canary-1.0.dist-info/METADATA")
    assert found in what


@pytest.mark.parametrize("version", ["99.9", "2", ""])
def test_metadata_version(refused, version):
    [(check, where, what)] = refused(metadata=(METADATA % "").replace("2.1", version).encode())
    assert (check, where) == ("install", "canary-1.0.dist-info/METADATA")
    assert "Metadata-Version" in what


def test_both_names_of_a_level_are_one_tag(refused):
    """xgboost 2.1.4 says manylinux2014 in its name and manylinux_2_17 in WHEEL."""
    assert refused(tag=TAG.replace("_2_17", "2014"), wheel_file=WHEEL.encode()) == []
    [(check, _, what)] = refused(tag=TAG.replace("_2_17", "_2_28"), wheel_file=WHEEL.encode())
    assert (check, "differ" in what) == ("names", True)


def test_a_direct_url_that_the_policy_allows(refused):
    metadata = METADATA % "Requires-Dist: numpy @ https://example.org/numpy.whl\n"
    assert refused(metadata=metadata.encode(), policy={"direct_urls": True}) == []


@pytest.mark.parametrize(
    "name",
    [
        "canary/" + "a" * 300 + ".py",
        "canary/é" * 1 + "é" * 130 + ".py",
        "canary/a\u202eyp.py",
        "canary/a\u200b.py",
    ],
)
def test_names_that_no_disk_or_reader_takes(refused, name):
    [(check, _, what)] = refused({name: b""})
    assert check == "archive"
    assert "255 bytes" in what or "invisible" in what


@pytest.mark.parametrize(
    ("tag", "members", "found"),
    [
        ("cp311-cp311", "_C.cpython-311-x86_64-linux-gnu.so", ""),
        ("cp311-cp311", "_C.cpython-39-x86_64-linux-gnu.so", "its suffix .cpython-39"),
        ("cp311-cp311", "_C.cpython-311-aarch64-linux-gnu.so", "its suffix .cpython-311-aarch64"),
        (
            "cp311-cp311",
            "_C.cpython-311-x86_64-linux-musl.so",
            "its suffix .cpython-311-x86_64-linux-musl.so is not",
        ),
        ("cp311-cp311", "_C.cpython-311.so", "its suffix .cpython-311.so"),
        ("cp311-cp311", "_C.cp311-win_amd64.pyd", "its suffix .cp311-win_amd64.pyd"),
        ("cp311-cp311", "_C.pyd", "its suffix .pyd"),
        ("cp311-cp311", "_C.abi3.so", ""),
        ("cp36-cp36m", "_C.cpython-36m-x86_64-linux-gnu.so", ""),
        ("cp37-abi3", "_C.abi3.so", ""),
        ("cp37-abi3", "_C.cpython-311-x86_64-linux-gnu.so", "its suffix .cpython-311"),
        ("cp38.cp39-cp38.cp39", "_C.abi3.so", ""),
        ("cp313-cp313t", "_C.cpython-313t-x86_64-linux-gnu.so", ""),
        ("cp313-cp313t", "_C.cpython-313-x86_64-linux-gnu.so", "its suffix .cpython-313-"),
        ("cp313-cp313t", "_C.abi3.so", "its suffix .abi3.so"),
        (
            "cp311-cp311m",
            "_C.cpython-311-x86_64-linux-gnu.so",
            "no Python has the tag cp311-cp311m",
        ),
        ("cp311-cp311t", "_C.so", "no Python has the tag cp311-cp311t"),
        ("cp311-cp310", "_C.so", "no Python has the tag cp311-cp310"),
        ("py3-abi3", "_C.abi3.so", "no Python has the tag py3-abi3"),
        (
            "cp311-none",
            "_C.cpython-311-x86_64-linux-gnu.so",
            "a module takes Python's API (canary/_C.cpython-311",
        ),
        ("py3-none", "_C.cpython-39-x86_64-linux-gnu.so", "a module takes Python's API"),
        ("py3-none", "_C.abi3.so sub/_C.abi3.so", "2 modules take Python's API"),
        ("py3-none", "_C.cpython-39-x86_64-linux-gnu.so _C.cpython-311-x86_64-linux-gnu.so", ""),
        (
            "cp311-cp311",
            "_D.cpython-311-x86_64-linux-gnu.so",
            "has no PyInit__D, which Python calls to import it (it has",
        ),
        ("cp311-cp311", "_D.so", "has no PyInit__D"),
        ("cp311-cp311", "libplain.so", ""),
    ],
)
def test_modules_against_tags(refused, make_elf, tag, members, found):
    module = make_elf(needed=["libc.so.6"], symbols={"PyInit__C": 0})
    names = {f"canary/{member}": module for member in members.split()}
    texts = [
        what
        for check, _, what in refused(names, tag=f"{tag}-manylinux_2_17_x86_64")
        if check == "abi"
    ]
    assert len(texts) == bool(found)
    assert all(found in text for text in texts)


def test_a_library_with_a_modules_name_that_takes_nothing_of_python_is_no_module(refused, make_elf):
    """setuptools names libraries for ctypes so."""
    name = "canary/_C.cpython-311-x86_64-linux-gnu.so"
    assert refused({name: make_elf(needed=["libc.so.6"])}) == []
    [(check, _, what)] = refused({name: make_elf(needed=["libc.so.6"], takes=["PyList_New"])})
    assert (check, what) == ("abi", "has no PyInit__C, which Python calls to import it")


@pytest.mark.parametrize(
    ("tag", "member", "needed", "ok"),
    [
        ("cp311-cp311", "_C.cp311-win_amd64.pyd", "python311.dll", True),
        ("cp311-cp311", "_C.pyd", "python39.dll", False),
        ("cp311-cp311", "_C.cp311-win_amd64.pyd", "PYTHON39.dll", False),
        ("cp311-cp311", "_C.cp39-win_amd64.pyd", "python311.dll", False),
        ("cp311-cp311", "_C.cp311-win_arm64.pyd", "python311.dll", False),
        ("cp311-cp311", "_C.so", "python311.dll", False),
        ("cp37-abi3", "_C.pyd", "python3.dll", True),
        ("cp37-abi3", "_C.abi3.pyd", "python3.dll", False),
        ("cp37-abi3", "_C.pyd", "python311.dll", False),
        ("cp315-abi3t", "_C.abi3t-win_amd64.pyd", "python3t.dll", True),
        ("cp315-abi3t", "_C.pyd", "python315t.dll", False),
        ("cp311-cp311", "_C.cp311-win32.pyd", "python311.dll", False),
        ("cp313-cp313t", "_C.cp313t-win_amd64.pyd", "python313t.dll", True),
        ("cp313-cp313t", "_C.cp313t-win_amd64.pyd", "python313.dll", False),
        ("cp313-cp313t", "_C.cp313t-win_amd64.pyd", "python3.dll", False),
        ("cp311-cp311", "_D.cp311-win_amd64.pyd", "python311.dll", False),
    ],
)
def test_modules_of_windows(refused, make_pe, tag, member, needed, ok):
    module = make_pe(needed=[needed, "KERNEL32.dll"], exports=["PyInit__C"])
    found = refused({f"canary/{member}": module}, tag=f"{tag}-win_amd64")
    assert [check for check, _, _ in found] == ([] if ok else ["abi"])


def test_the_python_that_a_library_needs(refused, make_elf):
    files = {"canary/_C.so": make_elf(needed=["libpython3.9.so.1.0"])}
    assert (
        "abi",
        "canary/_C.so",
        "loads libpython3.9.so.1.0, another Python's library than that of cp311-cp311",
    ) in refused(files)


@pytest.mark.parametrize(
    ("tag", "system"),
    [
        ("pp310-pypy310_pp73-manylinux_2_17_x86_64", "PyPy"),
        ("graalpy311-graalpy240_311_native-manylinux_2_17_x86_64", "GraalPy"),
        ("cp313-cp313-android_21_arm64_v8a", "Android"),
        ("cp313-cp313-ios_13_0_arm64_iphoneos", "iOS"),
        ("cp311-cp311-win32", "32-bit machines"),
    ],
)
def test_systems_that_are_not_supported_are_refused_in_a_line(make_wheel, tmp_path, tag, system):
    path = make_wheel(tmp_path, {"canary/__init__.py": b""}, tag=tag)
    for command in (
        lambda: verify(path, Policy()),
        lambda: inspect(path),
        lambda: repair(path, tmp_path, RepairOptions(into="canary")),
    ):
        with pytest.raises(UsageError, match=f"wheels for {system} are not supported"):
            command()
