"""torch.compile: does it make code of its own, and is the result right?

Asked on Windows, and of each card: it takes up to a minute, and on the CPU of a Linux machine what it needs is usual.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .outcome import FailedError, NotRunError


def check_compile(torch: Any, device: str) -> str:
    """A small model, compiled and as it is.

    Raises:
        NotRunError: Something that torch.compile needs is not there; the text names it.
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
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
    given = torch.ones(8, 16, device=device)
    with torch.no_grad():
        expected = model(given)
        try:
            result = torch.compile(model)(given)
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
        raise NotRunError("cl.exe is not on PATH: start this from the x64 Native Tools Command Prompt of Visual Studio")
    if not (os.environ.get("INCLUDE") and os.environ.get("LIB")):
        raise NotRunError(
            "cl.exe is there without INCLUDE and LIB: start this from the x64 Native Tools Command Prompt"
        )


def _require_cc() -> None:
    """Triton and Inductor compile what calls their code: with these, against Python.h."""
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        raise NotRunError("torch.compile needs a C compiler: apt-get install gcc libc6-dev")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise NotRunError("torch.compile needs Python.h: apt-get install python3-dev")


def _require_triton(torch: Any, windows: bool) -> None:
    capability = tuple(torch.cuda.get_device_capability())
    # README of triton-windows, section GPU; PyTorch's own refusal (torch/_inductor/exc.py, GPUTooOldForTriton).
    starts_at = (7, 5) if windows else (7, 0)
    if capability < starts_at:
        raise NotRunError("Triton starts at sm_{}{}, this card is sm_{}{}".format(*starts_at, *capability))
    if importlib.util.find_spec("triton") is None:
        which = (
            "triton-windows that farm doctor names" if windows else "triton that this release's official wheel requires"
        )
        raise NotRunError("triton is not installed: pip install the " + which)
