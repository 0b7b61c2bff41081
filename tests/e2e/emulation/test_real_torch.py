"""The probe against a real torch: on this CPU, on emulated old ones, and every check of a card run
on the CPU.

The checks of the GPU part take a device, so that here they can be tried with torch's CPU kernels:
each must pass, and must fail once an operation that it is about gives a slightly wrong result.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base.zipapps import pack
from farm.smoke.environment import make_environment
from farm.smoke.probe import products
from farm.smoke.runner import PROBE, Expectation, run_probe

VERSION = "2.13.0"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment with torch from the installer's own default index."""
    made = make_environment(tmp_path_factory.mktemp("torch") / "env", Path(sys.executable))
    command = [sys.executable, "-m", "pip", "-q", "--python", str(made), "install", "--no-compile"]
    command += [f"torch=={VERSION}", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        reason = f"torch {VERSION} is not to be had: {done.stderr[-500:]}"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)
    return made


def test_everything_of_the_cpu_part_passes_here(python):
    report = run_probe(python, module="torch", expect=Expectation(), timeout_s=600)
    cpu = {
        check.name: (check.status, check.seen) for check in report.checks if check.group == "cpu"
    }
    assert report.outcome == "passed", report.reason
    assert {status for status, _ in cpu.values()} == {"passed"}
    assert set(cpu) >= {
        "complex products on cpu",
        "convolution on cpu",
        "quantized linear",
        "numpy bridge",
        "training step on cpu",
    }


@pytest.mark.parametrize(
    ("model", "capability"),
    [("Nehalem", "DEFAULT"), ("SandyBridge", "DEFAULT"), ("Haswell", "AVX2")],
)
def test_old_cpus(python, emulator, model, capability):
    report = run_probe(python, module="torch", expect=Expectation(), timeout_s=1800, emulate=model)
    assert report.outcome == "passed", report.reason
    assert [check.seen for check in report.checks if check.name == "CPU capability"] == [capability]


def test_the_engine_that_a_variant_promises_must_be_there(python, emulator):
    """fbgemm needs AVX2: a wheel that promises it does not keep that on Sandy Bridge."""
    report = run_probe(
        python,
        module="torch",
        expect=Expectation(quantized="fbgemm"),
        timeout_s=1800,
        emulate="SandyBridge",
    )
    (failed,) = [check for check in report.checks if check.status == "failed"]
    assert (failed.name, failed.expected) == ("quantized linear", "the engine fbgemm")


CHECKS = {
    **{f"wide {name}": f"check_wide_matmul(torch, {name!r}, 'cpu')" for name in products.MATMULS},
    **{
        name: f"check_{name}(torch, 'cpu')"
        for name in (
            "int8_matmul", "float8_matmul", "complex", "convolution", "reduction", "sort", "fft", "indexing", "training",
        )
    },
    "small floats": "check_small_floats(torch)",
}  # fmt: skip

# What each check must notice: an operation of torch, and what is done to its result.
LOW = "result.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64)"
SPOIL = {
    **{f"wide {name}": ("torch.Tensor.__matmul__", "result + 2e-2 * result.abs().max()", LOW)
       for name in ("float16", "bfloat16")},
    **{f"wide {name}": ("torch.Tensor.__matmul__", "result * (1 + 1e-4)", LOW) for name in ("float32", "complex64")},
    "wide tf32": ("torch.Tensor.__matmul__", "result * (1 + 1e-2)", LOW),
    "wide float64": ("torch.Tensor.__matmul__", "result.float().double()", "next(count) == 0"),
    "wide complex128": ("torch.Tensor.__matmul__", "result.to(torch.complex64).to(result.dtype)", "next(count) == 0"),
    "int8_matmul": ("torch._int_mm", "result + 1", "True"),
    "float8_matmul": ("torch._scaled_mm", "result * 1.2", "True"),
    "complex": ("torch.dot", "result * 0", "True"),
    "convolution": ("torch.nn.functional.conv2d", "result * 1.01", LOW),
    "reduction": ("torch.Tensor.sum", "result * (1 + 1e-4)", LOW),
    "sort": ("torch.sort", "(result[0], result[1].flip(0))", "result[0].numel() > 1 and next(count) == 0"),
    "fft": ("torch.fft.fft", "result * (1 + 1e-3)", LOW),
    "indexing": ("torch.Tensor.index_put", "result + 1", "next(count) == 0"),
    "training": ("torch.autograd.grad", "tuple(slope * 0 for slope in result)", "True"),
    "small floats": ("torch.nn.functional.linear", "result * 1.5", "result.dtype == torch.bfloat16"),
}  # fmt: skip

SCRIPT = """
import functools, itertools, json, sys, torch
sys.path.insert(0, sys.argv[1])
from farm_probe import operations, products, recorder
from probe_checks import CHECKS, SPOIL
def run(code):
    try:
        return ["passed", eval(code, {"torch": torch, **vars(products), **vars(operations)})]
    except recorder.FailedError as error:
        return ["failed", error.seen]
    except Exception as error:
        return ["error", repr(error)]
def spoiled(name):
    where, what, when = SPOIL[name]
    place, _, function = where.rpartition(".")
    owner, count = eval(place), itertools.count()
    true = getattr(owner, function)
    @functools.wraps(true)
    def wrong(*args, **kwargs):
        result = true(*args, **kwargs)
        names = {"torch": torch, "result": result, "count": count}
        return eval(what, names) if eval(when, names) else result
    setattr(owner, function, wrong)
    try:
        return run(CHECKS[name])
    finally:
        setattr(owner, function, true)
print(json.dumps({name: [run(code), spoiled(name)] for name, code in CHECKS.items()}))
"""


@pytest.fixture(scope="module")
def found(python, tmp_path_factory):
    """Each check's name -> what it said of a right torch, and of a spoiled one."""
    folder = tmp_path_factory.mktemp("checks")
    (folder / "probe_checks.py").write_text(f"CHECKS = {CHECKS!r}\nSPOIL = {SPOIL!r}\n")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "probe.pyz").write_bytes(pack(PROBE))
    command = [str(python), str(folder / "script.py"), str(folder / "probe.pyz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_of_the_card_passes_with_right_results(found, name):
    assert found[name][0][0] == "passed", found[name][0]


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_of_the_card_notices_wrong_results(found, name):
    assert found[name][1][0] == "failed", found[name][1]
