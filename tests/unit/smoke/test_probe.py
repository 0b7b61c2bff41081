"""The probe's own arithmetic and decisions, in this process."""

import argparse
import ctypes
import json
import math
import os
import random
import sys
import threading
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.smoke.probe import card, main, package, products, recorder
from tests.examples import examples


@pytest.mark.parametrize(
    ("capability", "archs", "answer"),
    [
        ((3, 5), ["sm_35"], "its own SASS (sm_35)"),
        ((3, 7), ["sm_35", "compute_35"], "its own SASS (sm_35)"),
        ((8, 6), ["sm_50", "sm_80", "sm_86", "sm_89"], "its own SASS (sm_86)"),
        ((9, 0), ["sm_90a"], "its own SASS (sm_90a)"),
        ((12, 1), ["sm_100", "sm_120"], "its own SASS (sm_120)"),
        ((12, 1), ["sm_120f"], "its own SASS (sm_120f)"),
        (
            (9, 0),
            ["sm_35", "compute_35"],
            "PTX (compute_35): the driver compiles it at the first use",
        ),
        (
            (9, 0),
            ["compute_50", "compute_35"],
            "PTX (compute_50): the driver compiles it at the first use",
        ),
    ],
)
def test_code_for_a_device(capability, archs, answer):
    assert package.code_for(capability, archs) == answer


@pytest.mark.parametrize(
    ("capability", "archs"),
    [
        ((9, 0), ["sm_35"]),
        ((3, 5), ["sm_37"]),
        ((3, 5), ["compute_50"]),
        ((10, 0), ["sm_90a", "compute_90a"]),
        ((9, 1), ["sm_90a"]),
        ((12, 0), ["sm_100f"]),
        ((3, 5), []),
        ((3, 5), ["rubbish", "sm_", "sm_3"]),
    ],
)
def test_no_code_for_a_device(capability, archs):
    with pytest.raises(recorder.FailedError) as caught:
        package.code_for(capability, archs)
    assert caught.value.expected == "code that runs on sm_{}{}".format(*capability)


def test_architectures_from_the_configuration_where_the_module_hides_them():
    text = (
        "NVCC architecture flags: "
        "-gencode;arch=compute_35,code=sm_35;-gencode;arch=compute_37,code=compute_37"
    )
    module = SimpleNamespace(
        cuda=SimpleNamespace(get_arch_list=list), __config__=SimpleNamespace(show=lambda: text)
    )
    assert package.arch_list(module) == ["sm_35", "compute_37"]


@pytest.mark.parametrize(
    ("flags", "expected"), [("sm_35 compute_35", ["sm_35", "compute_35"]), (None, []), ("", [])]
)
def test_architectures_as_torch_itself_asks_for_them(flags, expected):
    """torch 1.13.1 without a GPU: get_arch_list is empty, and so is the configuration's part about
    CUDA.
    """
    module = SimpleNamespace(
        cuda=SimpleNamespace(get_arch_list=list),
        __config__=SimpleNamespace(show=lambda: "PyTorch built with: GCC 11.3"),
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: flags),
    )
    assert package.arch_list(module) == expected


def test_the_error_bound_is_highams():
    # One element, n = 3, u = 2^-24: gamma = 3u/(1-3u), sum |a||b| = 0.75 + 0.5 + 0.25 = 1.5.
    u = 2.0**-24
    a, b = [[1.5, -1.0, 0.5]], [[0.5], [0.5], [0.5]]
    bound = Fraction(3, 2**24) / (1 - Fraction(3, 2**24)) * Fraction(3, 2)
    for factor, inside in ((Fraction(99, 100), True), (Fraction(101, 100), False)):
        share, where = products.worst_error(a, b, [[float(Fraction(1, 2) + bound * factor)]], u)
        assert (share <= 1.0) == inside
        assert share == pytest.approx(float(factor), rel=1e-6)
        assert where.startswith("[0][0]: ")


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_outside_of_every_bound(wrong):
    share, _ = products.worst_error(
        [[0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]], [[wrong, 0.5]], 2.0**-53
    )
    assert share == math.inf


def test_an_exact_zero_must_be_zero():
    assert products.worst_error([[0.0]], [[1.0]], [[0.0]], 2.0**-53)[0] == 0.0
    assert products.worst_error([[0.0]], [[1.0]], [[1e-300]], 2.0**-53)[0] == math.inf


@examples(60)
@given(
    st.integers(1, 6),
    st.integers(1, 60),
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.permutations(range(60)),
)
def test_a_product_summed_in_any_order_is_within_the_bound(rows, inner, cols, seed, order):
    source = random.Random(seed)
    a = products.make_matrix(rows, inner, 26, source)
    b = products.make_matrix(inner, cols, 26, source)
    steps = [k for k in order if k < inner]
    c = [[0.0] * cols for _ in range(rows)]
    for i in range(rows):
        for j in range(cols):
            for k in steps:
                c[i][j] += a[i][k] * b[k][j]
    assert products.worst_error(a, b, c, 2.0**-53)[0] <= 1.0


@given(st.integers(1, 30), st.integers(0, 2**32))
def test_products_of_inputs_are_exact_and_inputs_fit_their_format(size, seed):
    for name, (_, bits) in products.FORMATS.items():
        for value in products.make_matrix(1, size, bits, random.Random(seed))[0]:
            assert -1 <= value <= 1
            assert Fraction(value) * Fraction(value) == Fraction(value * value)
            if name == "float32":
                assert ctypes.c_float(value).value == value


class FakeDriver:
    """What libcuda answers; stands for the machine, which may or may not have one."""

    def __init__(self, init=0, count=1, version=11040, attributes=None):
        self.init, self.count, self.version, self.attributes = (
            init,
            count,
            version,
            attributes or {},
        )

    def nvmlInit_v2(self):
        return 0

    def nvmlShutdown(self):
        return 0

    def nvmlSystemGetDriverVersion(self, text, _size):
        text.value = b"535.54.03"
        return 0

    def cuDeviceGet(self, pointer, index):
        pointer._obj.value = index
        return 0

    def cuDeviceGetAttribute(self, pointer, attribute, _device):
        pointer._obj.value = self.attributes.get(attribute, 0)
        return 0 if attribute in self.attributes else 1

    def cuInit(self, _flags):
        return self.init

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = self.count
        return 0

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self.version
        return 0


@pytest.fixture
def machine(monkeypatch):
    def has(driver):
        def load(name):
            if driver is None:
                raise OSError(name)
            return driver

        monkeypatch.setattr(card.ctypes, "CDLL", load)

    return has


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, "no NVIDIA driver"),
        (FakeDriver(init=34), "no NVIDIA driver"),
        (FakeDriver(init=100), "the NVIDIA driver sees no GPU"),
        (FakeDriver(count=0), "the NVIDIA driver sees no GPU"),
    ],
)
def test_no_driver_is_a_reason_not_to_run(machine, driver, reason):
    machine(driver)
    with pytest.raises(recorder.NotRunError, match=f"^{reason}"):
        card.find_driver()


def test_a_driver_is_read_by_nvml(machine):
    machine(FakeDriver(version=12020, count=2))
    assert card.find_driver() == (2, "driver 535.54.03 for CUDA 12.2, 2 GPU(s)")


def test_a_driver_is_read_without_nvml(machine):
    driver = FakeDriver(version=11040)
    driver.nvmlInit_v2 = lambda: 1
    machine(driver)
    assert card.find_driver() == (1, "driver for CUDA 11.4, 1 GPU(s)")


def test_what_the_driver_says_of_the_card(machine):
    machine(FakeDriver(attributes={16: 15, 13: 745000, 36: 3004000, 37: 384}))
    found = card.card_numbers()
    assert found == {
        "multiprocessors": 15,
        "clock_khz": 745000,
        "memory_clock_khz": 3004000,
        "bus_bits": 384,
    }


def gpu_module(*, available=True, archs=("sm_35",), capability=(3, 5), product=None):
    """A module with one GPU that multiplies by `product(rows of a, rows of b)`."""

    class Tensor:
        def __init__(self, rows, dtype):
            self.rows, self.dtype, self.shape = rows, dtype, (len(rows), len(rows[0]))

        def __matmul__(self, other):
            if product is not None:
                return Tensor(product(self.rows, other.rows), self.dtype)
            columns = list(zip(*other.rows, strict=True))
            rows = [
                [math.fsum(x * y for x, y in zip(r, c, strict=True)) for c in columns]
                for r in self.rows
            ]
            return Tensor(rows, self.dtype)

        def cpu(self):
            return self

        def tolist(self):
            return self.rows

    cuda = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: 1,
        get_device_name=lambda _index: "Tesla K40m",
        get_device_capability=lambda _index: capability,
        get_arch_list=lambda: list(archs),
    )
    return SimpleNamespace(
        version=SimpleNamespace(cuda="11.8"),
        cuda=cuda,
        float32="float32",
        float64="float64",
        tensor=lambda rows, dtype, device: Tensor(rows, dtype),  # noqa: ARG005
    )


def gpu_part(tmp_path, module, *, cpu_only=False):
    run = recorder.Recorder(str(tmp_path / "report.json"), {})
    main.check_cuda(run, module, cpu_only)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["checks"] == run.checks
    return {
        check["name"]: (check["status"], check["seen"] or check["reason"]) for check in run.checks
    }


def test_the_gpu_part_on_a_gpu(machine, tmp_path):
    machine(FakeDriver())
    found = gpu_part(tmp_path, gpu_module())
    assert {status for status, _ in found.values()} == {"passed"}
    assert found["devices"][1] == "0: Tesla K40m (sm_35)"
    assert found["code for the device"][1] == "its own SASS (sm_35)"


def test_without_a_driver_nothing_of_the_gpu_part_passes(machine, tmp_path):
    machine(None)
    found = gpu_part(tmp_path, gpu_module())
    assert set(found.values()) == {("not_run", "no NVIDIA driver")}
    assert len(found) == 6


def test_a_driver_that_does_not_start_fails(machine, tmp_path):
    machine(FakeDriver(init=999))
    found = gpu_part(tmp_path, gpu_module())
    assert found.pop("driver") == ("failed", "cuInit gave CUresult 999")
    assert {status for status, _ in found.values()} == {"not_run"}


def test_a_driver_and_a_module_that_does_not_see_it_fails(machine, tmp_path):
    machine(FakeDriver())
    found = gpu_part(tmp_path, gpu_module(available=False))
    assert found["is_available"] == ("failed", "False")
    assert found["matmul float32 on cuda"] == ("not_run", "cuda.is_available() is not True")


def test_the_gpu_is_left_alone_when_only_the_cpu_was_asked_for(machine, tmp_path):
    machine(FakeDriver(init=999))
    found = gpu_part(tmp_path, gpu_module(), cpu_only=True)
    assert set(found.values()) == {("not_run", "only the CPU part was asked for")}


def test_a_kernel_that_is_not_there(machine, tmp_path):
    def product(a, b):
        raise RuntimeError(
            "CUDA error: cudaErrorNoKernelImageForDevice: no kernel image is available"
        )

    machine(FakeDriver())
    found = gpu_part(tmp_path, gpu_module(capability=(9, 0), product=product))
    assert found["code for the device"] == ("failed", "code for sm_35 only")
    assert found["matmul float64 on cuda"][0] == "failed"
    assert "cudaErrorNoKernelImageForDevice" in found["matmul float64 on cuda"][1]


def test_a_wrong_edge_of_a_tile_is_found(machine, tmp_path):
    def product(a, b):
        rows = [
            [math.fsum(x * y for x, y in zip(r, c, strict=True)) for c in zip(*b, strict=True)]
            for r in a
        ]
        if len(rows) > 16:
            rows[16][-1] = 0.0
        return rows

    machine(FakeDriver())
    found = gpu_part(tmp_path, gpu_module(product=product))
    assert found["matmul float32 on cuda"][0] == "failed"
    assert found["matmul float32 on cuda"][1].startswith("17x17 @ 17x17: error ")
    assert "[16][16]" in found["matmul float32 on cuda"][1]


def test_the_same_seed_gives_the_same_numbers():
    first = products.make_matrix(3, 4, 24, random.Random(7))
    assert first == products.make_matrix(3, 4, 24, random.Random(7))
    assert first != products.make_matrix(3, 4, 24, random.Random(8))


def test_wrong_arguments_exit_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["--module", "math", "--time-limit", "long"])
    assert caught.value.code == 2
    assert "--time-limit" in capsys.readouterr().err


def test_the_table_is_ascii_and_one_line_a_check(capsys):
    entry = argparse.Namespace(
        group="cuda",
        name="devices",
        status="failed",
        seen="Käpler\n\x1b[31m",
        expected="x",
        reason=None,
    )
    recorder.print_check(vars(entry))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.isascii()
    assert out.startswith("failed   devices")


# --- native or JIT


def runs(first=0.01):
    return {"ok": True, "error": None, "first_s": first, "second_s": 0.0001}


def fails(error):
    return {"ok": False, "error": error, "first_s": None, "second_s": None}


# CUDA Runtime API reference, cudaError_t: 209, 221, 222.
NO_IMAGE = (
    "RuntimeError: CUDA error: cudaErrorNoKernelImageForDevice: no kernel image is available "
    "for execution"
)
NO_JIT = (
    "RuntimeError: CUDA error: cudaErrorJitCompilationDisabled: PTX JIT compilation was disabled"
)
NEW_PTX = "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."


def test_own_sass_is_native():
    found = {"without JIT": runs(), "JIT only": fails(NO_IMAGE)}
    code, text = card.judge_code(found, ["sm_35"], "sm_35")
    assert code == "native"
    assert (
        text == "its own SASS serves sm_35: first kernel 0.010 s, then 0.0001 s; no PTX that serves"
    )
    assert (
        "has PTX as well (3.000 s"
        in card.judge_code({**found, "JIT only": runs(3)}, ["sm_35"], "sm_35")[1]
    )
    late = {**found, "JIT only": fails("did not finish in 60 s")}
    assert card.judge_code(late, ["sm_35"], "sm_35")[1].endswith("; its PTX did not finish in 60 s")


@pytest.mark.parametrize("error", [NO_JIT, NO_IMAGE])
def test_ptx_that_was_compiled_is_jit_with_a_warning(error):
    code, text = card.judge_code(
        {"without JIT": fails(error), "ordinary": runs(95.5)}, ["sm_50", "compute_35"], "sm_37"
    )
    assert code == "jit"
    assert "no SASS for sm_37 in the wheel (sm_50 compute_35)" in text
    assert "first kernel 95.500 s" in text
    assert "CUDA_CACHE_MAXSIZE" in text.warning


@pytest.mark.parametrize(
    ("plain", "ordinary", "seen"),
    [
        (NO_IMAGE, NO_IMAGE, "no kernel image for sm_90: the wheel holds sm_35 ("),
        (NO_JIT, NEW_PTX, "its PTX is newer than the driver can compile"),
        (NO_JIT, "did not finish in 5 s", "did not finish in 5 s"),
    ],
)
def test_no_code_that_runs(plain, ordinary, seen):
    with pytest.raises(recorder.FailedError) as caught:
        card.judge_code(
            {"without JIT": fails(plain), "ordinary": fails(ordinary)}, ["sm_35"], "sm_90"
        )
    assert seen in caught.value.seen


@pytest.mark.parametrize(
    ("plain", "tried"),
    [
        (runs(), {"without JIT": 900.0, "JIT only": card.PTX_AS_WELL_S}),
        (fails(NO_JIT), {"without JIT": 900.0, "ordinary": 900.0}),
    ],
)
def test_nothing_is_compiled_whose_answer_is_known(plain, tried):
    """Each way may compile every kernel anew, for minutes."""
    found = {}

    def run(way, limit_s):
        found[way] = limit_s
        return plain if way == "without JIT" else runs(60)

    assert set(card.try_ways(run, 900.0)) == set(tried)
    assert found == tried


# --- speed


def test_every_row_of_units_has_a_source():
    known = card.throughput()
    assert set(known["sources"]) == {*known["units"], "geforce_float64"}
    assert card.units_of("float64", 35) == 64
    assert card.units_of("float64", 35, geforce=True) == 8
    assert card.units_of("float32", 35, geforce=True) == 192
    assert card.units_of("float32", 36) == 0


# Multiprocessors, clock in GHz and TFLOP/s as NVIDIA's datasheets and whitepapers give them.
@pytest.mark.parametrize(
    ("name", "sm", "multiprocessors", "ghz", "tflops"),
    [
        ("float32", 35, 15, 0.745, 4.29),  # Tesla K40
        ("float64", 35, 15, 0.745, 1.43),
        ("float32", 37, 13, 0.562, 2.8),  # half a Tesla K80
        ("float32", 52, 24, 1.114, 6.8),  # Tesla M40
        ("float32", 60, 56, 1.303, 9.3),  # Tesla P100, PCIe
        ("float64", 60, 56, 1.303, 4.7),
        ("float32", 61, 28, 1.582, 11.3),  # GTX 1080 Ti
        ("float16", 70, 80, 1.53, 125),  # V100
        ("float32", 75, 40, 1.59, 8.1),  # T4
        ("bfloat16", 80, 108, 1.41, 312),  # A100
        ("tf32", 80, 108, 1.41, 156),
        ("float64", 80, 108, 1.41, 19.5),
        ("float16", 90, 132, 1.83, 989),  # H100 SXM
        ("float64", 90, 132, 1.98, 67),
        ("float32", 90, 132, 1.98, 67),
    ],
)
def test_peaks_are_those_of_the_datasheets(name, sm, multiprocessors, ghz, tflops):
    assert 2e-3 * card.units_of(name, sm) * multiprocessors * ghz == pytest.approx(tflops, rel=0.02)


@pytest.mark.parametrize(
    ("most", "item", "free", "rows"),
    [
        (8192, 4, 70 << 30, 8192),
        (8192, 4, 1 << 30, 8192),
        (8192, 4, (1 << 30) - 1, 4096),
        (4096, 8, 500 << 20, 2048),
        (8192, 4, 0, 8192),
        (8192, 4, 1, 512),
    ],
    ids=["H100", "just enough", "GT 710", "GT 710, float64", "not known", "nothing left"],
)
def test_a_product_whose_speed_is_measured_fits_into_the_cards_memory(most, item, free, rows):
    assert card.rows_that_fit(most, item, free) == rows


def test_a_share_below_the_limit_gets_a_warning():
    good = card.share_of_peak("product", 3.0, 4.29, "TFLOP/s", 0.4, "a debug build")
    assert good == "3 TFLOP/s, 70 % of the card's 4.29"
    assert not hasattr(good, "warning")
    slow = card.share_of_peak("product", 0.3, 4.29, "TFLOP/s", 0.4, "a debug build")
    assert slow.warning == "product below 40 % of what the card can do: a debug build"
    assert "not known" in card.share_of_peak("product", 3.0, 0.0, "TFLOP/s", 0.4, "")


# --- what it leaves


def test_a_warning_is_in_the_file_and_the_table(tmp_path, capsys):
    run = recorder.Recorder(str(tmp_path / "report.json"), {})
    assert run.run("speed", "copy", lambda: recorder.Warned("1 GB/s", "slow")) == "passed"
    (entry,) = json.loads((tmp_path / "report.json").read_text())["checks"]
    assert (entry["status"], entry["seen"], entry["warning"]) == ("passed", "1 GB/s", "slow")
    assert capsys.readouterr().out.startswith("warning  copy")


def test_sys_exit_in_a_check_is_a_failed_check(tmp_path):
    run = recorder.Recorder(str(tmp_path / "report.json"), {})
    assert run.run("package", "import", lambda: sys.exit(0)) == "failed"
    assert run.checks[0]["seen"] == "SystemExit: 0"


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals")
@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import sys; print('x'); sys.exit(3)", "exit code 3: x"),
    ],
)
def test_how_a_script_ended_is_said(tmp_path, line, seen):
    script = tmp_path / "own.py"
    script.write_text(line)
    with pytest.raises(recorder.FailedError) as caught:
        package.check_script(str(script))
    assert caught.value.seen == seen


@pytest.mark.skipif(os.name == "nt", reason="there are no sessions")
def test_the_end_of_a_script_is_seen_whatever_it_leaves_behind(tmp_path):
    """A server in a session of its own holds the script's output; it ends here when the test lets
    go of its input.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = tmp_path / "own.py"
    script.write_text(
        "import subprocess, sys\n"
        f"subprocess.Popen(['cat', {str(pipe)!r}], start_new_session=True)\n"
        "print('x' * 100_000)\nprint('done')\n"
    )
    found = []
    looking = threading.Thread(
        target=lambda: found.append(package.check_script(str(script))), daemon=True
    )
    looking.start()
    looking.join(60)
    seen = list(found)
    pipe.open("w").close()  # cat ends
    looking.join(60)
    assert [text[-6:] for text in seen] == ["x\ndone"]
