"""`farm smoke` with wheels of a torch that is broken in every way that one can be: it survives and names each."""

import os
import signal
import time
from pathlib import Path

import pytest

HALF = """
__version__ = "2.8.0+cpu.avx2"
class version:
    cuda = None
class __config__:
    @staticmethod
    def show():
        return "stand-in"
class cuda:
    get_arch_list = staticmethod(list)
float32 = float64 = int32 = None
def tensor(*a, **k):
    {body}
"""


# ud2, the instruction that no CPU has (Intel SDM, volume 2).
UD2 = """import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(b"\\x0f\\x0b")
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"""


def half(body: str) -> str:
    """A torch that imports, and does this at its first product."""
    return HALF.replace("{body}", body.replace("\n", "\n    "))


def test_no_torch(smoke):
    answer = smoke("", files={"torch/__init__.py": "raise ModuleNotFoundError(\"No module named 'torch'\")"})
    assert (answer.code, answer.here["outcome"]) == (8, "failed")
    assert answer.causes == ["not-installed"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ImportError('libcudnn.so.8: cannot open shared object file: No such file or directory')", "cudnn-missing"),
        ("OSError('[WinError 126] The specified module could not be found. Error loading fbgemm.dll')", "winerror-126"),
        ("SyntaxError('half a file')", None),
        ("SystemExit(0)", None),
        ("KeyboardInterrupt()", None),
        ("BaseException('not even an Exception')", None),
        ("RecursionError()", None),
    ],
)
def test_a_broken_torch(smoke, error, cause):
    answer = smoke(f"raise {error}")
    assert (answer.code, answer.here["outcome"]) == (8, "failed")
    assert answer.causes == ([cause] if cause else [])
    if cause:
        assert "    fix: " in answer.err


def test_a_torch_whose_library_is_rubbish(smoke):
    answer = smoke("import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'lib.so'))",
                   files={"torch/lib.so": "\x7fELF rubbish"})  # fmt: skip
    assert answer.here["outcome"] == "failed"
    assert "OSError" in answer.here["checks"][0]["seen"]


@pytest.mark.parametrize(
    ("source", "name", "cause"),
    [
        ("import ctypes\nctypes.string_at(8)", "SIGSEGV", []),
        ("import os\nos.abort()", "SIGABRT", []),
        (UD2, "SIGILL", ["illegal-instruction"]),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", ["killed"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", ["import", "matmul float32 on cpu"])
def test_a_torch_that_crashes_the_interpreter(smoke, source, name, cause, when):
    answer = smoke(source if when == "import" else half(source))
    assert answer.code == 8
    assert (answer.here["outcome"], answer.here["signal"]) == ("failed", name)
    assert f"in the check {when!r}" in answer.here["reason"]
    assert answer.causes == cause
    assert len(answer.here["checks"]) == (0 if when == "import" else 5)


def test_a_torch_that_ends_the_process_as_if_all_were_well(smoke):
    answer = smoke("import os\nos._exit(0)")
    assert answer.here["reason"] == "ended before the last check in the check 'import'; exit code 0"


def test_a_torch_that_prints_binary_rubbish(smoke):
    rubbish = r"""
        import os, sys
        for _ in range(200):
            os.write(1, bytes(range(256)) * 256)
            os.write(2, b"\x1b]0;title\x07\x1b[2J\xff\xfe\x00")
        raise ImportError("\x1b[31m\u202egnp.exe\x00")
    """
    answer = smoke(rubbish)
    assert answer.here["outcome"] == "failed"
    shown = answer.err + answer.here["output_tail"] + answer.here["checks"][0]["seen"]
    assert not [c for c in shown if ord(c) < 32 and c not in "\n\t"]
    assert "\u202e" not in shown
    assert len(answer.here["output_tail"]) <= 16 << 10


@pytest.mark.parametrize("when", ["import", "matmul float32 on cpu"])
def test_a_torch_that_hangs(smoke, when):
    source = "import ctypes\nctypes.PyDLL(None).sleep(600)"  # with the GIL, as a hung library
    for limit in (3, 30, 120):  # a busy machine may take longer than the first for the checks before
        answer = smoke(source if when == "import" else half(source), "--time-limit", str(limit))
        if when in answer.here["reason"]:
            break
    assert answer.here["reason"] == f"did not finish in {limit} s in the check {when!r}"
    assert answer.causes == ["hung-cpu"]  # the wheel has no CUDA
    assert answer.here["seconds"] < 500


def test_a_torch_that_hangs_at_the_end(smoke):
    for limit in (5, 50, 200):  # a busy machine may not come to the end in the first
        answer = smoke("import atexit, time\natexit.register(time.sleep, 600)", "--time-limit", str(limit))
        if "check" not in answer.here["reason"]:
            break
    assert answer.here["outcome"] == "failed"
    assert answer.here["reason"] == f"did not finish in {limit} s"


def dead(pid: int) -> bool:
    for _ in range(6000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in ("Z", "X"):
            return True
        time.sleep(0.02)
    return False


def test_a_torch_that_forks(smoke, tmp_path):
    """Children that stay behind are ended; those that answer in the probe's place are not believed."""
    file = tmp_path / "pids"
    source = f"""
        import os, time
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            with open({str(file)!r}, "a") as pids:
                pids.write(f"{{pid}}\\n")
        if os.fork() == 0:
            os._exit(0)
        raise ImportError("the parent is broken")
    """
    answer = smoke(source)
    assert answer.here["outcome"] == "failed"
    pids = [int(line) for line in file.read_text().split()]
    try:
        assert len(pids) == 5
        assert all(dead(pid) for pid in pids)
    finally:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def test_a_fork_that_goes_on_as_the_probe_does_not_pass(smoke):
    """The child returns from the import as if it were the parent, which dies."""
    answer = smoke("import os\nif os.fork():\n    os._exit(0)\n" + half("raise ValueError"))
    assert answer.here["outcome"] == "failed"


def test_the_report_is_kept_beside_the_wheel(smoke):
    answer = smoke("raise ImportError('<&>\\x00')")
    assert answer.beside == ["torch-2.8.0+cpu.avx2-py3-none-any.whl.smoke-Haswell.json",
                             "torch-2.8.0+cpu.avx2-py3-none-any.whl.smoke.json"]  # fmt: skip
    assert answer.reports["Haswell"]["reason"] == "qemu-x86_64 is not on the PATH"


def test_a_missing_file_and_wrong_limits_are_the_users_mistakes(smoke, tmp_path):
    answer = smoke("", "--wheel", str(tmp_path / "absent.whl"))
    assert (answer.code, answer.reports) == (2, {})
    assert "absent.whl: no such file" in answer.err
    for wrong in ("0", "-1", "x"):
        assert smoke("", "--time-limit", wrong).code == 2
