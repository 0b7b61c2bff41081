"""`whl/variant/`: one root in which the installer finds the wheel for the machine (drafts of PEP 825 and 850).

An extra for uv with `UV_PREVIEW_FEATURES=wheel-variants`, GPUs from sm_50 on. Its wheels are relabelled copies of
published ones: a group like any other, but that what is said of a wheel holds for its copies too
(`farm.index.events.state_of`).
"""

from datetime import UTC, datetime
from pathlib import Path

from farm.base.errors import PublishRefusedError, UsageError
from farm.base.hashes import sha256_of
from farm.index import naming
from farm.index.catalogue import without_rebuild
from farm.index.events import read_listed
from farm.index.pages import Properties
from farm.index.provenance import made_from
from farm.index.publish import PublishResult, put
from farm.index.records import Record, describe
from farm.index.signing import Signer
from farm.index.stores import Store

BUILD_TYPE = "urn:torch-farm:relabelled:v1"


def published(store: Store, wheel: Path) -> Record:
    """The record of a wheel that is to have a copy.

    Raises:
        UsageError: It is not in the index, or was removed: nothing could be said of its copy then. Or its file is not
            there.
        PublishRefusedError: The index has other bytes under its name.
    """
    record, _state = read_listed(store, wheel.name)
    try:
        found = sha256_of(wheel)
    except OSError as error:
        raise UsageError(
            f"cannot read {wheel}: {error.strerror}", hint="give the path of the published wheel's file"
        ) from error
    if found != record.sha256:
        raise PublishRefusedError(f"{wheel.name} is not the wheel that the index has under this name")
    return record


def build_of(source: Record) -> str:
    """The build number of a copy: that of the rebuild, whose local version is not in the copy's name."""
    return source.version.removeprefix(without_rebuild(source.version)).removeprefix(".")


def publish_variant(
    store: Store, wheel: Path, source: Record, properties: Properties, metadata: bytes, signer: Signer | None = None
) -> PublishResult:
    """Publishes a labelled copy of a published wheel, or completes what an earlier call began.

    Args:
        store: The index.
        wheel: The copy; its name ends in its label.
        source: Of the wheel that it is a copy of.
        properties: What the label stands for.
        metadata: The bytes of the copy's METADATA.
        signer: Signs its attestation and the pages.

    Raises:
        PublishRefusedError: The name stands for other bytes, or somebody removed the wheel meanwhile.
        InfrastructureError: The store failed; run it again.
    """
    ours = describe(
        wheel,
        group=naming.VARIANTS,
        metadata=metadata,
        upload_time=datetime.now(UTC),
        provenance=made_from(BUILD_TYPE, wheel.name, source.filename, source.sha256),
        copy_of=(source.filename, properties),
    )
    return put(store, ours, wheel, metadata, signer=signer)
