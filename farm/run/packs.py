"""The compiler caches of several machines, shared through a store in packs: docs/compiler-cache.md.

A build has no network. What other machines compiled goes to it as one more input, what it compiled comes back with its
output; `dockerfiles/scripts/cache_packs.py` does the work there. A store that is away, or a pack that is broken, costs
hits and never a build: whatever goes wrong here is one line.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from farm.base import resources as shipped
from farm.base.errors import FarmError, InfrastructureError
from farm.base.yamlfile import Model
from farm.engines.base import Engine
from farm.index.backends import open_store
from farm.index.stores import PACKS, Store
from farm.plan.file import Plan, Sha256
from farm.run.backends import SCRIPTS
from farm.run.build import cache_volume
from farm.run.workspace import Workspace

INPUT = "/farm/packs"
ENVIRONMENT = {"FARM_PACKS": "1"}
"""Tells build.sh that packs are wanted."""
KIND = "compiler-cache"
"""The event of the journal with what a build's cache had of other machines, and what it added."""
NOTE = "compiler-cache-note"
"""The event with a line for whoever looks why there are no hits."""
OUTPUT = "packs"
"""The folder in a build's output."""
SCRIPT = "cache_packs.py"

MAX_PACK = 1 << 30
MAX_FETCH = 2 << 30
"""Bytes that one build is given: the newest packs that its machine has not had."""
MAX_STORED = 4 << 30
"""Bytes that one scope keeps in the store; less than ccache's own limit of 5 GB."""
MAX_PACKS = 200
MAX_LISTED = 10_000
MAX_REPORT = 1 << 20

# Time, size in bytes, sha256.
_NAME = re.compile(r"([0-9]{8}T[0-9]{6})-([0-9]{1,10})-([0-9a-f]{64})\.tar")

Say = Callable[[str], object]


@dataclass(frozen=True)
class Pack:
    """One object of the store; `size` in bytes, `made` by the clock of who put it."""

    key: str
    made: str
    size: int
    sha256: str


class Report(Model):
    """What a build says of its machine's cache: the packs that it has had, and the new one, with its results."""

    version: Literal[1] = Field(alias="schema")
    held: Annotated[list[Sha256], Field(max_length=2 * MAX_PACKS)]
    pack: Sha256 | None
    objects: int = Field(ge=0, le=10_000_000)


@dataclass(frozen=True)
class PackOutcome:
    """What came of a build's packs: those that its cache had had before it ended, and what it added.

    `objects` and `size` (bytes) are the new pack's; `put` is false where the store did not take it.
    """

    held: tuple[str, ...]
    pack: str | None = None
    objects: int = 0
    size: int = 0
    put: bool = False


def wanted(workspace: Workspace, plan: Plan) -> bool:
    """Whether builds of a plan share what they compile: a store is named, and the recipe compiles through ccache."""
    return workspace.compiler_cache_url is not None and cache_volume(plan, workspace.id) is not None


def scope(plan: Plan) -> str:
    """What packs are of: builds that differ in these share next to no objects.

    Not in it: the variant (host code is alike for all GPUs) and the toolkit. ccache decides what fits, by the sources
    and the compiler's own bytes.
    """
    return f"{plan.package}-{plan.version.partition('+')[0]}-{plan.machine}-{plan.base}"


def stored(store: Store, what: str) -> list[Pack]:
    """The packs of a scope, newest first. Other names, and sizes that no pack has, are passed over."""
    prefix = f"{PACKS}{what}/"
    found = []
    # The name says all that is asked of a pack, so that a listing is enough: no object is opened.
    for key in islice(store.list(prefix), MAX_LISTED):
        match = _NAME.fullmatch(key.removeprefix(prefix))
        if match and 0 < int(match[2]) <= MAX_PACK:
            found.append(Pack(key, match[1], int(match[2]), match[3]))
    return sorted(found, key=lambda pack: (pack.made, pack.sha256), reverse=True)


def chosen(packs: Iterable[Pack], held: Iterable[str]) -> list[Pack]:
    """Those to fetch: what the cache has not had, the newest first, within MAX_FETCH."""
    # One that does not fit is passed over: an older, smaller one may fit still.
    seen, left, found = set(held), MAX_FETCH, []
    for pack in packs:
        if pack.sha256 not in seen and pack.size <= left:
            seen.add(pack.sha256)
            left -= pack.size
            found.append(pack)
    return found


def prepare(workspace: Workspace, plan: Plan, engine: Engine, dest: Path, say: Say) -> None:
    """Write the input folder of a build: the script, the request, and the packs that its machine has not had."""
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    shutil.copyfile(shipped.path(workspace.project, SCRIPTS) / SCRIPT, dest / SCRIPT)
    here: list[str] | None = None
    try:
        store = _open(workspace)
        packs = stored(store, scope(plan))
        here = [pack.sha256 for pack in packs]
        fetched = [pack for pack in chosen(packs, _held(workspace, plan, engine)) if _fetch(store, pack, dest, say)]
        size = sum(pack.size for pack in fetched)
        say(f"{len(fetched)} packs ({size / 1e6:.1f} MB) of {len(packs)} in the store")
    except (FarmError, OSError) as error:
        say(f"the build goes on without other machines' packs: {error}")
    # Also where the store did not answer: the build makes its own pack all the same.
    request = {"schema": 1, "scope": scope(plan), "stored": here, "max_bytes": MAX_PACK}
    (dest / "request.json").write_text(json.dumps(request) + "\n", encoding="utf-8")


def _open(workspace: Workspace) -> Store:
    url = workspace.compiler_cache_url
    assert url is not None  # the caller has asked `wanted`
    return open_store(url)


def _fetch(store: Store, pack: Pack, dest: Path, say: Say) -> bool:
    """Whether the pack is there now; one whose bytes are not what its name says is left out."""
    part = dest / f"{pack.sha256}.part"
    digest, size = hashlib.sha256(), 0
    try:
        with part.open("wb") as stream:
            for chunk in store.chunks(pack.key):
                size += len(chunk)
                # Larger than its name says: the rest is not even fetched.
                if size > pack.size:
                    break
                digest.update(chunk)
                stream.write(chunk)
        if size == pack.size and digest.hexdigest() == pack.sha256:
            part.rename(dest / f"{pack.sha256}.tar")
            return True
    finally:
        part.unlink(missing_ok=True)
    say(f"{pack.key} is left out: its bytes are not what its name says")
    return False


def collect_packs(workspace: Workspace, plan: Plan, engine: Engine, output: Path, say: Say) -> PackOutcome | None:
    """Put what a build added into the store, and remember what its machine has had. The folder is gone then.

    Args:
        workspace: Names the store.
        plan: What was built.
        engine: Where.
        output: What the build left; untrusted.
        say: Gets one line about the outcome.

    Returns:
        None where the build left no report that can be read.
    """
    folder = output / OUTPUT
    outcome = None
    try:
        report = _read(folder / "report.json")
        if report is None:
            return None
        # Before the push, which may fail: what the cache has had it has had.
        _remember(workspace, plan, engine, report.held)
        outcome = PackOutcome(held=tuple(report.held))
        if report.pack is None:
            return outcome
        file = folder / f"{report.pack}.tar"
        size = file.stat().st_size
        outcome = PackOutcome(outcome.held, report.pack, report.objects, size)
        put = push(_open(workspace), scope(plan), file, report.pack)
        new = f"{report.objects} results ({size / 1e6:.1f} MB) are in the store"
        say(new if put else "the store has this very pack already")
        _remember(workspace, plan, engine, [*report.held, report.pack])
        return PackOutcome(outcome.held, report.pack, report.objects, size, put=put)
    except (FarmError, OSError) as error:
        say(f"nothing is put into the store: {error}")
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def push(store: Store, what: str, file: Path, sha256: str) -> bool:
    """Store a pack, then drop the oldest of its scope beyond MAX_STORED and MAX_PACKS.

    Returns:
        False where the store has it already.

    Raises:
        InfrastructureError: It is not a pack by its size, its bytes do not have this sha256, or the store fails.
    """
    size = file.stat().st_size
    if not 0 < size <= MAX_PACK:
        raise InfrastructureError(f"a pack of {size} bytes, at most {MAX_PACK}")
    packs = stored(store, what)
    # Another time in its name, the same bytes: two builds that compiled the same made the same pack.
    if any(pack.sha256 == sha256 for pack in packs):
        return False
    made = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    key = f"{PACKS}{what}/{made}-{size}-{sha256}.tar"
    # The new one first: a push that is killed here leaves a scope that is too large until the next one.
    store.create(key, file, content_type="application/x-tar", sha256=sha256)
    kept = size
    for number, pack in enumerate(packs, start=1):
        kept += pack.size
        if kept > MAX_STORED or number >= MAX_PACKS:
            store.discard(pack.key)
    return True


def _read(path: Path) -> Report | None:
    """What a build machine wrote, checked; None where there is nothing.

    Raises:
        InfrastructureError: It is too large, or not what it should be.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_REPORT + 1)
    except FileNotFoundError:
        return None
    try:
        if len(raw) > MAX_REPORT:
            raise InfrastructureError(f"its report has more than {MAX_REPORT >> 20} MiB")
        return Report.model_validate(json.loads(raw))
    except (ValidationError, ValueError, RecursionError) as error:
        raise InfrastructureError(f"its report is malformed: {type(error).__name__}") from error


def _note(workspace: Workspace, plan: Plan, engine: Engine) -> Path | None:
    """Where it is written down what the cache that a build would get has had; None where it starts empty.

    The engine tells which volume it is: the cache itself could only be asked by a container.
    """
    name = cache_volume(plan, workspace.id)
    volume = engine.volume_id(name) if name and engine.traits.keeps_volumes else None
    if volume is None:
        return None
    # By the volume too: one that was removed and made again is empty, whatever the one before it had.
    key = hashlib.sha256(f"{workspace.compiler_cache_url} {scope(plan)} {volume}".encode()).hexdigest()
    return workspace.artifacts / "compiler-cache" / f"{key[:32]}.json"


def _held(workspace: Workspace, plan: Plan, engine: Engine) -> list[str]:
    path = _note(workspace, plan, engine)
    if path is None or not path.exists():
        return []
    try:
        return [str(sha256) for sha256 in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError):  # damaged: they are fetched once more, and the cache knows them
        return []


def _remember(workspace: Workspace, plan: Plan, engine: Engine, held: Iterable[str]) -> None:
    path = _note(workspace, plan, engine)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{uuid.uuid4().hex}")
    part.write_text(json.dumps(sorted(set(held))) + "\n", encoding="utf-8")
    os.replace(part, path)  # noqa: PTH105  another build's thread may read it
