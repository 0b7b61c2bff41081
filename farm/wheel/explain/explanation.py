"""An explanation of each message that is recognised."""

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path

from farm.base.errors import UsageError
from farm.policy.rules import Frozen, Printable
from farm.wheel.explain.files import MAX_CULPRITS, Cause, Files
from farm.wheel.explain.hardware import kernels, on_load, wrong_machine
from farm.wheel.explain.linux import missing_file, named_file, symbol_version, undefined_symbol
from farm.wheel.explain.python import entry, module_not_found
from farm.wheel.explain.tables import matching_rows, placeholders
from farm.wheel.explain.windows import missing_dlls, missing_functions, runtimes
from farm.wheel.pe import fits

_MAX_MESSAGE = 64 << 10


class Explanation(Frozen):
    """One message, explained.

    `culprits`: The files that cause it, each with what is wrong; empty: none of these files does.
    """

    message: str  # what was recognised, such as `winerror 126`
    cause: Printable  # what it means here
    culprits: tuple[Printable, ...] = ()
    cure: Printable  # what to do


def explain(path: Path, message: str) -> tuple[Explanation, ...]:
    """Explain each error that is recognised in `message`, which may be a whole traceback; empty
    where none is.

    Args:
        path: A wheel, or the folder of an installed package.
        message: What the loader, Python, the kernel or CUDA wrote.

    Raises:
        UsageError: There is no such file or folder, or no library in it.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    files = Files(path)
    text = message[:_MAX_MESSAGE]
    module = path.name.partition("-")[0]
    explanations = []
    for row, match in matching_rows([text], module):
        if match is None:
            continue
        reason = None
        if row.looks:
            reason = _LOOKS[row.looks](files, match)
        cause, culprits, cure = reason or ("", _needing(files, row.needs), "")
        filled = placeholders([text], module)
        cause = cause or row.what.format(**filled)
        if not (cure and not cure.startswith(";")):
            cure = row.fix.format(**filled) + cure
        name = row.id.replace("-", " ")
        explanation = Explanation(
            message=name, cause=cause, culprits=tuple(culprits[:MAX_CULPRITS]), cure=cure
        )
        explanations.append((match.start(), explanation))
    explanations.sort(key=itemgetter(0))
    return tuple(explanation for _, explanation in explanations)


def _needing(files: "Files", patterns: Sequence[str]) -> list[str]:
    needing: list[str] = []
    if not patterns:
        return needing
    for library in files.libraries:
        for name in library.needed:
            if fits(name, tuple(patterns)):
                needing.append(f"{library.path} needs {name}")
    return needing


_LOOKS: dict[str, Callable[[Files, re.Match[str]], Cause]] = {
    "missing_dlls": missing_dlls,
    "missing_functions": missing_functions,
    "wrong_machine": wrong_machine,
    "runtimes": runtimes,
    "missing_file": missing_file,
    "undefined_symbol": undefined_symbol,
    "version": symbol_version,
    "kernels": kernels,
    "on_load": on_load,
    "named": named_file,
    "module": module_not_found,
    "entry": entry,
}
