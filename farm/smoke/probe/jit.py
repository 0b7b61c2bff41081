"""Is it the wheel's own machine code that the card runs, or PTX that the driver compiled?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from .outcome import FailedError, Warned
from .package import arch_list, python_command
from .recorder import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

# CUDA C++ Programming Guide, "CUDA Environment Variables". Without the cache, so that the first call is a first call.
WAYS = {
    "ordinary": {},
    "without JIT": {"CUDA_DISABLE_PTX_JIT": "1"},
    "JIT only": {"CUDA_FORCE_PTX_JIT": "1"},
}
PTX_AS_WELL_S = 60.0


def first_kernel(module: Any) -> dict[str, Any]:
    """Runs the first kernel of the module's own in this process: seconds, and what came of it."""
    found: dict[str, Any] = {"ok": False, "error": None, "first_s": None, "second_s": None}
    whole = hasattr(module, "nn")
    try:
        if whole:  # torch's own kernel; its products are those of cuBLAS
            x = module.full((17, 17), 3.0).cuda()
        else:
            x = module.tensor([[1.0] * 17 for _ in range(17)], dtype=module.float32, device="cuda")
        right = 7.0 if whole else 17.0
        for name in ("first_s", "second_s"):
            started = time.perf_counter()
            rows = (x * 2 + 1 if whole else x @ x).cpu().tolist()
            found[name] = time.perf_counter() - started
            if any(value != right for row in rows for value in row):
                found["error"] = "wrong numbers"
                return found
        found["ok"] = True
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:MAX_TEXT]
    return found


def run_first_kernel(module_name: str, way: dict[str, str], limit_s: float) -> dict[str, Any]:
    """`first_kernel` in a process of its own, with the driver set to find code that way."""
    environ = {**os.environ, "CUDA_CACHE_DISABLE": "1", **way}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "found.json")
        # The program that runs: the packed file, or the package's folder.
        command = [*python_command(), os.path.abspath(sys.argv[0])]
        command += [f"--module={module_name}", f"--json={file}", "--first-kernel"]
        try:
            child = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environ, timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": f"did not finish in {limit_s:.3g} s"}
        try:
            with open(file, encoding="utf-8") as stream:
                return dict(json.load(stream))
        except (OSError, ValueError):
            printed = child.stdout.decode("utf-8", "replace")[-500:]
            return {"ok": False, "error": f"ended with {child.returncode}: {printed}"}


def try_ways(run: Callable[[str, float], dict[str, Any]], limit_s: float) -> dict[str, dict[str, Any]]:
    """One result for each way that is needed; `run(way, seconds)` gives it.

    Each way may compile every kernel of the module anew, which takes minutes. So none is tried whose answer follows
    from another: code that runs without JIT also runs in the ordinary way, and where it does not, the ordinary way
    is JIT. Whether the PTX of a wheel with machine code serves as well is worth a minute, not more.
    """
    found = {"without JIT": run("without JIT", limit_s)}
    if found["without JIT"]["ok"]:
        found["JIT only"] = run("JIT only", min(limit_s, PTX_AS_WELL_S))
    else:
        found["ordinary"] = run("ordinary", limit_s)
    return found


def judge_code(found: dict[str, dict[str, Any]], archs: list[str], sm: str) -> tuple[str, str]:
    """The kind of code that serves the card: (`native` or `jit`, text), from the results of `try_ways`.

    Raises:
        FailedError: Nothing does.
    """
    holds = " ".join(archs) or "nothing"
    plain = found["without JIT"]
    if plain["ok"]:
        forced = found["JIT only"]
        more = "no PTX that serves"
        if forced["ok"]:
            more = "has PTX as well ({:.3f} s with it)".format(forced["first_s"])
        elif "did not finish" in str(forced["error"]):
            more = "its PTX {}".format(forced["error"])
        return "native", f"its own SASS serves {sm}: {times(plain)}; {more}"
    ordinary = found["ordinary"]
    if ordinary["ok"]:
        text = (
            f"no SASS for {sm} in the wheel ({holds}): the driver compiled its PTX at the first use: {times(ordinary)}"
        )
        why = (
            "every first run compiles PTX, which takes minutes with a whole torch; later ones find it in the driver's "
            f"cache (set CUDA_CACHE_MAXSIZE=4294967296 to hold it all). A wheel with SASS for {sm} needs none of this, "
            "and PTX of a newer toolkit than the driver's cannot be compiled at all"
        )
        return "jit", Warned(text, why)
    error = str(ordinary["error"])
    if re.search("no kernel image|NoKernelImage", error):
        raise FailedError(f"no kernel image for {sm}: the wheel holds {holds} ({error})", f"code for {sm}")
    if re.search("unsupported toolchain|UnsupportedPtxVersion", error):
        text = f"the wheel has no SASS for {sm}, and its PTX is newer than the driver can compile"
        raise FailedError(f"{text}; it holds {holds} ({error})", f"SASS for {sm}, or a newer driver")
    raise FailedError(error, "a kernel that runs")


def times(result: dict[str, Any]) -> str:
    return "first kernel {first_s:.3f} s, then {second_s:.4f} s".format(**result)


def check_code(module: Any, facts: dict[str, str], module_name: str, limit_s: float) -> str:
    """Is it the wheel's own machine code that the card runs, or PTX that the driver compiled?

    `limit_s`: for each process that is started, seconds.
    """
    facts["code"] = "none"
    found = try_ways(lambda way, seconds: run_first_kernel(module_name, WAYS[way], seconds), limit_s)
    for way, result in found.items():
        facts[f"first kernel, {way}"] = json.dumps(result)[:MAX_TEXT]
    capability = tuple(module.cuda.get_device_capability(0))
    facts["code"], text = judge_code(found, arch_list(module), "sm_{}{}".format(*capability))
    return text
