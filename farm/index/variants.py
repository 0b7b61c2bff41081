"""Copies of wheels for `whl/variant/`: one root in which the installer finds the wheel for the machine (PEP 825, 850).

An extra for uv with `UV_PREVIEW_FEATURES=wheel-variants`, GPUs from sm_50 on: drafts. Its wheels are relabelled copies
of published ones, and are offered as these are (`farm.index.variant_tree`).
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from farm.errors import PublishRefusedError, UsageError
from farm.index.events import read_listed, read_state
from farm.index.records import Record
from farm.index.signing import Signer
from farm.index.stores import Store
from farm.index.swap import swap
from farm.index.variant_tree import Copy, Properties, Tree, delete_copies, facts, parse_tree, show_states, tree_key


def properties(gpu: str, sms: Sequence[int], cpu: str) -> tuple[str, Properties]:
    """Label and properties of a wheel: `sm61_v3` for the words sm61 and avx2.

    Raises:
        UsageError: The drafts, or uv, have no words for it.
    """
    known = facts()
    level = known.levels.get(cpu)
    real = [f"{sm}_real" for sm in sms if sm >= known.sm_min]
    if level is None or (sms and not real) or gpu == "mps":
        raise UsageError(
            f"wheel variants have no words for {gpu} and {cpu}",
            hint=f"GPUs from sm_{known.sm_min} on, CPUs {', '.join(known.levels)}; else there is the root {gpu}-{cpu}",
        )
    found: Properties = {"x86_64": {"level": [level]}}
    if real:
        found["nvidia"] = {"sm_arch": real}
    return f"{gpu}_{level}", found


def published(store: Store, wheel: Path) -> Record:
    """The record of a wheel that is to have a copy.

    Raises:
        UsageError: It is not in the index, or was removed: nothing could be said of its copy then.
        PublishRefusedError: The index has other bytes under its name.
    """
    record, _state = read_listed(store, wheel.name)
    with wheel.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
            raise PublishRefusedError(f"{wheel.name} is not the wheel that the index has under this name")
    return record


def publish_variant(
    store: Store,
    wheel: Path,
    record: Record,
    *,
    label: str,
    labelled: Properties,
    metadata: bytes,
    signer: Signer | None = None,
) -> tuple[str, ...]:
    """Puts a labelled copy of a published wheel into the tree, or completes what an earlier call began.

    Args:
        store: The index.
        wheel: The copy.
        record: Of the wheel that it is a copy of.
        label: As its name ends, `sm61_v3` for one.
        labelled: What the label stands for.
        metadata: The bytes of the copy's METADATA.
        signer: Signs the pages that change.

    Returns:
        The pages that show it.

    Raises:
        PublishRefusedError: The name stands for other bytes, or somebody removed the wheel meanwhile.
        InfrastructureError: The store failed; run it again.
    """
    with wheel.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    project = record.project
    entry = Copy(
        filename=wheel.name,
        version=record.version.partition("+")[0],
        label=label,
        properties=labelled,
        sha256=sha256,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        requires_python=record.requires_python,
        source=record.filename,
    )

    def add(old: bytes | None, *, stored: bool) -> bytes | None:
        tree = Tree(generation=0, name=project, files=()) if old is None else parse_tree(old, project)
        states = {target: read_state(store, target) for target in (record.filename, project)}
        after = _with_copy(tree, entry, stored=stored).with_wheel(record).with_states(states)
        return None if after is tree else after.render()

    # The claim before the bytes: whoever removes the wheel deletes those of all copies that are claimed.
    swap(store, tree_key(project), lambda old: add(old, stored=False), "application/json")
    contents: tuple[tuple[bytes | Path, str], ...] = ((wheel, sha256), (metadata, entry.metadata_sha256))
    for key, (content, digest) in zip(entry.keys, contents, strict=True):
        # Taken already is fine where it is by the same bytes, as after a call that was killed.
        if not store.create(key, content, content_type="application/octet-stream", sha256=digest):
            there = store.stat(key)
            if there is None or there.sha256 not in {digest, None}:
                raise PublishRefusedError(f"{wheel.name} is taken in the variant tree: the index has other bytes")
    swap(store, tree_key(project), lambda old: add(old, stored=True), "application/json")
    # Read once more: what was said before the claim was there to be seen.
    states = {target: read_state(store, target) for target in (record.filename, project)}
    shown = show_states(store, project, states, signer)
    if states[record.filename].removed is not None:
        delete_copies(store, project, {record.filename})
        raise PublishRefusedError(f"{record.filename} was removed")
    return tuple(sorted(shown.pages))


def _with_copy(tree: Tree, entry: Copy, *, stored: bool) -> Tree:
    """With a copy, claimed or stored.

    Raises:
        PublishRefusedError: Its name stands for other bytes, or for a copy of another wheel.
    """
    tags = entry.filename.split("-")[2:-1]
    for present in tree.files:
        if (present.version, present.label, present.filename.split("-")[2:-1]) != (entry.version, entry.label, tags):
            continue
        same = (present.filename, *present.hashes) == (entry.filename, *entry.hashes)
        # One that an older farm put there has no source yet.
        if not same or present.source not in {None, entry.source}:
            of = f", a copy of {present.source}" if present.source else ""
            raise PublishRefusedError(
                f"{tree.name} {entry.version} has another wheel {entry.label} in the variant tree{of}"
            )
        now = entry.model_copy(update={"stored": present.stored or stored})
        return tree.changed(files=tuple(now if each is present else each for each in tree.files))
    return tree.changed(files=(*tree.files, entry.model_copy(update={"stored": stored})))
