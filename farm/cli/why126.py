"""`farm inspect --why-126`: what is missing, in words."""

from farm.cli import show
from farm.wheel.explain import Diagnosis

_WHEN = {
    "load": "importing fails with WinError 126",
    "call": "delay-loaded: the first call into it fails",
    "name": "loaded by name: the function that asks for it fails",
}


def explain(found: Diagnosis) -> None:
    """Every missing DLL: who needs it, how the loader comes to it, and where it is to be had."""
    if not found.missing:
        show.say(f"{found.where}: no DLL is missing; Windows can load everything in it")
        return
    for item in found.missing:
        show.say(f"{item.name} is missing ({_WHEN[item.when]})")
        show.say(f"  needed by: {', '.join(item.needed_by)}")
        if item.chain:
            show.say(f"  chain: {' -> '.join(item.chain)}")
        if item.elsewhere:
            show.say(f"  there is one at {item.elsewhere}, where Windows does not look")
        show.say(f"  get it from: {item.source or 'unknown: look for the name in the build environment'}")
    if found.named:
        verdict = "it is innocent: it is only the first file whose chain of imports is broken"
        if not found.innocent:
            verdict = "it is there; what it needs is not"
        show.say(f"Python's message names {found.named}: {verdict}")
