"""torch.compile on Windows: does it make code of its own, and is the result right?

Elsewhere nothing is asked: the check compiles for up to a minute, and only Windows comes without a compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

from .outcome import FailedError, NotRunError

TRITON_STARTS_AT = (7, 5)  # README of triton-windows, section GPU


def check_compile(torch: Any, device: str) -> str:
    """A small model, compiled and as it is.

    Raises:
        NotRunError: Something that torch.compile needs is not there; the text names it.
    """
    if not hasattr(torch, "compile"):
        raise NotRunError("this torch has no torch.compile: 2.0 was the first")
    if shutil.which("cl") is None:
        raise NotRunError("cl.exe is not on PATH: start this from the x64 Native Tools Command Prompt of Visual Studio")
    if not (os.environ.get("INCLUDE") and os.environ.get("LIB")):
        raise NotRunError(
            "cl.exe is there without INCLUDE and LIB: start this from the x64 Native Tools Command Prompt"
        )
    if device == "cuda":
        capability = tuple(torch.cuda.get_device_capability())
        if capability < TRITON_STARTS_AT:
            raise NotRunError("Triton starts at sm_75, this card is sm_{}{}".format(*capability))
        if importlib.util.find_spec("triton") is None:
            raise NotRunError("triton is not installed: pip install the triton-windows that farm doctor names")
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
