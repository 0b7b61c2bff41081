"""A cache of the farm's own parsed YAML files, beside them, as Python keeps compiled modules.

Parsing the catalogue takes longer than most questions to it. A file of the package that was read and checked once is
kept as JSON in `__pycache__`, with the sha256 of its text: a file that changed is read again. Nothing is kept of files
of a project, nor where Python itself keeps nothing (`PYTHONDONTWRITEBYTECODE`, a folder that may not be written).
"""

import contextlib
import hashlib
import json
import os
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]


def is_own(path: Path) -> bool:
    """True if it is a file of the package: a test checks those, what others write is checked each time."""
    return str(path).startswith(str(FOLDER) + os.sep)


def read(path: Path, raw: bytes) -> bytes | None:
    """The cached JSON of the file whose content is `raw`; None: there is none."""
    if not is_own(path):
        return None
    try:
        digest, _, text = _place(path).read_bytes().partition(b"\n")
        return text if digest == _digest(raw) else None
    except OSError:
        return None


def plain(path: Path) -> Any:
    """The plain data of a YAML file of the package, whose shape a test knows; keys are words, as JSON has them."""
    raw = path.read_bytes()
    with contextlib.suppress(ValueError):  # damaged
        if kept := read(path, raw):
            return json.loads(kept)
    import yaml  # noqa: PLC0415 (its import takes as long as reading the libraries of a wheel)

    data = yaml.load(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe)
    keep(path, raw, data)
    return data


def keep(path: Path, raw: bytes, data: Any) -> None:
    """Keep what the file's content `raw` was parsed to, where that can be done: no one needs it."""
    if not is_own(path) or sys.dont_write_bytecode:
        return
    place = _place(path)
    # A name for each process: several may keep the same file at once, and the last rename wins.
    part = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError, TypeError):  # TypeError: a value that JSON does not have
        content = _digest(raw) + b"\n" + json.dumps(data, separators=(",", ":")).encode()
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content)
            part.replace(place)
        except OSError:
            part.unlink(missing_ok=True)


def _place(path: Path) -> Path:
    return Path(cache_from_source(str(path))).with_suffix(".parsed")


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).hexdigest().encode()
