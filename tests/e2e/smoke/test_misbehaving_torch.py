"""`farm smoke` with wheels of a torch that is broken in every way that one can be: it survives and
names each.
"""

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


def half(body: str) -> str:
    """A torch that imports, and does this at its first product."""
    return HALF.replace("{body}", body.replace("\n", "\n    "))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            (
                "ImportError('libcudnn.so.8: cannot open shared object file: No such file or "
                "directory')"
            ),
            "cudnn-missing",
        ),
        (
            (
                "OSError('[WinError 126] The specified module could not be found. Error loading "
                "fbgemm.dll')"
            ),
            "winerror-126",
        ),
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


def test_a_torch_that_hangs_at_the_end(smoke):
    for limit in (5, 50, 200):  # a busy machine may not come to the end in the first
        answer = smoke(
            "import atexit, time\natexit.register(time.sleep, 600)", "--time-limit", str(limit)
        )
        if "check" not in answer.here["reason"]:
            break
    assert answer.here["outcome"] == "failed"
    assert answer.here["reason"] == f"did not finish in {limit} s"


def test_a_fork_that_continues_as_the_probe_does_not_pass(smoke):
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
