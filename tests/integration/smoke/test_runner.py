"""The runner against modules that work, lie, crash, hang, fork and talk rubbish."""

import errno
import os
import re
import signal
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

import pytest

from farm.base import processes
from farm.base.errors import InfrastructureError, UsageError
from farm.smoke import runner
from farm.smoke.runner import Expectation, SmokeReport, run_probe

ANYTHING = Expectation()


def probe(python, *, expect=ANYTHING, timeout_s=120.0, emulate=None, module="fakemod"):
    return run_probe(python, module=module, expect=expect, timeout_s=timeout_s, emulate=emulate)


def hung(python, check, expect=ANYTHING):
    """The report of a run that hangs in `check`. A busy machine may hang for the first limit in the
    ones before.
    """
    for limit in (2, 20, 200):
        report = run_probe(python, module="fakemod", expect=expect, timeout_s=limit)
        if report.reason == f"did not finish in {limit} s in the check '{check}'":
            return report
    raise AssertionError(report.reason)


def status_of(report: SmokeReport) -> dict[str, str]:
    return {check.name: check.status for check in report.checks}


def test_a_good_module_passes(environment):
    report = probe(environment(), expect=Expectation(version="1.2.3", cuda="none"))
    assert (report.outcome, report.reason, report.exit_code, report.signal) == (
        "passed",
        None,
        0,
        None,
    )
    assert status_of(report) == {
        "import": "passed",
        "version": "passed",
        "CUDA version": "passed",
        "build configuration": "passed",
        "architectures": "not_run",
        "matmul float32 on cpu": "passed",
        "matmul float64 on cpu": "passed",
        "matmul int32 on cpu": "passed",
        "driver": "not_run",
        "is_available": "not_run",
        "devices": "not_run",
        "code for the device": "not_run",
        "native or JIT": "not_run",
        "matmul float32 on cuda": "not_run",
        "matmul float64 on cuda": "not_run",
    }
    assert "matmul float64 on cpu" in report.output_tail
    assert SmokeReport.model_validate_json(report.to_json()) == report


STEERING = [
    *(
        "OPENBLAS_CORETYPE",
        "MKL_ENABLE_INSTRUCTIONS",
        "ATEN_CPU_CAPABILITY",
        "DNNL_MAX_CPU_ISA",
        "ONEDNN_MAX_CPU_ISA",
    ),
    *(
        "NPY_DISABLE_CPU_FEATURES",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_FORCE_PTX_JIT",
        "NVIDIA_TF32_OVERRIDE",
        "LD_PRELOAD",
    ),
    *(
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONMALLOC",
        "OMP_NUM_THREADS",
        "KMP_AFFINITY",
        "GLIBC_TUNABLES",
    ),
    *("TORCH_CUDNN_V8_API_DISABLED", "PYTORCH_NO_CUDA_MEMORY_CACHING", "QEMU_CPU"),
]


def test_what_forces_or_hides_code_stays_outside(environment, monkeypatch):
    python = environment("import os; print('environment:', *sorted(os.environ))")
    for name in STEERING:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    report = probe(python)
    assert report.outcome == "passed", report.reason
    [line] = [each for each in report.output_tail.splitlines() if each.startswith("environment:")]
    # The probe's, for code that the driver compiles, and the runner's, by which it finds what is
    # left behind.
    own = {"CUDA_CACHE_MAXSIZE", processes.MARK}
    assert (
        set(line.split()[1:])
        <= {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"} | own
    )


def test_a_variable_that_is_asked_for_is_passed(environment, monkeypatch):
    python = environment("import os; print('cards:', os.environ.get('CUDA_VISIBLE_DEVICES'))")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    report = run_probe(
        python, module="fakemod", expect=ANYTHING, timeout_s=120, passed=("CUDA_VISIBLE_DEVICES",)
    )
    assert "cards: 1" in report.output_tail
    assert "cards: None" in probe(python).output_tail
    with pytest.raises(UsageError, match="NOT_THERE is not set"):
        run_probe(python, module="fakemod", expect=ANYTHING, timeout_s=120, passed=("NOT_THERE",))


@pytest.mark.parametrize(
    ("expect", "name", "seen", "expected"),
    [
        (Expectation(version="1.2.4"), "version", "1.2.3", "1.2.4"),
        (Expectation(cuda="11.8"), "CUDA version", "none", "11.8"),
        (
            Expectation(archs=("sm_35", "compute_35")),
            "architectures",
            "none",
            "also sm_35 compute_35",
        ),
    ],
)
def test_what_the_wheel_promised_and_is_not(environment, expect, name, seen, expected):
    report = probe(environment(), expect=expect)
    (failed,) = [check for check in report.checks if check.status == "failed"]
    assert (failed.name, failed.seen, failed.expected) == (name, seen, expected)
    reason = f"failed: {name}: {seen}; expected: {expected}"
    assert (report.outcome, report.reason, report.exit_code) == ("failed", reason, 1)


def test_the_reason_names_the_error_of_a_script(environment, tmp_path):
    script = tmp_path / "own.py"
    script.write_text("print('a line')\nraise ValueError('the answer is 41')\n", encoding="utf-8")
    python = environment()
    (module,) = python.parent.parent.rglob("fakemod*.py")
    installed = module.with_name("fakemod-1.2.3.dist-info")
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fakemod\nVersion: 1.2.3\n", encoding="utf-8"
    )
    report = probe(python, expect=Expectation(imports=("fakemod",), script=script))
    reason = "failed: smoke script: ValueError: the answer is 41; expected: exit code 0"
    assert (report.outcome, report.reason) == ("failed", reason)


@pytest.mark.parametrize(
    ("addition", "failing", "words"),
    [
        ("Tensor.dot = lambda s, a, b: good(s, a, b) * (1 if s.dtype == int32 else 1.0001)",
         {"float32", "float64"}, "its bound"),
        (("Tensor.dot = lambda s, a, b: rounded([good(s, a, b)], int32 if s.dtype == int32 else "
    "float32)[0]"),
         {"float64"}, "its bound"),
        ("Tensor.dot = lambda s, a, b: good(s, a, b) if s.dtype == int32 else float('nan')",
         {"float32", "float64"}, "nan"),
        ("Tensor.dot = lambda s, a, b: good(s, a, b) + (s.dtype == int32 and len(a) > 16)",
         {"int32"}, "17x17 @ 17x17: other numbers"),
        ("Tensor.dot = lambda s, a, b: 0", {"float32", "float64", "int32"}, ": "),
        ("def f(s, o):\n    return o\nTensor.__matmul__ = f", {"float32", "float64", "int32"}, ""),
        (("def f(s, o):\n    raise RuntimeError('CUDA error: "
    "\\u202e\\x1b[31mbad')\nTensor.__matmul__ = f"),
         {"float32", "float64", "int32"}, "RuntimeError: CUDA error: "),
    ],
)  # fmt: skip
def test_a_wrong_product_is_found(environment, addition, failing, words):
    report = probe(environment("good = Tensor.dot\n" + addition))
    failed = {check.name: check.seen for check in report.checks if check.status == "failed"}
    assert set(failed) == {f"matmul {name} on cpu" for name in failing}
    assert all(words in seen for seen in failed.values())
    assert not any(
        unicodedata.category(c) in ("Cc", "Cf") for seen in failed.values() for c in seen
    )
    assert report.outcome == "failed"


@pytest.mark.parametrize(
    ("number", "meaning"),
    [
        (signal.SIGILL, "the CPU lacks an instruction that the wheel uses"),
        (signal.SIGSEGV, "memory that is not its own"),
        (signal.SIGKILL, "memory runs out"),
    ],
)
def test_a_crash_keeps_the_checks_before_it(environment, number, meaning):
    addition = f"""
        def crash(self, other):
            import os
            os.kill(os.getpid(), {int(number)})
        Tensor.__matmul__ = crash
    """
    report = probe(environment(addition))
    assert (report.outcome, report.signal, report.exit_code) == ("failed", number.name, None)
    assert report.reason.startswith(
        f"ended by {number.name} in the check 'matmul float32 on cpu': "
    )
    assert meaning in report.reason
    assert list(status_of(report)) == [
        "import",
        "version",
        "CUDA version",
        "build configuration",
        "architectures",
    ]


def test_a_crash_while_importing(environment):
    report = probe(environment(base="import ctypes\nctypes.string_at(8)\n"))
    assert (report.outcome, report.signal, report.checks) == ("failed", "SIGSEGV", ())
    assert "in the check 'import'" in report.reason
    assert "fakemod.py" in report.output_tail  # where in Python it was


HANGS = {
    "python": "while True:\n        import time\n        time.sleep(1)",
    "with the GIL": "import ctypes\n    ctypes.PyDLL(None).sleep(600)",
    "deaf to signals": "import ctypes, signal\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
    "    ctypes.PyDLL(None).sleep(600)",
}


@pytest.mark.parametrize("how", HANGS)
def test_a_check_that_hangs_is_ended(environment, how):
    python = environment(f"def hang(s, o):\n    {HANGS[how]}\nTensor.__matmul__ = hang\n")
    report = hung(python, "matmul float32 on cpu")
    assert report.outcome == "failed"
    assert report.seconds < 500
    assert "fakemod.py" in report.output_tail  # where it hung
    assert list(status_of(report)) == [
        "import",
        "version",
        "CUDA version",
        "build configuration",
        "architectures",
    ]


def test_the_watchdog_ends_what_the_probe_itself_cannot(environment, monkeypatch):
    """A module that turns the probe's own alarm off."""
    monkeypatch.setattr(runner, "GRACE_S", 1.0)
    addition = """
        import faulthandler, time
        def hang(self, other):
            faulthandler.cancel_dump_traceback_later()
            time.sleep(600)
        Tensor.__matmul__ = hang
    """
    report = hung(environment(addition), "matmul float32 on cpu")
    assert [cause.id for cause in report.causes] == ["hung-cpu"]  # the module has no CUDA
    assert report.seconds < 500


def test_a_gpu_that_is_asked_for_and_not_there(environment):
    report = probe(environment(), expect=Expectation(gpu=True))
    assert report.outcome == "failed"
    assert report.reason == "a GPU was asked for, and the GPU part did not run: built without CUDA"


def test_windows_crash_codes_have_the_names_of_signals():
    for code, name in ((0xC000001D, "SIGILL"), (0xC0000005, "SIGSEGV"), (-0x3FFFFFE3, "SIGILL")):
        ended = runner.Ended(returncode=code, late=None, tail="", seconds=1.0)
        report = runner.judge("torch", None, ended, "the probe left no report", ANYTHING)
        assert (report.outcome, report.signal) == ("failed", name)


def test_rubbish_on_stdout_does_no_harm(environment):
    addition = r"""
        import os
        os.write(1, bytes(range(256)) * 4000)
        os.write(2, b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b1m \xff\xfe\n")
    """
    report = probe(environment(addition))
    assert report.outcome == "passed"
    assert len(report.output_tail) <= runner.TAIL_BYTES
    assert "red" in report.output_tail
    assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in report.output_tail)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int) -> bool:
    for _ in range(6000):
        if not is_alive(pid):
            return True
        time.sleep(0.02)
    return False


FORKS = """
import os, time
pid = os.fork()
if pid == 0:
    {leave}
    time.sleep(600)
    os._exit(0)
open({file!r}, "w").write(str(pid))
"""


def test_what_the_module_left_behind_is_ended(environment, tmp_path):
    file = tmp_path / "pid"
    report = probe(environment(FORKS.format(leave="pass", file=str(file))))
    assert report.outcome == "passed"
    assert wait_until_dead(int(file.read_text()))


def test_a_child_that_cannot_be_found_is_not_waited_for(environment, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "KILL_WAIT_S", 0.5)
    monkeypatch.setattr(runner.processes, "end_marked", lambda *_: True)
    file = tmp_path / "pid"
    try:
        report = probe(environment(FORKS.format(leave="os.setsid()", file=str(file))))
        assert report.outcome == "passed"
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


SERVER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open({file!r}, "w").write(str(child.pid))
print("served")
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="it is found by /proc")
def test_a_server_that_a_smoke_script_starts_does_not_hang_it_and_is_ended(environment, tmp_path):
    file, script = tmp_path / "pid", tmp_path / "own.py"
    script.write_text(SERVER.format(file=str(file)))
    report = run_probe(
        environment(), module="fakemod", expect=Expectation(script=script), timeout_s=60.0
    )
    assert [
        (check.status, check.seen) for check in report.checks if check.name == "smoke script"
    ] == [("passed", "served")]
    assert not is_alive(int(file.read_text()))


@pytest.mark.parametrize(("cuda", "cause"), [("none", "hung-cpu"), ("11.8", "hung")])
def test_a_script_that_hangs_is_not_the_drivers_fault_without_cuda(
    environment, tmp_path, cuda, cause
):
    script = tmp_path / "own.py"
    script.write_text("import time\ntime.sleep(600)\n")
    expect = Expectation(script=script, cuda=cuda)
    report = hung(environment(), "smoke script", expect)
    assert [each.id for each in report.causes][-1:] == [cause]


AT_EXIT = """
import atexit, os, sys
(path,) = [a.partition("=")[2] for a in sys.argv if a.startswith("--json=")]
@atexit.register
def spoil():
    {body}
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("open(path, 'w').write('{\"schema\": 1')", "the probe's report is not valid"),
        ("open(path, 'wb').write(bytes(range(256)))", "the probe's report is not valid"),
        ("open(path, 'w').write('[' * 100000)", "the probe's report is not valid"),
        ("open(path, 'w').write('{}')", "the probe's report is not valid: schema: this key is missing"),
        ("open(path, 'w').write(' ' * (2 << 20))", "larger than 1 MiB"),
        ("os.unlink(path)", "the probe left no report"),
        ("os.unlink(path); os.symlink('/etc/passwd', path)", "the probe left no report"),
        ("os.unlink(path); os.mkfifo(path)", "not a regular file"),
        ("os.unlink(path); os.mkdir(path)", "not a regular file"),
        ("text = open(path).read(); open(path, 'w').write(text.replace('fakemod', 'torch'))",
         "is about 'torch', not 'fakemod'"),
        (("text = open(path).read(); open(path, 'w').write(text.replace('\"complete\": true', "
    "'\"complete\": false'))"),
         "ended before the last check"),
        ("os._exit(3)", "the exit code is 3: it went wrong at the end"),
    ],
)  # fmt: skip
def test_a_spoiled_report_never_passes(environment, body, words):
    report = probe(environment(AT_EXIT.replace("{body}", body)))
    assert report.outcome == "failed"
    assert words in report.reason


def test_an_exit_in_the_middle_is_no_success(environment):
    report = probe(
        environment("def f(s, o):\n    import os\n    os._exit(0)\nTensor.__matmul__ = f\n")
    )
    assert report.outcome == "failed"
    assert (
        report.reason
        == "ended before the last check in the check 'matmul float32 on cpu'; exit code 0"
    )


def test_neither_pythonpath_nor_the_working_folder_can_stand_in_for_the_wheel(
    environment, tmp_path, monkeypatch
):
    (tmp_path / "impostor.py").write_text("__version__ = '1'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert status_of(probe(environment(), module="impostor")) == {"import": "failed"}


def test_without_the_emulator_the_report_says_how_to_get_it(environment, tmp_path, monkeypatch):
    python = environment()
    monkeypatch.setenv("PATH", str(tmp_path))
    report = probe(python, emulate="SandyBridge")
    assert (report.outcome, report.emulated, report.checks) == ("not_run", "SandyBridge", ())
    assert report.reason == "qemu-x86_64 is not on the PATH"
    assert "Debian package qemu-user" in report.hint


def test_a_full_disk_for_temporary_files_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        InfrastructureError, match=re.escape(str(tmp_path)) + ".*: No space left on device"
    ) as error:
        probe(Path(sys.executable))
    assert "TMPDIR" in error.value.hint
    assert not list(tmp_path.iterdir())
