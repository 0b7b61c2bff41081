"""`whl/variant/`: one root in which the installer finds the wheel for the machine (drafts of PEP
825 and 850).

An extra for uv with `UV_PREVIEW_FEATURES=wheel-variants`, GPUs from sm_50 on. Its wheels are
labelled copies of published ones, in a tree of their own (`whl/variant/files`, `records`,
`simple`), of which no other module here knows: a page is written whole from the records of the
copies and the events about their wheels. What changes wheels calls `follow`.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field

from farm.base.errors import PublishRefusedError, UsageError
from farm.base.hashes import sha256_and_size, sha256_of
from farm.index import pages
from farm.index.layout import WheelName, without_rebuild
from farm.index.pages import HTML, File, Hashes
from farm.index.publish import NameTakenError, check_store, store_file
from farm.index.records import Model, Record, Sha256, parse, read_state, read_wheel, there
from farm.index.stores import Stat, Store, swap

ROOT = "whl/variant/"
LIST = f"{ROOT}simple/index.html"
Properties = dict[str, dict[str, list[str]]]
"""Namespace -> feature -> values, as the drafts have them."""


class _Facts(Model):
    """`variants.yaml`."""

    sources: dict[str, str]
    schema_url: str = Field(alias="schema")
    namespaces: tuple[str, ...]
    providers: dict[str, dict[str, Any]]
    sm_min: int
    levels: dict[str, str]


class Copy(Model):
    """A labelled copy of a wheel: the claim on its name."""

    filename: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,235}-[0-9a-z_.]+\.whl$")
    source: WheelName
    label: str
    properties: Properties
    sha256: Sha256
    metadata_sha256: Sha256
    requires_python: str | None = None

    @property
    def project(self) -> str:
        return canonicalize_name(self.filename.partition("-")[0])

    @property
    def version(self) -> str:
        return str(Version(self.filename.split("-")[1]))


@cache
def _facts() -> _Facts:
    text = (resources.files("farm.index") / "variants.yaml").read_text(encoding="utf-8")
    return _Facts.model_validate(yaml.safe_load(text))


def properties(gpu: str, sms: Sequence[int], cpu: str) -> tuple[str, Properties]:
    """The label and the properties of a wheel: `sm61_v3` for sm61 and avx2.

    Args:
        gpu: The word for the GPU in the variant's name.
        sms: Its architectures.
        cpu: The word for the CPU.

    Raises:
        UsageError: The drafts or uv have no words for it.
    """
    facts = _facts()
    level = facts.levels.get(cpu)
    real = sorted(f"{sm}_real" for sm in sms if sm >= facts.sm_min)  # as text: PEP 825 says so
    if level is None or (sms and not real) or gpu == "mps":
        raise UsageError(
            f"wheel variants have no words for {gpu} and {cpu}",
            hint=f"GPUs from sm_{facts.sm_min} on, CPUs {', '.join(facts.levels)}; else there is "
            f"the root {gpu}-{cpu}",
        )
    labelled: Properties = {"x86_64": {"level": [level]}}
    if real:
        labelled["nvidia"] = {"sm_arch": real}
    return f"{gpu}_{level}", labelled


def with_driver(labelled: Properties, cuda: str | None) -> Properties:
    """The properties of a wheel with the drivers that run it.

    Args:
        labelled: Its properties.
        cuda: The CUDA version that it was built with; counts for a GPU alone.

    Raises:
        UsageError: It is for a GPU, and its CUDA is not known.
    """
    if "nvidia" not in labelled:
        return labelled
    if cuda is None:
        raise UsageError(
            "neither the wheel's version nor what it holds and requires says which CUDA it is "
            "built with, and so which drivers run it",
            hint="a local version such as +cu126 says it",
        )
    driver = {"cuda_version_lower_bound": [lowest_cuda(cuda)]}
    return {**labelled, "nvidia": {**labelled["nvidia"], **driver}}


def lowest_cuda(cuda: str) -> str:
    """The lowest CUDA version of a driver that runs code for the architecture itself: from CUDA 11
    on each driver runs all releases of its major version (minor version compatibility).
    """
    major = cuda.split(".", maxsplit=1)[0]
    if int(major) < 11:
        return cuda
    return f"{major}.0"


_LOCAL_CUDA = re.compile(r"(?:^|\.)cu(\d+)(\d)(?:\.|$)")
_LIBRARY_CUDA = re.compile(r"(?:libcudart[^/]*\.so\.|cudart64_)(\d{2})")
_PACKAGE_CUDA = re.compile(r"^nvidia[-_]cuda[-_]runtime(?:[-_]cu(\d+)|.*?==(\d+)\.)")


def cuda_of(version: Version, members: Iterable[str], requires: Iterable[str]) -> str | None:
    """The CUDA version that a wheel was built with, or its major version.

    Args:
        version: The wheel's version; the farm's say it in words, as +cu126.
        members: The names in the wheel.
        requires: What it requires.

    Returns:
        None where nothing says it.
    """
    local = _LOCAL_CUDA.search(version.local or "")
    if local is not None:
        return f"{local[1]}.{local[2]}"
    for name in members:
        library = _LIBRARY_CUDA.search(name)
        if library is not None:
            return library[1]
    for requirement in requires:
        package = _PACKAGE_CUDA.match(requirement.lower())
        if package is not None:
            return package[1] or package[2]
    return None


def variant_json(labels: Mapping[str, Properties]) -> dict[str, Any]:
    """The content of `variant.json` for one label, and of `…-variants.json` for all of a
    version.
    """
    facts = _facts()
    return {
        "$schema": facts.schema_url,
        "default-priorities": {"namespace": list(facts.namespaces)},
        "providers": facts.providers,
        "variants": dict(sorted(labels.items())),
    }


def published(store: Store, wheel: Path) -> Record:
    """The record of a wheel that is to have a copy: it is in the index, not removed, and has this
    file's bytes.
    """
    wheel_state = read_wheel(store, wheel.name)
    if wheel_state.state.removed is not None:
        raise UsageError(f"{wheel.name} was removed: {wheel_state.state.removed}")
    try:
        digest = sha256_of(wheel)
    except OSError as error:
        hint = "give the path of the published wheel's file"
        raise UsageError(f"cannot read {wheel}: {error.strerror}", hint=hint) from error
    if digest != wheel_state.record.sha256:
        raise PublishRefusedError(
            f"{wheel.name} is not the wheel that the index has under this name"
        )
    return wheel_state.record


def build_of(source: Record) -> str:
    """The build number of a copy: that of the rebuild, whose local version is not in the copy's
    name.
    """
    return source.version.removeprefix(without_rebuild(source.version)).removeprefix(".")


def publish_variant(
    store: Store, wheel: Path, source: Record, label: str, labelled: Properties, metadata: bytes
) -> list[str]:
    """Publishes a labelled copy of a published wheel, or completes what an earlier call began;
    gives the pages.
    """
    check_store(store)
    digest, size = sha256_and_size(wheel)
    metadata_sha256 = hashlib.sha256(metadata).hexdigest()
    copy = Copy(
        filename=wheel.name,
        source=source.filename,
        label=label,
        properties=labelled,
        sha256=digest,
        metadata_sha256=metadata_sha256,
        requires_python=source.requires_python,
    )
    key = f"{ROOT}records/{wheel.name}.json"
    fresh = store.create(key, copy.render(), content_type="application/json")
    if not fresh and parse(Copy, there(store, key).data, key) != copy:
        raise NameTakenError(
            f"{wheel.name} is taken: it is a copy of another wheel, or has other bytes"
        )
    place = f"{ROOT}files/{wheel.name}"
    store_file(store, place, wheel, Stat(size, digest), fresh=fresh)
    promised = Stat(len(metadata), metadata_sha256)
    store_file(store, f"{place}.metadata", metadata, promised, fresh=fresh)
    return follow(store, copy.project)


def follow(store: Store, *projects: str) -> list[str]:
    """Brings the tree to what the events about the copied wheels say: all of it, or these projects;
    gives the pages.
    """
    list_page = store.get(LIST)
    listed_names = set[str]()
    if list_page is not None:
        listed_names = pages.parse_list(list_page.data, LIST)
    elif not projects:
        return []
    names = projects or sorted(listed_names)
    written = []
    for project in names:
        # What the labels stand for first, since the page leads to it.
        for key in _expected(store, project):
            if _write_page(store, project, key):
                written.append(key)

    def add(old: bytes | None) -> bytes | None:
        old_names = set[str]()
        if old:
            old_names = pages.parse_list(old, LIST)
            if old_names >= set(projects):
                return None
        return pages.list_html("variant", old_names | set(projects))

    if swap(store, LIST, add, HTML).written:
        written.append(LIST)
    for project in names:
        _discard_removed(store, project)
    return written


def _write_page(store: Store, project: str, key: str) -> bool:
    """Write a page of a project; False where it was so already."""

    def change(_old: bytes | None) -> bytes:
        # Read after the page: whoever writes later has seen more.
        return _expected(store, project)[key]

    media_type = "application/json"
    if key.endswith(".html"):
        media_type = HTML
    return swap(store, key, change, media_type).written


def _discard_removed(store: Store, project: str) -> None:
    """Delete the copies of wheels that were removed."""
    for copy in _copies(store, project):
        if read_state(store, copy.source).removed is not None:
            store.discard(f"{ROOT}files/{copy.filename}")
            store.discard(f"{ROOT}files/{copy.filename}.metadata")


def _copies(store: Store, project: str) -> list[Copy]:
    copies = []
    for key in sorted(store.list(f"{ROOT}records/")):
        stored = store.get(key)
        if stored is None:
            continue
        copy = parse(Copy, stored.data, key)
        if copy.project == project:
            copies.append(copy)
    return copies


def _labels_name(project: str, version: str) -> str:
    return f"{project.replace('-', '_')}-{version}-variants.json"


def _expected(store: Store, project: str) -> dict[str, bytes]:
    """The pages of a project, by key."""
    labels: dict[str, dict[str, Properties]] = defaultdict(dict)
    anchors = []
    offered = set()
    for copy in _copies(store, project):
        labels[copy.version][copy.label] = copy.properties
        state = read_state(store, copy.source)
        if state.removed is None:
            offered.add(copy.version)
            address = f"../../files/{quote(copy.filename, safe='')}"
            anchors.append(pages.anchor(_file(copy, state.yanked), address))
    for version in sorted(offered):
        name = _labels_name(project, version)
        anchors.append(f'<a href="{quote(name)}">{escape(name)}</a><br>')
    folder = f"{ROOT}simple/{project}"
    documents = {}
    for version, version_labels in labels.items():
        text = json.dumps(variant_json(version_labels), sort_keys=True)
        documents[f"{folder}/{_labels_name(project, version)}"] = text.encode()
    documents[f"{folder}/index.html"] = pages.document(f"Links for {project}", [], anchors)
    return documents


def _file(copy: Copy, yanked: bool | str) -> File:
    return File.model_construct(
        filename=copy.filename,
        url=None,
        hashes=Hashes(sha256=copy.sha256),
        requires_python=copy.requires_python,
        core_metadata=Hashes(sha256=copy.metadata_sha256),
        yanked=yanked,
    )
