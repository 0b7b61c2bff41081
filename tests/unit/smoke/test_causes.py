"""Every kind of failure is told apart by the words that it really has, and has its own fix."""

import re
from pathlib import Path

import pytest
import yaml

from farm.smoke.runner import Check, SmokeReport, find_causes
from farm.wheel.explain.tables import placeholders, tables


def report(
    seen="", *, name="import", status="failed", outcome="failed", signal=None, tail="", more=()
):
    reason, text = (seen, None) if status == "not_run" else (None, seen)
    check = Check(
        group="x",
        name=name,
        status=status,
        seen=text,
        expected="no error",
        reason=reason,
        seconds=0,
    )
    return SmokeReport(
        module="torch", emulated=None, outcome=outcome, reason="failed: x", checks=(*more, check), signal=signal,
        output_tail=tail,
    )  # fmt: skip


def passed(name, seen):
    return Check(
        group="package",
        name=name,
        status="passed",
        seen=seen,
        expected=None,
        reason=None,
        seconds=0,
    )


# The words of Python, glibc, Windows, torch, CUDA and cuDNN themselves.
MESSAGES = {
    "ModuleNotFoundError: No module named 'torch'": "not-installed",
    'OSError: [WinError 126] The specified module could not be found. Error loading '
    '"C:\\e\\torch\\lib\\fbgemm.dll" or '
    "one of its dependencies.": "winerror-126",
    'OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error '
    'loading "c10.dll"':
        "winerror-1114",
    "RuntimeError: Numpy is not available": "numpy",
    "ImportError: /tmp/x.so: failed to map segment from shared object": "noexec",
    "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.1.0 as it may crash.": "numpy",
    "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory": "cudnn-missing",
    "Could not load library libcudnn_cnn_infer.so.8. Error: libcudnn_cnn_infer.so.8: cannot open": "cudnn-missing",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ARCH_MISMATCH": "cudnn-mismatch",
    "ImportError: libcublas.so.11: cannot open shared object file: No such file or directory": "library-missing",
    "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by "
    "libc10.so)": "glibc",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU": "driver-missing",
    "False: CUDA initialization: The NVIDIA driver on your system is too old (found version "
    "11040).": "driver-too-old",
    "False: CUDA error: cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA "
    "runtime version":
        "driver-too-old",
    "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.": "ptx-too-new",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "no-kernel-image",
    "RuntimeError: CUDA error: cudaErrorNoKernelImageForDevice: no kernel image is available": "no-kernel-image",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx( handle, "
    "opa, opb, m, n, k, "
    "&falpha, a, CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F, "
    "CUBLAS_GEMM_DFALT)`":
        "cublas-mismatch",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul( ltHandle": "cublas-lt",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling "
    "`cublasLtMatmulAlgoGetHeuristic( ": "cublas-lt",
    "Intel MKL FATAL ERROR: Cannot load libmkl_avx2.so or libmkl_def.so.": "mkl",
    "RuntimeError: operator torchvision::nms does not exist": "other-torch",
    "RuntimeError: No such operator torchvision::nms": "other-torch",
    "RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision": "other-torch",
    "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major "
    "versions. PyTorch has":
        "other-torch",
    "RuntimeError: No CUDA GPUs are available": "no-card",
    "AssertionError: Torch not compiled with CUDA enabled": "without-cuda",
    "RuntimeError: Found NVIDIA GeForce GTX 1080 Ti which is too old to be supported by the "
    "triton GPU compiler, which "
    "is used as the backend. Triton only supports devices of CUDA Capability >= 7.0": "triton",
    "RuntimeError: Compiler: cl is not found.": "torch-compile-cl",
    "RuntimeError: Torch.compile() is only support MSVC with English language pack,Please "
    "reinstall its language pack "
    "to English.": "torch-compile-language",
    "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nUnicodeDecodeError: "
    "'utf-8' codec "
    # pytorch/pytorch#145383
    "can't decode byte 0xff in position 54: invalid start byte": "torch-compile-language",
    "c:/t/x.cpp(1): fatal error C1083: Cannot open include file: 'algorithm': No such file or "
    "directory":
        "torch-compile-headers",
    "LINK : fatal error LNK1104: cannot open file 'MSVCRT.lib'": "torch-compile-libraries",
    "torch._inductor.exc.TritonMissing: Cannot find a working triton installation. Either the "
    "package is not installed":
        "triton-missing",
    "ERROR: torch-2.6.0-cp311-cp311-win_amd64.whl is not a supported wheel on this platform.": "other-platform",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA":
        "driver-not-loaded",
    "Failed to initialize NVML: Driver/library version mismatch": "driver-updated",
    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, "
    "e.g. changing env":
        "driver-stuck",
    "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
    "functions before calling "
    "NumCudaDevices() that might have already set an error? Error 804: forward compatibility was "
    "attempted on non "
    "supported HW": "forward-compatibility",
    "ModuleNotFoundError: No module named 'torch._C'": "source-folder",
    "ImportError: Failed to load PyTorch C extensions:\n    It appears that PyTorch has loaded "
    "the `torch/_C` folder\n"
    "    of the PyTorch repository rather than the C extensions": "source-folder",
    "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from "
    "C header, got 88 from "
    "PyObject": "numpy-size",
    "OMP: Error #15: Initializing libiomp5md.dll, but found libiomp5md.dll already initialized.": "openmp-twice",
    "RuntimeError: GET was unable to find an engine to execute this computation": "cudnn-engine",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`": "cublas-start",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": "cublas-start",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have "
    "updated the": "other-file",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized": "fabric-manager",
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable": "card-busy",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable": "card-busy",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "ecc",
    "RuntimeError: CUDA error: device-side assert triggered": "device-assert",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "illegal-access",
    "RuntimeError: CUDA error: unspecified launch failure": "illegal-access",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB": "out-of-memory",
}  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_has_one_cause_with_a_fix(message):
    (cause,) = find_causes(report(message), hung=False)
    assert cause.id == MESSAGES[message]
    assert cause.fix


@pytest.mark.parametrize("message", MESSAGES)
def test_the_same_words_in_the_output_of_a_crash_will_do(message):
    assert [cause.id for cause in find_causes(report("x", tail=message), hung=False)] == [
        MESSAGES[message]
    ]


@pytest.mark.parametrize("missing", ["torch", "companion_data.tables"])
def test_missing_requirements_are_blamed_not_the_wheel(missing):
    """`companion is not installed` sent users to look for a wheel that was there."""
    failed = report(f"ModuleNotFoundError: No module named '{missing}'").model_copy(
        update={"module": "companion"}
    )
    (cause,) = find_causes(failed, hung=False)
    assert (cause.id, cause.what.split(",")[0]) == ("dependency-missing", missing)
    own = report("ModuleNotFoundError: No module named 'companion'").model_copy(
        update={"module": "companion"}
    )
    assert [cause.id for cause in find_causes(own, hung=False)] == ["not-installed"]


def test_signals_and_hangs():
    assert [c.id for c in find_causes(report("x", signal="SIGILL"), hung=False)] == [
        "illegal-instruction"
    ]
    assert [c.id for c in find_causes(report("x", signal="SIGKILL"), hung=False)] == ["killed"]
    # A run that was ended by the watchdog is not a victim of the kernel's.
    assert [c.id for c in find_causes(report("x", signal="SIGKILL"), hung=True)] == ["hung"]


def test_a_hang_without_a_card_is_not_the_cards():
    (cause,) = find_causes(report("x", signal="SIGKILL"), hung=True, gpu=False)
    assert cause.id == "hung-cpu"
    assert not {"driver", "card", "PTX", "Xid"} & set(re.findall(r"\w+", cause.what + cause.fix))


def test_a_missing_driver_is_mentioned_even_if_nothing_failed():
    found = report("no NVIDIA driver", name="driver", status="not_run", outcome="passed")
    assert [cause.id for cause in find_causes(found, hung=False)] == ["driver-missing"]


def test_a_passed_check_has_no_cause():
    assert (
        find_causes(report("CUDA out of memory", status="passed", outcome="passed"), hung=False)
        == ()
    )


def test_the_fix_of_an_old_driver_names_the_driver_of_the_wheels_cuda():
    more = (passed("CUDA version", "12.8"),)
    (cause,) = find_causes(
        report("The NVIDIA driver on your system is too old", more=more), hung=False
    )
    assert "CUDA 12.8 needs driver 525" in cause.fix
    assert "ends at 470" in cause.fix


def test_no_kernel_image_names_what_the_wheel_holds_and_the_card():
    more = (passed("architectures", "sm_35"), passed("devices", "0: NVIDIA H200 (sm_90)"))
    (cause,) = find_causes(report("no kernel image is available", more=more), hung=False)
    assert cause.what == "the wheel holds no code for 0: NVIDIA H200 (sm_90); it holds sm_35"


def test_other_failures_get_their_cause():
    assert [c.id for c in find_causes(report("the NVIDIA driver sees no GPU"), hung=False)] == [
        "no-card"
    ]
    assert [c.id for c in find_causes(report("PTX JIT compilation was disabled"), hung=False)] == [
        "jit-off"
    ]


def test_every_row_is_reached_by_a_real_message_and_has_all_its_words():
    reports = yaml.safe_load(
        (Path(__file__).parents[1] / "wheel" / "loader_reports.yaml").read_text("utf-8")
    )
    tested = {
        *MESSAGES.values(),
        "illegal-instruction",
        "killed",
        "hung",
        "hung-cpu",
        "no-card",
        "jit-off",
    }
    tested |= {name.replace(" ", "-") for each in reports for name in each["is"]} | {
        "dependency-missing"
    }
    assert {row.id for row in tables().messages} == tested
    filled = placeholders([], "torch")
    assert not any(
        re.search(r"[{}]", (row.what + row.fix).format(**filled)) for row in tables().messages
    )


def test_braces_in_what_a_module_says_do_no_harm():
    more = (passed("architectures", "{0} {cuda} {"), passed("devices", "{}"))
    (cause,) = find_causes(report("no kernel image {module}", more=more), hung=False)
    assert "{0} {cuda} {" in cause.what


def test_a_driver_that_is_too_old_for_the_default_cuda():
    (cause,) = find_causes(
        report("CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
        hung=False,
    )
    assert "525 (CUDA 12)" in cause.fix
    assert "its CUDA" not in cause.what + cause.fix
