"""Which checks are run, in which order."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from . import compiled, features, matmul, operations, package, products, speed
from .driver import find_driver
from .jit import check_code
from .outcome import FAILED, PASSED, NotRunError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from .recorder import Recorder

# What a whole torch does on the card beside plain matrix products, in the order in which it is tried.
ON_THE_CARD: dict[str, Callable[[Any, str], str]] = {
    "matmul int8 on cuda": matmul.check_int8_matmul,
    "matmul float8 on cuda": matmul.check_float8_matmul,
    "strided matmul": matmul.check_strided,
    "batched matmul": matmul.check_batched,
    "empty matmul": matmul.check_empty,
    "2**31 elements": operations.check_large,
    "convolution through cuDNN": operations.check_convolution,
    "reduction": operations.check_reduction,
    "sort": operations.check_sort,
    "FFT": operations.check_fft,
    "indexing": operations.check_indexing,
    "training step on cuda": operations.check_training,
}


def run_checks(recorder: Recorder, options: argparse.Namespace) -> None:
    """All checks, in order. Without the module there is only one."""
    if options.imports or options.script:
        check_package(recorder, options)
        return
    loaded: list[Any] = []

    def load() -> str:
        loaded.append(importlib.import_module(options.module))
        file = str(getattr(loaded[0], "__file__", None))
        # Reports are kept where others read them: the place inside of the environment, not that of the environment.
        inside = file.startswith(sys.prefix + os.sep)
        return file[len(sys.prefix) + 1 :] if inside else os.path.basename(file)

    if recorder.run("package", "import", load) != PASSED:
        return
    module = loaded[0]
    recorder.run("package", "version", lambda: package.check_version(module, options.expect_version))
    recorder.run("package", "CUDA version", lambda: package.check_cuda_version(module, options.expect_cuda))
    recorder.run("package", "build configuration", lambda: package.check_config(module))
    recorder.run("package", "architectures", lambda: package.check_archs(module, options.expect_arch))
    if not options.gpu_only:
        check_cpu(recorder, module, options)
    limit_s = recorder.check_limit_s or 900
    code = functools.partial(check_code, module, recorder.document["facts"], options.module, limit_s)
    check_cuda(recorder, module, options.seed, options.cpu_only, code, options.expect_feature)


def check_package(recorder: Recorder, options: argparse.Namespace) -> None:
    """A package without torch's interface: its version, its imports and a script of its own."""
    recorder.run("package", "version", lambda: package.check_installed(options.module, options.expect_version))
    for name in options.imports:
        recorder.run("package", "import " + name, lambda name=name: package.check_import(name))  # type: ignore[misc]
    if options.script:
        recorder.run("package", "smoke script", lambda: package.check_script(options.script))


def check_cpu(recorder: Recorder, module: Any, options: argparse.Namespace) -> None:
    """The CPU part."""
    for name in products.FORMATS:
        check = functools.partial(products.check_matmul, module, name, "cpu", products.CPU_SIZES, options.seed)
        recorder.run("cpu", "matmul " + name + " on cpu", check)
    sizes = products.CPU_SIZES
    recorder.run("cpu", "matmul int32 on cpu", lambda: products.check_matmul_int(module, sizes, options.seed))
    if not is_torch(module):
        return
    recorder.run("cpu", "CPU capability", lambda: operations.cpu_capability(module))
    recorder.run("cpu", "complex products on cpu", lambda: operations.check_complex(module, "cpu"))
    recorder.run("cpu", "convolution on cpu", lambda: operations.check_convolution(module, "cpu"))
    recorder.run("cpu", "training step on cpu", lambda: operations.check_training(module, "cpu"))
    recorder.run("cpu", "quantized linear", lambda: operations.check_quantized(module, options.expect_quantized))
    recorder.run("cpu", "numpy bridge", lambda: operations.check_numpy(module))
    for name, of_feature in features.checks(module, options.expect_feature).items():
        recorder.run("cpu", name, of_feature)
    # On other systems only where a plan promises a whole torch: it takes up to a minute.
    if sys.platform == "win32" or options.expect_feature:
        recorder.run("cpu", "torch.compile on cpu", lambda: compiled.check_compile(module, "cpu"))


def check_cuda(
    recorder: Recorder,
    module: Any,
    seed: int,
    cpu_only: bool,
    code: Callable[[], str] | None = None,
    promised: Sequence[str] = (),
) -> None:
    """The GPU part. Where there is nothing to run it on, its checks say so and none passes.

    Args:
        recorder: Where the results go.
        module: The module under test.
        seed: Of the test data.
        cpu_only: Leave the GPU alone.
        code: The check for native code or JIT, which starts processes; None leaves it out.
        promised: The features that the plan promises.
    """
    reason = None

    def driver() -> str:
        if cpu_only:
            raise NotRunError("only the CPU part was asked for")
        if module.version.cuda is None:
            raise NotRunError("built without CUDA")
        return find_driver()[1]

    def needs_card(check: Callable[[], str]) -> Callable[[], str]:
        def guarded() -> str:
            if reason is not None:
                raise NotRunError(reason)
            return check()

        return guarded

    if recorder.run("cuda", "driver", driver) != PASSED:
        last = recorder.checks[-1]
        # From here on every check of the card says the same reason, and none is run.
        reason = last["reason"] or "the NVIDIA driver does not start"
    if recorder.run("cuda", "is_available", needs_card(lambda: package.check_available(module))) == FAILED:
        reason = "cuda.is_available() is not True"
    recorder.run("cuda", "devices", needs_card(lambda: package.check_devices(module)))
    recorder.run("cuda", "code for the device", needs_card(lambda: package.check_code_for_device(module)))
    if code is not None:
        # It starts two processes, each with the whole time of a check, and perhaps a short third.
        recorder.run("cuda", "native or JIT", needs_card(code), 2.2 * recorder.check_limit_s + 60)
    for name, check in {**features.card_checks(module, promised), **card_checks(module, seed)}.items():
        recorder.run("speed" if name.endswith(" speed") else "cuda", name, needs_card(check))


def card_checks(module: Any, seed: int) -> dict[str, Callable[[], str]]:
    """Computations on the card, by the names of the checks."""
    if not is_torch(module):
        return {
            f"matmul {name} on cuda": functools.partial(
                products.check_matmul, module, name, "cuda", products.CUDA_SIZES, seed
            )
            for name in products.FORMATS
        }
    checks: dict[str, Callable[[], str]] = {
        f"matmul {name} on cuda": functools.partial(matmul.check_wide_matmul, module, name, seed, "cuda")
        for name in matmul.MATMULS
    }
    checks.update({name: functools.partial(check, module, "cuda") for name, check in ON_THE_CARD.items()})
    checks["streams and events"] = functools.partial(operations.check_streams, module)
    checks["out of memory survived"] = functools.partial(operations.check_out_of_memory, module)
    for name in speed.throughput()["units"]:
        checks[f"{name} product speed"] = functools.partial(speed.check_matmul_speed, module, name)
    checks["torch.compile on cuda"] = functools.partial(compiled.check_compile, module, "cuda")
    checks["copy speed"] = functools.partial(speed.check_copy_speed, module)
    return checks


def is_torch(module: Any) -> bool:
    """A whole torch, not a module that only multiplies matrices."""
    return hasattr(module, "nn")
