"""Every way into the code of a library that an import or an exit takes: AVX2 there kills the
process on an older CPU.

`farm verify` may leave a way open ("not decided"), but never pass it; the emulated import decides
all of them. Code that asks the CPU first is never refused.
"""

import os
import subprocess
import sysconfig
from typing import NamedTuple

import pytest

from farm.policy.rules import Policy
from farm.smoke.emulation import emulate
from farm.wheel.verify import verify
from tests.unit.wheel.conftest import build_wheel

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code for x86-64")


class Library(NamedTuple):
    """A library in C or C++; `options` are the linker's, `module` says that Python imports it."""

    code: str
    options: tuple[str, ...] = ()
    cxx: bool = False
    module: bool = False


KERNEL = """
#define KEEP __asm__ volatile("")  // the call is not optimised away
__attribute__((noinline)) static void kernel(void) {
    __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0");
}
"""
START = "__attribute__((constructor)) static void start(void)"
INIT = "PyMODINIT_FUNC PyInit_way(void)"
DEFINITION = 'static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "way", 0, -1, 0};'
CREATE = "return PyModule_Create(&definition);"
SLOTS = """
static PyModuleDef_Slot slots[] = {{SLOT, function}, {0, 0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "way", 0, 0, 0, slots};
PyMODINIT_FUNC PyInit_way(void) { return PyModuleDef_Init(&definition); }
"""


def calls(depth: int) -> str:
    """Functions `call0` to `callN`, each of which calls the one before; `call0` the kernel."""
    lines = ["__attribute__((noinline)) static void call0(void) { kernel(); }"]
    for level in range(1, depth + 1):
        lines.append(
            f"__attribute__((noinline)) static void call{level}(void) "
            f'{{ call{level - 1}(); __asm__ volatile(""); }}'
        )
    return "\n".join(lines)


BEYOND = {
    "constructor": Library(f"{START} {{ kernel(); }}"),
    "constructor, 2 calls below": Library(f"{calls(1)} {START} {{ call1(); }}"),
    "constructor, 5 calls below": Library(f"{calls(4)} {START} {{ call4(); }}"),
    "DT_INIT": Library("void enter(void) { kernel(); }", ("-Wl,-init=enter",)),
    "DT_FINI": Library("void leave(void) { kernel(); }", ("-Wl,-fini=leave",)),
    "destructor": Library("__attribute__((destructor)) static void end(void) { kernel(); }"),
    "static object of C++": Library("struct S { S() { kernel(); } }; S s;", cxx=True),
    "destructor of a static object": Library("struct S { ~S() { kernel(); } }; S s;", cxx=True),
    "thread_local object": Library(
        f"struct S {{ S() {{ kernel(); }} int v; }}; thread_local S s; {START} {{ s.v = 1; }}",
        cxx=True,
    ),
    "virtual function": Library(
        "struct A { virtual void f() {} }; struct B : A { void f() override { kernel(); } };"
        "B b; A *volatile a = &b; struct S { S() { a->f(); } }; S s;",
        cxx=True,
    ),
    "handler of an exception": Library(
        f"{START} {{ try {{ throw 1; }} catch (int) {{ kernel(); }} }}", cxx=True
    ),
    "std::call_once": Library(
        f"#include <mutex>\nstd::once_flag o; {START} {{ std::call_once(o, kernel); }}", cxx=True
    ),
    "std::function": Library(
        "#include <functional>\nstd::function<void()> f = kernel;struct S { S() { f(); } }; S s;",
        cxx=True,
    ),
    "std::sort": Library(
        "#include <algorithm>\nint v[] = {2, 1}; bool less(int a, int b) { kernel(); return a < b; }"
        f"{START} {{ std::sort(v, v + 2, less); }}",
        cxx=True,
    ),
    "resolver": Library(
        "static void (*choose(void))(void) { kernel(); return kernel; }"
        'void f(void) __attribute__((ifunc("choose")));'
        f"{START} {{ f(); }}"
    ),
    "what a resolver returns": Library(
        "static void (*choose(void))(void) { KEEP; return kernel; }"
        'void f(void) __attribute__((ifunc("choose")));'
        f"{START} {{ f(); }}"
    ),
    "what a resolver takes from a table": Library(
        "static void (*table[])(void) = {kernel};"
        "static void (*choose(void))(void) { KEEP; return table[0]; }"
        f'void f(void) __attribute__((ifunc("choose"))); {START} {{ f(); }}'
    ),
    "atexit": Library(f"#include <stdlib.h>\n{START} {{ atexit(kernel); }}"),
    "on_exit": Library(
        "#define _GNU_SOURCE\n#include <stdlib.h>\nvoid leave(int c, void *p) { kernel(); }"
        f"{START} {{ on_exit(leave, 0); }}"
    ),
    "pthread_once": Library(
        f"#include <pthread.h>\nstatic pthread_once_t o; {START} {{ pthread_once(&o, kernel); }}"
    ),
    "thread": Library(
        "#include <pthread.h>\nstatic void *run(void *p) { kernel(); return p; }"
        f"{START} {{ pthread_t t; pthread_create(&t, 0, run, 0); pthread_join(t, 0); }}"
    ),
    "qsort": Library(
        "#include <stdlib.h>\nstatic int v[] = {2, 1};"
        "static int less(const void *a, const void *b) { kernel(); return 0; }"
        f"{START} {{ qsort(v, 2, sizeof *v, less); }}"
    ),
    "signal": Library(
        "#include <signal.h>\nstatic void caught(int s) { kernel(); }"
        f"{START} {{ signal(SIGUSR1, caught); raise(SIGUSR1); }}"
    ),
    "longjmp": Library(
        f"#include <setjmp.h>\nstatic jmp_buf b; {START} "
        "{ if (setjmp(b)) kernel(); else longjmp(b, 1); }"
    ),
    "switch": Library(
        "#include <stdlib.h>\n"
        f'{START} {{ switch (atoi(getenv("HOME") ? "3" : "3")) {{ case 0: abort();'
        " case 1: rand(); break; case 2: srand(1); break; case 3: kernel(); break;"
        " case 4: random(); break; case 5: srandom(2); } }"
    ),
    "computed goto": Library(
        f"{START} {{ static void *volatile to[] = {{&&there}}; goto *to[0]; there: kernel(); }}"
    ),
    "pointer in data": Library(
        f"static void (*volatile pointer)(void) = kernel; {START} {{ pointer(); }}"
    ),
    "pointer made at run time": Library(
        "static volatile long key = 0x5a5a;"
        f"{START} {{ ((void (*)(void))((long)kernel ^ key ^ 0x5a5a))(); }}"
    ),
    "dlsym": Library(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\nvoid exported(void) { kernel(); }"
        f"{START} {{ Dl_info i; dladdr((void *)exported, &i); void *h = dlopen(i.dli_fname, 2);"
        ' if (h) ((void (*)(void))dlsym(h, "exported"))(); }'
    ),
    "code that is copied": Library(
        "#include <string.h>\n#include <sys/mman.h>\n"
        f"{START} {{ char *p = mmap(0, 4096, 7, 34, -1, 0); memcpy(p, kernel, 64);"
        " ((void (*)(void))p)(); }"
    ),
    "PyInit": Library(f"{DEFINITION} {INIT} {{ kernel(); {CREATE} }}", module=True),
    "PyInit, 2 calls below": Library(
        f"{calls(1)} {DEFINITION} {INIT} {{ call1(); {CREATE} }}", module=True
    ),
    "PyInit, 5 calls below": Library(
        f"{calls(4)} {DEFINITION} {INIT} {{ call4(); {CREATE} }}", module=True
    ),
    "slot exec": Library(
        "static int function(PyObject *m) { kernel(); return 0; }"
        + SLOTS.replace("SLOT", "Py_mod_exec"),
        module=True,
    ),
    "slot create": Library(
        "static PyObject *function(PyObject *s, PyModuleDef *d) { kernel();"
        ' return PyModule_New("way"); }' + SLOTS.replace("SLOT", "Py_mod_create"),
        module=True,
    ),
    "type that PyInit calls": Library(
        "static PyObject *make(PyTypeObject *t, PyObject *a, PyObject *k) { kernel();"
        " return PyType_GenericNew(t, a, k); }"
        "static PyType_Slot slots[] = {{Py_tp_new, make}, {0, 0}};"
        'static PyType_Spec spec = {"way.T", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};'
        f"{DEFINITION} {INIT} {{ PyObject *t = PyType_FromSpec(&spec);"
        f" PyObject_CallObject(t, 0); {CREATE} }}",
        module=True,
    ),
    "function of the module that PyInit calls": Library(
        "static PyObject *f(PyObject *s, PyObject *a) { kernel(); Py_RETURN_NONE; }"
        'static PyMethodDef method = {"f", f, METH_NOARGS, 0};'
        f"{DEFINITION} {INIT} {{ PyObject_CallObject(PyCFunction_New(&method, 0), 0); {CREATE} }}",
        module=True,
    ),
    "destructor of a capsule": Library(
        "static void drop(PyObject *c) { kernel(); }"
        f'{DEFINITION} {INIT} {{ PyObject *c = PyCapsule_New(&definition, "c", drop);'
        f" Py_DECREF(c); {CREATE} }}",
        module=True,
    ),
    "Python's atexit": Library(
        "static PyObject *f(PyObject *s, PyObject *a) { kernel(); Py_RETURN_NONE; }"
        'static PyMethodDef method = {"f", f, METH_NOARGS, 0};'
        f'{DEFINITION} {INIT} {{ PyObject *a = PyImport_ImportModule("atexit");'
        ' PyObject_CallMethod(a, "register", "N", PyCFunction_New(&method, 0));'
        f" {CREATE} }}",
        module=True,
    ),
}
ASK = '__builtin_cpu_init(); if (__builtin_cpu_supports("avx2"))'
SOUND = {
    "nobody calls it": Library("void (*pointer)(void) = kernel;"),
    "constructor that asks": Library(f"{START} {{ {ASK} kernel(); }}"),
    "resolver that asks": Library(
        "static void plain(void) {}"
        f"static void (*choose(void))(void) {{ {ASK} return kernel; return plain; }}"
        f'void f(void) __attribute__((ifunc("choose"))); {START} {{ f(); }}'
    ),
    "object that asks": Library(
        f"struct S {{ S() {{ {ASK} kernel(); }} ~S() {{ {ASK} kernel(); }} }}; S s;", cxx=True
    ),
    "PyInit that asks": Library(f"{DEFINITION} {INIT} {{ {ASK} kernel(); {CREATE} }}", module=True),
    "method that nobody calls": Library(
        "static PyObject *f(PyObject *s, PyObject *a) { kernel(); Py_RETURN_NONE; }"
        'static PyMethodDef methods[] = {{"f", f, METH_NOARGS, 0}, {0}};'
        'static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "way", 0, -1, methods};'
        f"{INIT} {{ {CREATE} }}",
        module=True,
    ),
}


def wheel_of(tmp_path, library):
    """A wheel that holds one library, in a package."""
    code = f"{KERNEL}{library.code}"
    if library.module:
        code = f"#define Py_LIMITED_API 0x03090000\n#include <Python.h>\n{code}"
    source = tmp_path / ("way.cpp" if library.cxx else "way.c")
    source.write_text(code)
    compiler = "g++" if library.cxx else "gcc"
    options = ["-shared", "-fPIC", "-O1", "-w", f"-I{sysconfig.get_path('include')}"]
    command = [compiler, *options, "-o", "way.so", source.name, *library.options]
    subprocess.run(command, cwd=tmp_path, check=True)
    if library.module:
        member = "canary/way.abi3.so"
        tag = "cp39-abi3-manylinux_2_36_x86_64"
    else:
        member = "canary/libway.so"
        tag = "py3-none-manylinux_2_36_x86_64"
    files = {"canary/__init__.py": b"", member: (tmp_path / "way.so").read_bytes()}
    return build_wheel(tmp_path / "in", files, tag=tag), member


@pytest.mark.parametrize("way", BEYOND)
def test_no_way_is_passed_and_the_emulated_import_decides_all(tmp_path, emulator, way):
    wheel, member = wheel_of(tmp_path, BEYOND[way])
    report = verify(wheel, Policy(cpu="avx", dispatching=("*",)))
    check = report.check("cpu")
    assert check.status == "failed" or check.undecided == (member,)
    emulated = emulate(report, wheel).check("cpu")
    assert "SIGILL" in " ".join(finding.what for finding in emulated.findings), emulated.emulated


@pytest.mark.parametrize("case", SOUND)
def test_code_that_no_old_cpu_runs_is_not_refused(tmp_path, emulator, case):
    wheel, _ = wheel_of(tmp_path, SOUND[case])
    report = verify(wheel, Policy(cpu="avx", dispatching=("*",)))
    assert report.check("cpu").status == "passed"
    check = emulate(report, wheel).check("cpu")
    assert (check.status, check.undecided) == ("passed", ())
