"""Names of Python's C API that a wheel takes, against the Pythons of its tags."""

import pytest

from farm.policy.rules import Policy
from farm.wheel.python_api import Target, targets
from farm.wheel.verify import verify

PLATFORM = "manylinux_2_17_x86_64"
SUFFIX_311 = ".cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def link_findings(tmp_path, make_wheel, make_elf):
    """The findings of `link` for a module that takes names, in a wheel with a tag."""

    def run(tag, suffix, *names, needed=("libc.so.6",)):
        module = make_elf(needed=needed, takes=names, symbols={"PyInit__C": 0})
        wheel = make_wheel(tmp_path, {f"canary/_C{suffix}": module}, tag=f"{tag}-{PLATFORM}")
        return [found.what for found in verify(wheel, Policy()).check("link").findings]

    return run


@pytest.mark.parametrize(
    ("tag", "suffix", "name", "finding"),
    [
        ("cp310-abi3", ".abi3.so", "PyModule_AddObjectRef", None),
        ("cp38-abi3", ".abi3.so", "PyModule_AddObjectRef", "in the stable ABI since 3.10"),
        ("cp38-abi3", ".abi3.so", "_PyUnicode_Ready", "not in the stable ABI"),
        ("cp38-abi3", ".abi3.so", "PyErr_SetFromWindowsErr", "not in the stable ABI"),
        ("cp38-abi3", ".abi3.so", "_Py_Dealloc", None),
        ("cp311-cp311", SUFFIX_311, "PyList_Extend", "Python 3.11 does not have"),
        ("cp311-cp311", ".abi3.so", "_PyUnicode_Ready", None),
        ("cp313-cp313", ".so", "_PyUnicode_Ready", "Python 3.13 does not have"),
        ("cp310-cp310", ".so", "PyModule_AddObjectRef", None),  # 3.10 was not looked at
        ("cp38-cp38", ".so", "PyModule_Create2", None),
        ("cp313-cp313t", ".so", "_Py_DecRefShared", None),
        ("py3-none", SUFFIX_311, "PyList_Extend", "Python 3.11 does not have"),
        ("cp311-cp311", SUFFIX_311, "PyFoo_Bar", "undefined symbol: PyFoo_Bar"),
        ("cp311-cp311", SUFFIX_311, "_PyFoo_Bar", "undefined symbol: _PyFoo_Bar"),
        ("cp312-cp312", ".so", "_PyObject_ClearManagedDict", None),  # of 3.12 alone
        ("cp316-cp316", ".so", "PyFoo_Bar", None),  # newer than the data
    ],
)
def test_names_of_the_api(link_findings, tag, suffix, name, finding):
    findings = link_findings(tag, suffix, name)
    assert len(findings) == (finding is not None)
    assert all(finding in text for text in findings)


def test_a_module_without_needs_gets_its_names_from_the_interpreter_alone(link_findings):
    assert link_findings("cp311-cp311", SUFFIX_311, "PyList_New", "memcpy", needed=()) == []
    [finding] = link_findings("cp311-cp311", SUFFIX_311, "cudaMalloc", needed=())
    assert finding == "undefined symbol: cudaMalloc"


def test_invented_names_of_the_cxx_library_are_missing(link_findings):
    """As `std::string::invented()` would be called; the second is `std::terminate()`."""
    needed = ["libstdc++.so.6", "libc.so.6"]
    [finding] = link_findings(
        "cp311-cp311", SUFFIX_311, "_ZNSs8inventedEv", "_ZSt9terminatev", needed=needed
    )
    assert finding == "undefined symbol: _ZNSs8inventedEv"


def test_names_that_a_dll_takes_from_the_stable_abi(tmp_path, make_wheel, make_pe):
    for name, expected in [
        ("PyModule_AddObjectRef", 1),
        ("_PyUnicode_Ready", 1),
        ("PyList_New", 0),
    ]:
        module = make_pe(needed=["python3.dll"], takes={"python3.dll": name}, exports=["PyInit__C"])
        wheel = make_wheel(tmp_path, {"canary/_C.pyd": module}, tag="cp38-abi3-win_amd64")
        assert len(verify(wheel, Policy()).check("link").findings) == expected


def test_a_modules_suffix_comes_before_the_tags():
    assert targets("a/_C.cpython-39-x86_64-linux-gnu.so", ["cp311-cp311-any"]) == [Target(9, False)]
    assert targets("a/libx.so", ["cp38-abi3-any", "cp311-cp311-any", "py3-none-any"]) == [
        Target(8, True),
        Target(11, False),
    ]
