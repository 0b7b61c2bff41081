"""The features that the plan promises: are they in the module, and do they work? And torch.compile.

What a child process does stands in `CHILDREN`: two of them talk to each other, or the libraries
read variables of the environment when they are loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .package import python_command
from .recorder import FailedError, NotRunError, Warned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


CHILD_S = (
    600.0  # an emulated CPU imports torch in half a minute; the limit of the check comes before
)

CHILDREN = {
    # All-reduce: the sum of 1 and 2, over a store of c10d whose port the parent chose.
    "all-reduce": """
import datetime, importlib, sys
name, backend, rank, port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch = importlib.import_module(name)
dist = importlib.import_module(name + ".distributed")
store = dist.TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=300))
device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(device)
limit = datetime.timedelta(seconds=300)
dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=limit)
x = torch.full((1000,), float(rank + 1), device=device)
dist.all_reduce(x)
print("sum", sorted(set(x.tolist())))
dist.destroy_process_group()
""",
    # oneDNN and BLAS say what they do where these variables are set before they are loaded.
    "verbose": """
import importlib, sys
torch = importlib.import_module(sys.argv[1])
torch.manual_seed(1)
conv, lstm = torch.nn.Conv2d(32, 32, 3), torch.nn.LSTM(32, 32, batch_first=True)
images, words = torch.randn(4, 32, 32, 32), torch.randn(4, 8, 32)
with torch.no_grad():
    results = conv(images), lstm(words)[0]
    torch.nn.Linear(64, 64).bfloat16()(torch.ones(8, 64).bfloat16())
    torch.ones(128, 128) @ torch.ones(128, 128)
    with torch.backends.mkldnn.flags(enabled=False):
        for result, plain in zip(results, (conv(images), lstm(words)[0])):
            assert torch.allclose(result, plain, rtol=1e-3, atol=1e-4), (result - plain).abs().max()
""",
    # CPU seconds for each second of the clock, with one thread: above one, a library starts threads
    # of its own.
    "threads": """
import importlib, sys, time
torch = importlib.import_module(sys.argv[1])
torch.set_num_threads(1)
a = torch.ones(700, 700)
for _ in range(3):
    a @ a
wall, cpu, n = time.perf_counter(), time.process_time(), 0
while time.perf_counter() - wall < 0.5:
    a @ a
    torch.linalg.inv(a + 700 * torch.eye(700))
    n += 1
print((time.process_time() - cpu) / (time.perf_counter() - wall))
""",
}


def _engine(name: str, torch: Any) -> bool:
    return name in [str(engine) for engine in torch.backends.quantized.supported_engines]


PRESENT: dict[str, Callable[[Any], Any]] = {
    "onednn": lambda torch: torch.backends.mkldnn.is_available(),
    "mkl": lambda torch: torch.backends.mkl.is_available(),
    "distributed": lambda torch: torch.distributed.is_available(),
    "gloo": lambda torch: torch.distributed.is_gloo_available(),
    "tensorpipe": lambda torch: hasattr(torch._C, "_distributed_rpc"),
    "nccl": lambda torch: torch.distributed.is_nccl_available(),
    "kineto": lambda torch: torch.autograd.profiler.kineto_available(),
    "itt": lambda torch: torch.profiler.itt.is_available(),
    "xnnpack": lambda torch: torch._C._is_xnnpack_enabled(),
    "qnnpack": functools.partial(_engine, "qnnpack"),
    "fbgemm": functools.partial(_engine, "fbgemm"),
    "nnpack": lambda torch: torch._nnpack_available(),
    "magma": lambda torch: torch.cuda.has_magma,
}
"""How the module says that it has a feature; of the others it says nothing."""


def check_present(torch: Any, promised: Sequence[str]) -> str:
    """The module has what the plan promises."""
    testable = []
    missing = []
    for name in promised:
        is_there = PRESENT.get(name)
        if is_there is None:
            continue
        testable.append(name)
        if not is_there(torch):
            missing.append(name)

    if missing:
        raise FailedError("without " + " ".join(missing), "has " + " ".join(testable))
    return " ".join(testable)


def check_all_reduce(torch: Any, backend: str) -> str:
    """Two processes add their tensors."""
    if backend == "nccl" and torch.cuda.device_count() < 2:
        raise NotRunError("it needs two cards")
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    arguments = [torch.__name__, backend]
    started = time.perf_counter()
    children = [_start("all-reduce", [*arguments, str(rank), str(store.port)]) for rank in (0, 1)]
    for child, output in children:
        printed = _ended(child, output)
        if "sum [3.0]" not in printed:
            raise FailedError(printed[-1500:] or "nothing", "sum [3.0]")
    return f"two processes added 1 and 2 in {time.perf_counter() - started:.1f} s"


def check_profiler(torch: Any, device: str) -> str:
    """A trace of a product names the operation, and on a card its kernels."""
    kinds = torch.profiler.ProfilerActivity
    x = torch.ones(256, 256, device=device)
    with torch.profiler.profile(
        activities=[kinds.CPU] + [kinds.CUDA] * (device == "cuda")
    ) as profile:
        (x + x).sum().item()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(file)
        with open(file, encoding="utf-8") as stream:
            events = json.load(stream)["traceEvents"]
    names = set()
    kernels = 0
    for event in events:
        names.add(str(event.get("name")))
        if event.get("cat") == "kernel":
            kernels += 1

    if "aten::add" not in names:
        raise FailedError(f"{len(events)} events, none of them aten::add", "aten::add in the trace")
    if device == "cuda" and not kernels:
        raise FailedError(f"{len(events)} events, no kernel among them", "kernels in the trace")
    return f"{len(events)} events" + (f", {kernels} kernels" if device == "cuda" else "")


def check_onednn(torch: Any) -> str:
    """Convolution runs in oneDNN, its own words say by which code; the results are those without
    oneDNN.
    """
    printed = _ended(*_start("verbose", [torch.__name__], ONEDNN_VERBOSE="1", DNNL_VERBOSE="1"))
    # onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,…; older ones have no v1.
    done = [line.split(",") for line in printed.splitlines() if ",exec,cpu," in line]
    used = sorted(
        {
            f"{word[i + 2]} {word[i + 3]}"
            for word in done
            for i in [word.index("exec")]
            if len(word) > i + 3
        }
    )
    if not any(primitive.startswith("convolution ") for primitive in used):
        raise FailedError(printed[-500:] or "oneDNN said nothing", "a convolution in oneDNN")
    isa = [line.partition("isa:")[2] for line in printed.splitlines() if "isa:" in line]
    return "; ".join([*isa[:1], *used])


LEVELS = (
    ("AVX-512", "Advanced Vector Extensions 512"),
    ("AVX2", "Advanced Vector Extensions 2"),
    ("AVX", "Advanced Vector Extensions"),
    ("SSE4", "Streaming SIMD Extensions 4"),
)
"""Instruction sets as oneDNN and as MKL name them, the newest first."""

OLD_KERNELS = {
    "prescott",
    "core2",
    "penryn",
    "dunnington",
    "nehalem",
    "atom",
    "generic",
    "opteron",
    "opteron_sse3",
}
"""Kernels of OpenBLAS for CPUs without AVX: what it takes where it does not know the CPU."""


def check_mkl(torch: Any) -> str:
    """Which code MKL takes on this CPU; older code than oneDNN takes is a warning."""
    variables = {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1"}
    return mkl_code(_ended(*_start("verbose", [torch.__name__], **variables)))


def mkl_code(printed: str) -> str:
    """The code path that MKL took, from the output of MKL_VERBOSE and ONEDNN_VERBOSE."""
    line = next(
        (
            line
            for line in printed.splitlines()
            if line.startswith("MKL_VERBOSE") and " for " in line
        ),
        None,
    )
    if line is None or "GEMM" not in printed:
        raise FailedError(printed[-500:] or "MKL said nothing", "a product in MKL")
    code_path = line.partition(" for ")[2][:150]
    isa = printed.partition("isa:")[2].partition("\n")[0]
    has, used = (
        next(
            (place for place, names in enumerate(LEVELS) if any(name in text for name in names)),
            len(LEVELS),
        )
        for text in (isa, code_path)
    )
    # On CPUs of other makers it names no code, whatever it takes.
    if isa and used > has and "Architecture processors" not in code_path:
        return Warned(
            code_path,
            f"MKL takes older code on this CPU, which has {LEVELS[has][0]}: products are slower",
        )
    return code_path


def check_openblas(torch: Any) -> str:
    """Which kernels OpenBLAS takes; those for older CPUs, where the CPU has AVX2, are a warning."""
    library = _mapped("libopenblas", os.path.dirname(str(getattr(torch, "__file__", ""))))
    if library is None:
        raise NotRunError("no OpenBLAS is loaded")
    loaded = ctypes.CDLL(library)
    if not hasattr(loaded, "openblas_get_corename"):
        raise NotRunError(f"{os.path.basename(library)} does not name its kernels")
    loaded.openblas_get_corename.restype = ctypes.c_char_p
    core = loaded.openblas_get_corename().decode("utf-8", "replace")
    return openblas_code(core, torch.backends.cpu.get_cpu_capability())


def openblas_code(core: str, capability: str) -> str:
    """The code path of OpenBLAS, from its name of the kernels and torch's word for the CPU."""
    if core.lower() in OLD_KERNELS and capability.startswith("AVX"):
        return Warned(
            core,
            f"OpenBLAS does not know this CPU, which has {capability}: products are much slower",
        )
    return core


def _mapped(name: str, beside: str) -> str | None:
    """The file of a library of this process, by the begin of its name; None: it is not loaded, or
    nothing tells.

    Numpy has an OpenBLAS of its own: what lies in `torch` or `torch.libs` (`beside`) comes first.
    """
    matches = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                file = line.split(maxsplit=5)[-1].strip()
                if os.path.basename(file).startswith(name):
                    matches.append(file)
    except OSError:
        return None
    return min(matches, key=lambda file: not file.startswith(beside), default=None)


def check_threads(torch: Any) -> str:
    """`set_num_threads(1)` means one thread, in the BLAS as well."""
    if (os.cpu_count() or 1) < 2:
        raise NotRunError("this machine has one CPU")
    cpus = float(_ended(*_start("threads", [torch.__name__])).split()[-1])
    if cpus > 1.3:
        raise FailedError(f"one thread asked for, {cpus:.1f} CPUs used", "1 CPU")
    return f"one thread asked for, {cpus:.2f} CPUs used"


def _asked_for(
    available: dict[str, tuple[str, Callable[[], str]]], promised: Sequence[str]
) -> dict[str, Callable[[], str]]:
    """The checks of promised features, by name."""
    selected = {}
    for name, (feature, check) in available.items():
        if feature in promised:
            selected[name] = check
    return selected


def checks(torch: Any, promised: Sequence[str]) -> dict[str, Callable[[], str]]:
    """The checks of the CPU part, by name: those that the promised features ask for."""
    available: dict[str, tuple[str, Callable[[], str]]] = {
        "all-reduce by gloo": ("gloo", functools.partial(check_all_reduce, torch, "gloo")),
        "profiler": ("kineto", functools.partial(check_profiler, torch, "cpu")),
        "oneDNN": ("onednn", functools.partial(check_onednn, torch)),
        "MKL": ("mkl", functools.partial(check_mkl, torch)),
        "threads": ("mkl", functools.partial(check_threads, torch)),
    }
    selected = _asked_for(available, promised)
    if promised and "mkl" not in promised:
        selected["OpenBLAS"] = functools.partial(check_openblas, torch)
    if promised:
        return {"features": functools.partial(check_present, torch, promised), **selected}
    return {}


def card_checks(torch: Any, promised: Sequence[str]) -> dict[str, Callable[[], str]]:
    """The checks of the GPU part, by name."""
    available: dict[str, tuple[str, Callable[[], str]]] = {
        "all-reduce by NCCL": ("nccl", functools.partial(check_all_reduce, torch, "nccl")),
        "profiler on cuda": ("kineto", functools.partial(check_profiler, torch, "cuda")),
    }
    return _asked_for(available, promised)


def _start(
    name: str, arguments: list[str], **variables: str
) -> tuple[subprocess.Popen[bytes], Any]:
    # Not a pipe, which fills while the other process is waited for; `_ended` closes it.
    output = tempfile.TemporaryFile()  # noqa: SIM115
    command = [*python_command(), "-c", CHILDREN[name], *arguments]
    environ = {**os.environ, **variables}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ
    ), output


def _ended(child: subprocess.Popen[bytes], output: Any) -> str:
    try:
        child.wait(CHILD_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        raise FailedError(f"a process did not end in {CHILD_S:g} s", "an end") from None
    with output:
        output.seek(0)
        printed = str(output.read().decode("utf-8", "replace"))
    if child.returncode:
        raise FailedError(f"exit code {child.returncode}: {printed[-1500:]}", "exit code 0")
    return printed


def check_compile(torch: Any, device: str) -> str:
    """torch.compile: does it make code of its own, and is the result that of the small model as it
    is?

    Asked on Windows, and of each card: it takes up to a minute, and on a Linux machine's CPU what
    it needs is usual.
    """
    if not hasattr(torch, "compile"):
        raise NotRunError("this torch has no torch.compile: 2.0 was the first")
    windows = sys.platform == "win32"
    if windows:
        _require_cl()
    if device == "cuda":
        _require_triton(torch, windows)
    if not windows:
        _require_cc()
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    ).to(device)
    inputs = torch.ones(8, 16, device=device)
    with torch.no_grad():
        expected = model(inputs)
        try:
            result = torch.compile(model)(inputs)
        except RuntimeError as error:
            lines = str(error).strip().splitlines()
            if lines and "supported" in lines[0]:  # torch's own word on this system or this Python
                raise NotRunError(lines[0][:200]) from None
            raise
    if not torch.allclose(result, expected, rtol=1e-4, atol=1e-5):
        raise FailedError("the compiled model gives another result", "what it gives uncompiled")
    return "two layers compiled; the same result"


def _require_cl() -> None:
    if shutil.which("cl") is None:
        raise NotRunError(
            "cl.exe is not on PATH: start this from the x64 Native Tools Command Prompt of Visual "
            "Studio"
        )
    if not (os.environ.get("INCLUDE") and os.environ.get("LIB")):
        raise NotRunError(
            "cl.exe is there without INCLUDE and LIB: start it from the x64 Native Tools Command "
            "Prompt"
        )


def _require_cc() -> None:
    """Triton and Inductor compile what calls their code: with these, against Python.h."""
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        raise NotRunError("torch.compile needs a C compiler: apt-get install gcc libc6-dev")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise NotRunError("torch.compile needs Python.h: apt-get install python3-dev")


def _require_triton(torch: Any, windows: bool) -> None:
    capability = tuple(torch.cuda.get_device_capability())
    # README of triton-windows, section GPU; PyTorch's own refusal (torch/_inductor/exc.py,
    # GPUTooOldForTriton).
    if windows:
        starts_at = (7, 5)
    else:
        starts_at = (7, 0)
    if capability < starts_at:
        raise NotRunError(
            "Triton starts at sm_{}{}, this card is sm_{}{}".format(*starts_at, *capability)
        )
    if importlib.util.find_spec("triton") is None:
        if windows:
            which = "triton-windows that farm doctor names"
        else:
            which = "triton that this release's official wheel requires"
        raise NotRunError("triton is not installed: pip install the " + which)
