"""`farm verify --emulate`: what runs on loading, by the CPU itself where the static check cannot
follow.
"""

import json
import os
import subprocess
import sysconfig
from types import SimpleNamespace

import pytest

from farm.base.errors import VerificationFailedError
from farm.cli.main import main
from farm.policy.rules import Policy
from farm.run.verify_step import check_wheel, summary
from farm.smoke.emulation import emulate
from farm.wheel.verify import verify
from tests.unit.wheel.conftest import build_wheel

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code for x86-64")
# AVX2, behind a pointer that is made at run time: no static look finds where it leads.
CODE = """
typedef void (*function)(void);
static void kernel(void) { __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0"); }
static volatile long key = 0x5a5a;
__attribute__((constructor)) static void start(void) { ((function)((long)kernel ^ key ^ 0x5a5a))(); }
"""


@pytest.mark.parametrize(
    # A library without any instruction beyond the level needs no look at what runs.
    ("level", "code", "undecided"),
    [("avx", 6, 1), ("avx2", 0, 0)],
)
def test_a_library_is_loaded_on_a_cpu_of_the_level(
    tmp_path, emulator, capsys, level, code, undecided
):
    (tmp_path / "c.c").write_text(CODE)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", "c.so", "c.c"], cwd=tmp_path, check=True
    )
    files = {"canary/__init__.py": b"", "canary/libplain.so": (tmp_path / "c.so").read_bytes()}
    wheel = build_wheel(tmp_path / "in", files, tag="py3-none-manylinux_2_17_x86_64")
    (tmp_path / "policy.yaml").write_text(f'cpu: {level}\ndispatching: ["*"]\n')
    command = ["verify", str(wheel), "--policy", str(tmp_path / "policy.yaml"), "--json"]
    assert main(command) == 0
    [before] = [
        check for check in json.loads(capsys.readouterr().out)["checks"] if check["id"] == "cpu"
    ]
    assert before["undecided"] == ["canary/libplain.so"] * undecided
    assert main([*command, "--emulate"]) == code
    [after] = [
        check for check in json.loads(capsys.readouterr().out)["checks"] if check["id"] == "cpu"
    ]
    assert [finding["where"] for finding in after["findings"]] == (
        ["canary/libplain.so"] if code else []
    )
    assert after["emulated"].startswith(f"emulated: {0 if code else 1} of 1 libraries loaded on ")


START = "__attribute__((constructor)) static void start(void)"
KERNEL = """void kernel(void) { __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0"); } void fine(void) {}"""
LIBRARIES = {
    "direct": {"a": f"void kernel(void); {START} {{ kernel(); }}", "b": KERNEL},
    "fine": {"a": f"void fine(void); {START} {{ fine(); }}", "b": KERNEL},
    "two steps": {
        "a": f"void middle(void); {START} {{ middle(); }}",
        "b": "void kernel(void); void middle(void) { kernel(); }",
        "d": KERNEL,
    },
    "pointer": {
        "a": f"void kernel(void); static void (*volatile p)(void) = kernel; {START} {{ p(); }}",
        "b": KERNEL,
    },
    "by name": {
        "a": f"#include <dlfcn.h>\n#include <stddef.h>\n{START} {{"
        ' void (*f)(void) = (void (*)(void))dlsym(dlopen("libb.so", RTLD_NOW), "kernel"); f(); }',
        "b": KERNEL,
    },
    "handed on": {
        "a": f"void run(void (*)(void)); {KERNEL} {START} {{ run(kernel); }}",
        "b": "void run(void (*f)(void)) { f(); }",
    },
    "table": {
        "a": f"extern void (*table[])(void); {START} {{ table[0](); }}",
        "b": KERNEL + " void (*table[])(void) = {kernel};",
    },
    "once": {
        "a": f"#include <pthread.h>\nstatic pthread_once_t o; {KERNEL} {START} {{ "
        "pthread_once(&o, kernel); }"
    },
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_calls_between_libraries_are_decided_by_the_main_job(tmp_path, emulator, monkeypatch, case):
    """The main job's verify loads on the emulated CPU what the files leave open, and says so where
    it cannot.
    """
    files = {"canary/__init__.py": b""}
    for name in sorted(LIBRARIES[case], reverse=True):
        (tmp_path / f"{name}.c").write_text(LIBRARIES[case][name])
        others = [f"lib{other}.so" for other in LIBRARIES[case] if other > name]
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wl,-rpath,$ORIGIN",
            "-o",
            f"lib{name}.so",
            f"{name}.c",
            *others,
        ]
        subprocess.run(command, cwd=tmp_path, check=True)
        files[f"canary/lib{name}.so"] = (tmp_path / f"lib{name}.so").read_bytes()
    wheel = build_wheel(tmp_path / "in", files, tag="py3-none-manylinux_2_36_x86_64")
    plan = SimpleNamespace(verify=Policy(cpu="avx", dispatching=("*",)))
    before = verify(wheel, plan.verify).check("cpu")
    assert (before.status, "canary/liba.so" in before.undecided) == ("passed", True)
    if case == "fine":
        check = check_wheel(wheel, plan, tmp_path / "report.json").check("cpu")
        assert (check.status, check.undecided) == ("passed", ())
        assert check.emulated == "emulated: 1 of 1 libraries loaded on SandyBridge"
        return
    with pytest.raises(
        VerificationFailedError,
        match=r"liba\.so: loading it on SandyBridge ends the process by SIGILL",
    ):
        check_wheel(wheel, plan, tmp_path / "report.json")
    monkeypatch.setenv("PATH", "")
    report = check_wheel(wheel, plan, tmp_path / "report.json")
    assert "not emulated: qemu-x86_64 is not on the PATH" in summary(report)
    assert "not decided: " in summary(report)


KERNEL_OF_ONE = KERNEL.replace(" void fine(void) {}", "")
PYTHON_HEADERS = [f"-I{sysconfig.get_path('include')}"]
MODULE = """
#define Py_LIMITED_API 0x03090000
#include <Python.h>
static PyObject *leave(PyObject *self, PyObject *ignored) {
    __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0");
    Py_RETURN_NONE;
}
static PyMethodDef leaving = {"leave", leave, METH_NOARGS, 0};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "fast", 0, -1, 0};
PyMODINIT_FUNC PyInit_fast(void) {
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject_CallMethod(atexit, "register", "N", PyCFunction_New(&leaving, 0));
    return PyModule_Create(&definition);
}
"""
AT_EXIT = {
    "atexit": f"#include <stdlib.h>\n{KERNEL_OF_ONE} {START} {{ atexit(kernel); }}",
    "destructor of C++": "struct S { ~S() { "
    '__asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0"); } }; S s;',
}


def test_what_pythons_atexit_runs_is_decided_by_the_exit(tmp_path, emulator):
    (tmp_path / "module.c").write_text(MODULE)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", "module.so", "module.c", *PYTHON_HEADERS]
    subprocess.run(command, cwd=tmp_path, check=True)
    files = {
        "canary/__init__.py": b"",
        "canary/fast.abi3.so": (tmp_path / "module.so").read_bytes(),
    }
    wheel = build_wheel(tmp_path / "in", files, tag="cp39-abi3-manylinux_2_36_x86_64")
    report = verify(wheel, Policy(cpu="avx", dispatching=("*",)))
    assert report.check("cpu").undecided == ("canary/fast.abi3.so",)
    [finding] = emulate(report, wheel).findings
    assert finding.what == (
        "a process that has loaded it on SandyBridge ends by SIGILL when it exits"
    )


@pytest.mark.parametrize("case", AT_EXIT)
def test_code_that_runs_at_exit_is_decided_by_the_exit(tmp_path, emulator, case):
    (tmp_path / "c.cpp").write_text(f'extern "C" {{ {AT_EXIT[case]} }}'.replace("#inc", "\n#inc"))
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", "c.so", "c.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "fine.c").write_text("void fine(void) {}")
    command = ["gcc", "-shared", "-fPIC", "-o", "fine.so", "fine.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    files = {"canary/__init__.py": b"", "canary/libc1.so": (tmp_path / "c.so").read_bytes()}
    for name in ("liba.so", "libd.so"):
        files[f"canary/{name}"] = (tmp_path / "fine.so").read_bytes()
    wheel = build_wheel(tmp_path / "in", files, tag="py3-none-manylinux_2_36_x86_64")
    report = verify(wheel, Policy(cpu="avx", dispatching=("*",)))
    assert report.check("cpu").undecided == ("canary/libc1.so",)
    [finding] = emulate(report, wheel).findings
    assert finding.where == "canary/libc1.so"
    assert (
        finding.what == "a process that has loaded it on SandyBridge ends by SIGILL when it exits"
    )


ASKS = 'int has(void) { __builtin_cpu_init(); return __builtin_cpu_supports("avx2") != 0; }'
LAST_WORDS = " (last words: qemu: uncaught target signal 4 (Illegal instruction) - core dumped)"
PACKAGES = {
    # What the package does, and what the check says of its module for newer CPUs.
    "asks the CPU": ("if ask.has(): load('libfast_avx2.so')", None),
    "does not ask": (
        "load('libfast_avx2.so')",
        "importing the package on SandyBridge loads it, which `only_on` has for avx2",
    ),
    "runs it": (
        "load('libfast_avx2.so').kernel()",
        f"loading it on SandyBridge ends the process by SIGILL{LAST_WORDS}",
    ),
}


@pytest.mark.parametrize("case", PACKAGES)
def test_that_a_module_for_newer_cpus_is_not_loaded_is_shown_by_the_import(
    tmp_path, emulator, case
):
    statement, problem = PACKAGES[case]
    files = {}
    for name, code in (("libfast_avx2", KERNEL), ("libask", ASKS)):
        (tmp_path / f"{name}.c").write_text(code)
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", f"{name}.so", f"{name}.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        files[f"canary/{name}.so"] = (tmp_path / f"{name}.so").read_bytes()
    files["canary/__init__.py"] = b""
    files["canary/kernels.py"] = (
        "import ctypes, pathlib\n"
        "load = lambda name: ctypes.CDLL(pathlib.Path(__file__).with_name(name))\n"
        f"ask = load('libask.so')\n{statement}\n"
    ).encode()
    wheel = build_wheel(tmp_path / "in", files, tag="py3-none-manylinux_2_36_x86_64")
    policy = Policy(cpu="avx", only_on={"avx2": ("canary/*_avx2*",)})
    report = verify(wheel, policy)
    assert report.check("cpu").undecided == ("canary/libfast_avx2.so",)
    check = emulate(report, wheel).check("cpu")
    assert [finding.what for finding in check.findings] == ([problem] if problem else [])
    if problem is None:
        assert check.undecided == ()
        assert check.emulated == (
            "emulated: 1 of 1 libraries loaded on SandyBridge, "
            "1 of 1 for other CPUs were left alone"
        )


def test_a_package_that_cannot_be_imported_proves_nothing_of_its_modules(tmp_path, emulator):
    files = {"canary/__init__.py": b"import not_there", "canary/libfast_avx2.so": b""}
    (tmp_path / "c.c").write_text(KERNEL)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", "c.so", "c.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    files["canary/libfast_avx2.so"] = (tmp_path / "c.so").read_bytes()
    wheel = build_wheel(tmp_path / "in", files, tag="py3-none-manylinux_2_36_x86_64")
    policy = Policy(cpu="avx", only_on={"avx2": ("canary/*_avx2*",)})
    check = emulate(verify(wheel, policy), wheel).check("cpu")
    assert check.undecided == ("canary/libfast_avx2.so",)
    assert "canary/__init__.py: error ModuleNotFoundError" in check.emulated
