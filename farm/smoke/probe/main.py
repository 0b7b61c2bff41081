"""The command line of the probe, and which checks are run in which order."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

from . import card, features, operations, package, products
from .card import check_code, find_driver, first_kernel
from .recorder import FAILED, PASSED, NotRunError, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What a whole torch does on the card beside plain matrix products, in the order in which it is
# tried.
ON_THE_CARD: dict[str, Callable[[Any, str], str]] = {
    "matmul int8 on cuda": products.check_int8_matmul,
    "matmul float8 on cuda": products.check_float8_matmul,
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
        # Reports are kept where others read them: the place inside of the environment, not that of
        # the environment.
        inside = file.startswith(sys.prefix + os.sep)
        if inside:
            return file[len(sys.prefix) + 1 :]
        return os.path.basename(file)

    if recorder.run("package", "import", load) != PASSED:
        return
    module = loaded[0]
    recorder.run(
        "package", "version", lambda: package.check_version(module, options.expect_version)
    )
    recorder.run(
        "package", "CUDA version", lambda: package.check_cuda_version(module, options.expect_cuda)
    )
    recorder.run("package", "build configuration", lambda: package.check_config(module))
    recorder.run(
        "package", "architectures", lambda: package.check_archs(module, options.expect_arch)
    )
    check_cpu(recorder, module, options)
    limit_s = recorder.time_limit_s or 900
    code = functools.partial(
        check_code, module, recorder.document["facts"], options.module, limit_s
    )
    check_cuda(recorder, module, options.cpu_only, code, options.expect_feature)


def check_package(recorder: Recorder, options: argparse.Namespace) -> None:
    """A package without torch's interface: its version, its imports and a script of its own."""
    recorder.run(
        "package",
        "version",
        lambda: package.check_installed(options.module, options.expect_version),
    )
    for name in options.imports:
        check = functools.partial(package.check_import, name)
        recorder.run("package", f"import {name}", check)
    if options.script:
        recorder.run("package", "smoke script", lambda: package.check_script(options.script))


def check_cpu(recorder: Recorder, module: Any, options: argparse.Namespace) -> None:
    """The CPU part."""
    for name in products.FORMATS:
        check = functools.partial(products.check_matmul, module, name, "cpu", products.CPU_SIZES)
        recorder.run("cpu", "matmul " + name + " on cpu", check)
    recorder.run(
        "cpu", "matmul int32 on cpu", lambda: products.check_matmul_int(module, products.CPU_SIZES)
    )
    if not is_torch(module):
        return
    recorder.run("cpu", "CPU capability", lambda: operations.cpu_capability(module))
    recorder.run("cpu", "complex products on cpu", lambda: operations.check_complex(module, "cpu"))
    recorder.run("cpu", "convolution on cpu", lambda: operations.check_convolution(module, "cpu"))
    recorder.run("cpu", "small floats on cpu", lambda: operations.check_small_floats(module))
    recorder.run("cpu", "training step on cpu", lambda: operations.check_training(module, "cpu"))
    recorder.run(
        "cpu",
        "quantized linear",
        lambda: operations.check_quantized(module, options.expect_quantized),
    )
    recorder.run("cpu", "numpy bridge", lambda: operations.check_numpy(module))
    for name, of_feature in features.checks(module, options.expect_feature).items():
        recorder.run("cpu", name, of_feature)
    # On other systems only where a plan promises a whole torch: it takes up to a minute.
    if sys.platform == "win32" or options.expect_feature:
        recorder.run("cpu", "torch.compile on cpu", lambda: features.check_compile(module, "cpu"))


def check_cuda(
    recorder: Recorder,
    module: Any,
    cpu_only: bool,
    code: Callable[[], str] | None = None,
    promised: Sequence[str] = (),
) -> None:
    """The GPU part. Where there is nothing to run it on, its checks say so and none passes.

    `code`: the check for native code or JIT, which starts processes; None leaves it out.
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
    if (
        recorder.run("cuda", "is_available", needs_card(lambda: package.check_available(module)))
        == FAILED
    ):
        reason = "cuda.is_available() is not True"
    recorder.run("cuda", "devices", needs_card(lambda: package.check_devices(module)))
    recorder.run(
        "cuda", "code for the device", needs_card(lambda: package.check_code_for_device(module))
    )
    if code is not None:
        recorder.run("cuda", "native or JIT", needs_card(code))
    for name, check in {**features.card_checks(module, promised), **card_checks(module)}.items():
        recorder.run("speed" if name.endswith(" speed") else "cuda", name, needs_card(check))


def card_checks(module: Any) -> dict[str, Callable[[], str]]:
    """Computations on the card, by the names of the checks."""
    if not is_torch(module):
        return {
            f"matmul {name} on cuda": functools.partial(
                products.check_matmul, module, name, "cuda", products.CUDA_SIZES
            )
            for name in products.FORMATS
        }
    checks: dict[str, Callable[[], str]] = {
        f"matmul {name} on cuda": functools.partial(
            products.check_wide_matmul, module, name, "cuda"
        )
        for name in products.MATMULS
    }
    checks.update(
        {name: functools.partial(check, module, "cuda") for name, check in ON_THE_CARD.items()}
    )
    for name in card.throughput()["units"]:
        checks[f"{name} product speed"] = functools.partial(card.check_matmul_speed, module, name)
    checks["torch.compile on cuda"] = functools.partial(features.check_compile, module, "cuda")
    checks["copy speed"] = functools.partial(card.check_copy_speed, module)
    return checks


def is_torch(module: Any) -> bool:
    """A whole torch, not a module that only multiplies matrices."""
    return hasattr(module, "nn")


SCHEMA = 1


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        allow_abbrev=False,
        description="Does an installed torch, or a module with its interface, work on this "
        "machine?",
        epilog="Exit codes: 0 no check failed, 1 a check failed or the time was over, 2 wrong "
        "arguments.",
    )
    arguments.add_argument("--module", default="torch", help="the module to test (default: torch)")
    arguments.add_argument("--json", metavar="FILE", help="write a report as well")
    arguments.add_argument(
        "--expect-version", metavar="VERSION", help="the version that must be installed"
    )
    arguments.add_argument(
        "--expect-cuda", metavar="X.Y", help="the CUDA version it must be built with, or none"
    )
    about = "what it must hold: sm_35 compute_35"
    arguments.add_argument("--expect-arch", nargs="+", default=[], metavar="ARCH", help=about)
    arguments.add_argument(
        "--expect-quantized", metavar="ENGINE", help="the quantized engine it must have: fbgemm"
    )
    repeated: dict[str, Any] = {"action": "append", "default": []}
    arguments.add_argument(
        "--expect-feature", metavar="NAME", help="must have this: gloo; may be repeated", **repeated
    )
    about = "without torch's interface: import this; may be repeated"
    arguments.add_argument("--import", dest="imports", metavar="MODULE", help=about, **repeated)
    arguments.add_argument(
        "--script", metavar="FILE", help="without torch's interface: run this; it must exit with 0"
    )
    arguments.add_argument("--cpu-only", action="store_true", help="leave out the GPU part")
    about = "for all checks; 0: none (default: 3600)"
    arguments.add_argument(
        "--time-limit", type=float, default=3600.0, metavar="SECONDS", help=about
    )
    arguments.add_argument("--first-kernel", action="store_true", help=argparse.SUPPRESS)
    return arguments


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # Started by `jit.run_first_kernel`: one kernel in a process of its own.
    if options.first_kernel:
        outcome = first_kernel(importlib.import_module(options.module))
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(outcome, file)
        return 0
    # Where the driver compiles PTX, a whole torch overflows the cache's usual size and would be
    # compiled again and again (CUDA C++ Programming Guide, "CUDA Environment Variables"). 4 GiB is
    # the largest size.
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
    document = {
        "schema": SCHEMA,
        "module": options.module,
        "facts": {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "system": platform.platform(),
            "machine": platform.machine(),
        },
    }
    recorder = Recorder(options.json, document, options.time_limit)
    run_checks(recorder, options)
    document["complete"] = True
    recorder.write()
    is_failed = any(check["status"] == FAILED for check in recorder.checks)
    return 1 if is_failed or document["skipped"] else 0
