"""The tree `whl/variant/`: one root in which the installer finds the wheel for the machine (drafts of PEP 825 and 850).

An extra for uv with `UV_PREVIEW_FEATURES=wheel-variants`, GPUs from sm_50 on. Its wheels are relabelled copies.
`whl/variant/pages/<project>.json` is the truth; the project's HTML page and `<project>-<version>-variants.json` follow.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import yaml
from pydantic import Field, ValidationError

from farm.errors import PublishRefusedError, UsageError
from farm.index import html, pages
from farm.index.listing import ProjectList, add_to_list
from farm.index.pages import Model, Sha256, foreign
from farm.index.stores import Store
from farm.index.swap import swap

ROOT = "whl/variant/simple"


class _Facts(Model):
    sources: dict[str, str]
    schema_url: str = Field(alias="schema")
    namespaces: tuple[str, ...]
    providers: dict[str, dict[str, Any]]
    sm_min: int
    levels: dict[str, str]


@cache
def _facts() -> _Facts:
    text = (resources.files("farm.index") / "variants.yaml").read_text(encoding="utf-8")
    return _Facts.model_validate(yaml.safe_load(text))


Properties = dict[str, dict[str, list[str]]]


def properties(gpu: str, sms: Sequence[int], cpu: str) -> tuple[str, Properties]:
    """Label and properties of a wheel: `sm61_v3` for the words sm61 and avx2.

    Raises:
        UsageError: The drafts, or uv, have no words for it.
    """
    facts = _facts()
    level = facts.levels.get(cpu)
    real = [f"{sm}_real" for sm in sms if sm >= facts.sm_min]
    if level is None or (sms and not real) or gpu == "mps":
        raise UsageError(
            f"wheel variants have no words for {gpu} and {cpu}",
            hint=f"GPUs from sm_{facts.sm_min} on, CPUs {', '.join(facts.levels)}; else there is the root {gpu}-{cpu}",
        )
    found: Properties = {"x86_64": {"level": [level]}}
    if real:
        found["nvidia"] = {"sm_arch": real}
    return f"{gpu}_{level}", found


def variant_json(labels: Mapping[str, Properties]) -> dict[str, Any]:
    """The content of `variant.json` for one label, and of `…-variants.json` for all of a version."""
    facts = _facts()
    return {
        "$schema": facts.schema_url,
        "default-priorities": {"namespace": list(facts.namespaces)},
        "providers": facts.providers,
        "variants": dict(sorted(labels.items())),
    }


class _Wheel(Model):
    filename: str
    version: str
    label: str
    properties: Properties
    sha256: Sha256
    metadata_sha256: Sha256
    requires_python: str | None


class _Page(Model):
    schema_version: Literal[1] = Field(default=1, alias="schema")
    generation: int = Field(ge=0, alias="_generation")
    name: str
    files: tuple[_Wheel, ...]

    def render(self) -> bytes:
        return json.dumps(self.model_dump(by_alias=True), separators=(",", ":")).encode()


def publish_variant(
    store: Store,
    wheel: Path,
    *,
    project: str,
    version: str,
    label: str,
    labelled: Properties,
    metadata: bytes,
    requires_python: str | None,
) -> dict[str, bytes]:
    """Puts a labelled wheel into the tree, or completes what an earlier call began.

    Returns:
        The pages that show it, by key.

    Raises:
        PublishRefusedError: The name stands for other bytes.
        InfrastructureError: The store failed; run it again.
    """
    with wheel.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    entry = _Wheel(
        filename=wheel.name,
        version=version,
        label=label,
        properties=labelled,
        sha256=sha256,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        requires_python=requires_python,
    )
    contents: tuple[tuple[str, bytes | Path, str], ...] = (
        (pages.wheel_key(wheel.name), wheel, sha256),
        (pages.metadata_key(wheel.name), metadata, entry.metadata_sha256),
    )
    # The bytes before the page that offers them.
    for key, content, digest in contents:
        # Taken already is fine where it is by the same bytes, as after a call that was killed.
        if not store.create(key, content, content_type="application/octet-stream", sha256=digest):
            there = store.stat(key)
            if there is None or there.sha256 not in {digest, None}:
                raise PublishRefusedError(f"{wheel.name} is taken in the variant tree: the index has other bytes")
    place = f"whl/variant/pages/{project}.json"

    def add(old: bytes | None) -> bytes | None:
        page = _Page(generation=0, name=project, files=()) if old is None else _parse(old, place)
        if entry in page.files:
            return None
        if any(
            (each.version, each.label) == (version, label)
            # The tags of Python, ABI and platform, between the version and the label.
            and each.filename.split("-")[2:-1] == wheel.name.split("-")[2:-1]
            for each in page.files
        ):
            raise PublishRefusedError(f"{project} {version} has another wheel {label} in the variant tree")
        return page.model_copy(update={"generation": page.generation + 1, "files": (*page.files, entry)}).render()

    page = _parse(swap(store, place, add, "application/json").data, place)
    return _derive(store, page, version)


def _parse(data: bytes, key: str) -> _Page:
    try:
        return _Page.model_validate_json(data)
    except ValidationError as error:
        raise foreign(key, str(error.errors()[0]["msg"])) from error


def _derive(store: Store, page: _Page, version: str) -> dict[str, bytes]:
    written: dict[str, bytes] = {}
    labels = {each.label: each.properties for each in page.files if each.version == version}
    variants = f"{ROOT}/{page.name}/{_variants_name(page.name, version)}"

    def new_variants(old: bytes | None) -> bytes | None:
        # Labels are only ever added, so the longer list is the newer one.
        if old is not None and len(json.loads(old)["variants"]) >= len(labels):
            return None
        return json.dumps(variant_json(labels), sort_keys=True).encode()

    written[variants] = swap(store, variants, new_variants, "application/json").data
    place = f"{ROOT}/{page.name}/index.html"

    def new_html(old: bytes | None) -> bytes | None:
        return None if old is not None and html.generation_of(old, place) >= page.generation else _html(page)

    written[place] = swap(store, place, new_html, pages.HTML).data
    add_to_list(store, ProjectList(f"{ROOT}/index.html", "variant"), page.name, written, None)
    return written


def _variants_name(project: str, version: str) -> str:
    return f"{project.replace('-', '_')}-{version}-variants.json"


def _html(page: _Page) -> bytes:
    lines = []
    for each in page.files:
        metadata = f'data-core-metadata="sha256={each.metadata_sha256}"'
        python = f' data-requires-python="{escape(each.requires_python)}"' if each.requires_python else ""
        href = f"../../../files/{quote(each.filename, safe='')}#sha256={each.sha256}"
        lines.append(f'<a href="{href}"{python} {metadata}>{escape(each.filename)}</a><br>')
    for version in sorted({each.version for each in page.files}):
        name = _variants_name(page.name, version)
        lines.append(f'<a href="{quote(name)}">{escape(name)}</a><br>')
    return html.document(f"Variants of {page.name}", [html.generation_line(page.generation)], lines)
