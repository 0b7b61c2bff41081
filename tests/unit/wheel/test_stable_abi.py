"""Which Python tags keep the promise of a variant's Python, and what a module for the stable ABI may take of Python.

CPython's documentation ("Stable Application Binary Interface", the list of its contents) has the versions:
PyObject_GetBuffer since 3.11, PyErr_GetRaisedException since 3.12, PyErr_Occurred from the beginning, _PyUnicode_Ready
never.
"""

import pytest

from farm.wheel.metadata import parse_wheel_name
from farm.wheel.policy import Policy
from farm.wheel.verify import _check_python, verify

TAKES = ["PyErr_GetRaisedException", "PyErr_Occurred", "PyObject_GetBuffer"]
NEWER = (
    "takes PyErr_GetRaisedException (3.12), PyObject_GetBuffer (3.11), which the stable ABI has since these versions;"
)
OUTSIDE = "takes _PyUnicode_Ready, which is not in the stable ABI"


@pytest.mark.parametrize(
    ("tags", "python"),
    [
        ("cp311-cp311", "cp311"),
        ("cp311-abi3", "cp311"),
        ("cp37-abi3", "cp311"),  # PEP 384: the stable ABI of 3.7 is that of every later 3.x
        ("cp39-abi3", "cp310"),  # 39 is below 310 as text only
        ("cp37.cp311-abi3", "cp311"),
        ("py3-none", "cp311"),  # libraries that are no modules, which ctypes loads
        ("py38-none", "cp313t"),
        ("py2.py3-none", "cp311"),
        ("cp311-none", "cp311"),
    ],
)
def test_a_tag_that_serves(tags, python):
    assert _check_python(parse_wheel_name(f"canary-1.0-{tags}-linux_x86_64.whl"), python, for_some=False) == []


@pytest.mark.parametrize(
    ("tags", "python", "wrong"),
    [
        ("cp312-abi3", "cp311", "cp312-abi3"),  # newer than promised
        ("cp310-abi3", "cp39", "cp310-abi3"),
        ("cp37-cp37m", "cp311", "cp37-cp37m"),
        ("cp310-cp310", "cp311", "cp310-cp310"),
        ("py3-abi3", "cp311", "py3-abi3"),
        ("cp3-abi3", "cp311", "cp3-abi3"),  # pip begins at cp32
        ("py312-none", "cp311", "py312-none"),
        ("py2-none", "cp311", "py2-none"),
        ("cp38-abi3", "cp313t", "cp38-abi3"),  # PEP 803: it has none
        ("cp27-abi3", "cp311", "cp27-abi3"),
    ],
)
def test_a_tag_that_does_not(tags, python, wrong):
    found = _check_python(parse_wheel_name(f"canary-1.0-{tags}-linux_x86_64.whl"), python, for_some=False)
    assert found == [f"it is for {wrong}; promised is {python}"]


@pytest.fixture
def found(tmp_path, make_wheel):
    def run(files, tag):
        report = verify(make_wheel(tmp_path, files, tag=tag), Policy())
        return [(f.where, f.what) for f in report.findings if f.check == "abi"]

    return run


@pytest.mark.parametrize(
    ("python", "takes", "given", "wrong"),
    [
        ("cp38-abi3", TAKES, [], [f"{NEWER} cp38-abi3"]),
        ("cp39.cp38-abi3", TAKES, [], [f"{NEWER} cp38-abi3"]),
        ("cp312-abi3", TAKES, [], []),
        ("cp311-abi3", ["PyObject_GetBuffer", "PyExc_ValueError", "_Py_Dealloc", "Pytorch", "other"], [], []),
        ("cp38-abi3", ["PyObject_GetBuffer"], ["PyObject_GetBuffer"], []),  # a library of the wheel has its own
        ("cp38-abi3", ["_PyUnicode_Ready"], [], [OUTSIDE]),
        ("cp38-abi3", ["_PyUnicode_Ready"], ["_PyUnicode_Ready"], []),
        ("cp399-abi3", ["PyNewer_Thing"], [], []),  # of a Python that nothing is known of
        ("cp38-cp38", ["PyObject_GetBuffer", "_PyUnicode_Ready"], [], []),  # for one Python, which has what it had
        ("py3-none", ["PyObject_GetBuffer"], [], []),
    ],
)
def test_what_a_library_takes_of_python(found, make_elf, python, takes, given, wrong):
    files = {
        "canary/_C.abi3.so": make_elf(needed=["libc.so.6", "libd.so"], runpath="$ORIGIN", takes=takes),
        "canary/libd.so": make_elf(soname="libd.so", needed=["libc.so.6"], symbols=dict.fromkeys(given, 0)),
    }
    ours = found(files, f"{python}-manylinux_2_17_x86_64")
    assert [where for where, _ in ours] == ["canary/_C.abi3.so"] * len(wrong)
    assert all(what.startswith(each) for (_, what), each in zip(ours, wrong, strict=True))


def test_pythons_that_pip_does_not_install_it_for(tmp_path, make_wheel, make_elf):
    files = {"canary/_C.abi3.so": make_elf(needed=["libc.so.6"], takes=["PyObject_GetBuffer"])}
    for requires, refused in ((">=3.11", 0), (">=3.9", 1), ("about 3", 1), (">3.10.9", 1)):
        metadata = f"Metadata-Version: 2.1\nName: canary\nVersion: 1.0\nRequires-Python: {requires}\n".encode()
        wheel = make_wheel(tmp_path, files, tag="cp38-abi3-manylinux_2_17_x86_64", metadata=metadata)
        assert sum(finding.check == "abi" for finding in verify(wheel, Policy()).findings) == refused


def test_a_module_that_is_named_after_one_python_is_refused_for_that_alone(found, make_elf):
    """sgl-kernel's `_mscclpp`."""
    module = make_elf(needed=["libc.so.6"], takes=TAKES)
    name = "canary/_C.cpython-310-x86_64-linux-gnu.so"
    [(where, what)] = found({name: module}, "cp38-abi3-manylinux_2_17_x86_64")
    assert (where, what.partition(" ")[0]) == (name, "its")


def test_names_that_a_library_outside_the_wheel_may_give(found, make_elf):
    """PyRun_String is libshiboken6's for PySide6: its wheel alone does not show that."""
    module = make_elf(needed=["libc.so.6", "libshiboken6.abi3.so.6.12"], takes=["PyRun_String", "PyErr_Occurred"])
    assert found({"canary/_C.abi3.so": module}, "cp310-abi3-manylinux_2_17_x86_64") == []


def test_what_a_dll_takes_of_python(found, make_pe):
    module = make_pe(needed=["python3.dll"], takes={"python3.dll": "PyObject_GetBuffer"}, exports=["PyInit__C"])
    [(where, what)] = found({"canary/_C.pyd": module}, "cp38-abi3-win_amd64")
    assert (where, what.partition(",")[0]) == ("canary/_C.pyd", "takes PyObject_GetBuffer (3.11)")
    assert found({"canary/_C.pyd": module}, "cp311-abi3-win_amd64") == []
