"""The pages of `whl/variant/`: a copy is offered as long as the wheel that it is a copy of.

`whl/variant/pages/<project>.json` is the truth; the project's HTML page and `<project>-<version>-variants.json` follow.
It holds a page of those wheels like that of a group, so what is said of them (`farm.index.events`) decides here too.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import yaml
from packaging.version import Version
from pydantic import Field, ValidationError

from farm.index import html, pages
from farm.index.catalogue import without_rebuild
from farm.index.events import State, read_state, with_states
from farm.index.listing import ProjectList, add_to_list
from farm.index.pages import File, Hashes, Model, ProjectPage, Sha256, WheelName, foreign
from farm.index.records import Record, parse_record, record_key
from farm.index.roles import sign_pages
from farm.index.signing import Signer
from farm.index.stores import Store
from farm.index.swap import swap

ROOT = "whl/variant/simple"
PAGES = "whl/variant/pages/"


class Facts(Model):
    """`variants.yaml`."""

    sources: dict[str, str]
    schema_url: str = Field(alias="schema")
    namespaces: tuple[str, ...]
    providers: dict[str, dict[str, Any]]
    sm_min: int
    levels: dict[str, str]


@cache
def facts() -> Facts:
    text = (resources.files("farm.index") / "variants.yaml").read_text(encoding="utf-8")
    return Facts.model_validate(yaml.safe_load(text))


Properties = dict[str, dict[str, list[str]]]


def variant_json(labels: Mapping[str, Properties]) -> dict[str, Any]:
    """The content of `variant.json` for one label, and of `…-variants.json` for all of a version."""
    known = facts()
    return {
        "$schema": known.schema_url,
        "default-priorities": {"namespace": list(known.namespaces)},
        "providers": known.providers,
        "variants": dict(sorted(labels.items())),
    }


class Copy(Model):
    """A labelled copy.

    Attributes:
        source: The wheel that it is a copy of; None where an older farm did not note it and no record fits.
        stored: False from the claim of its name until its bytes are there.
    """

    filename: str
    version: str
    label: str
    properties: Properties
    sha256: Sha256
    metadata_sha256: Sha256
    requires_python: str | None = None
    source: WheelName | None = None
    stored: bool = True

    @property
    def hashes(self) -> tuple[str, str]:
        return self.sha256, self.metadata_sha256

    @property
    def keys(self) -> tuple[str, str]:
        """Where its bytes lie."""
        return pages.wheel_key(self.filename), pages.metadata_key(self.filename)


class Tree(Model):
    """All copies of a project, and the page of the wheels that they are copies of.

    Copies are never taken out: their names stay taken.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    generation: int = Field(ge=0, alias="_generation")
    name: str
    files: tuple[Copy, ...]
    wheels: ProjectPage | None = None

    def render(self) -> bytes:
        return json.dumps(self.model_dump(by_alias=True, exclude_none=True), separators=(",", ":")).encode()

    @property
    def page(self) -> ProjectPage:
        """Of the wheels; an older farm kept none."""
        return self.wheels or pages.empty(self.name)

    def changed(self, *, files: tuple[Copy, ...] | None = None, page: ProjectPage | None = None) -> "Tree":
        """The next generation; itself if nothing differs."""
        files, page = files or self.files, page or self.page
        if (files, page) == (self.files, self.page):
            return self
        return self.model_copy(update={"generation": self.generation + 1, "files": files, "wheels": page})

    def with_wheel(self, record: Record) -> "Tree":
        """With a wheel on the page of those that have copies."""
        if any(file.filename == record.filename for file in self.page.removed or ()):
            return self
        return self.changed(page=pages.with_file(self.page, self.name, record.file()))

    def with_states(self, states: Mapping[str, State]) -> "Tree":
        """As it is after the events about its wheels and the project."""
        return self.changed(page=with_states(self.page, "variant", states))

    def offered(self) -> Iterator[tuple[Copy, File | None]]:
        """The copies that installers see, each with its wheel."""
        wheels = {file.filename: file for file in self.page.files}
        quarantined = self.page.project_status.status == "quarantined"
        for copy in self.files:
            if copy.stored and (copy.source in wheels or (copy.source is None and not quarantined)):
                yield copy, wheels.get(copy.source or "")

    def html(self) -> bytes:
        """The project's page for installers."""
        lines, versions = [], set()
        for copy, wheel in self.offered():
            versions.add(copy.version)
            # Not validated: a copy's name is none that other pages may have.
            file = File.model_construct(
                filename=copy.filename,
                hashes=Hashes(sha256=copy.sha256),
                core_metadata=Hashes(sha256=copy.metadata_sha256),
                requires_python=copy.requires_python,
                yanked=wheel.yanked if wheel else False,
            )
            lines.append(html.anchor(file, pages.page_url(copy.filename)))
        for name in (_variants_name(self.name, version) for version in sorted(versions)):
            lines.append(f'<a href="{quote(name)}">{name}</a><br>')
        head = [html.generation_line(max(self.generation, 1)), *html.status_lines(self.page)]
        return html.document(f"Variants of {self.name}", head, lines)


class Shown(NamedTuple):
    """The pages that were looked at, by key, and which of them changed."""

    pages: Mapping[str, bytes]
    written: tuple[str, ...]


def tree_key(project: str) -> str:
    return f"{PAGES}{project}.json"


def html_key(project: str) -> str:
    return f"{ROOT}/{project}/index.html"


def variants_key(project: str, version: str) -> str:
    return f"{ROOT}/{project}/{_variants_name(project, version)}"


def labels_of(data: bytes) -> frozenset[str]:
    """The labels on a `…-variants.json`; none if it is no such page."""
    try:
        return frozenset(json.loads(data)["variants"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def _variants_name(project: str, version: str) -> str:
    return f"{project.replace('-', '_')}-{version}-variants.json"


def parse_tree(data: bytes, project: str) -> Tree:
    """Reads the page of a project; ForeignObjectError if it is not one of ours."""
    try:
        return Tree.model_validate_json(data)
    except ValidationError as error:
        raise foreign(tree_key(project), str(error.errors()[0]["msg"])) from error


def show_states(
    store: Store, project: str, states: Mapping[str, State] | None = None, signer: Signer | None = None
) -> Shown:
    """Shows in the tree what was said of a project and its wheels; does nothing where none of them has a copy.

    Args:
        store: The index.
        project: Whose tree.
        states: After the events that are new, by target. None: whatever records and events say, from the start.
        signer: Signs the pages that change.
    """
    if store.get(tree_key(project)) is None:
        return Shown({}, ())

    def change(old: bytes | None) -> bytes | None:
        assert old is not None, "pages are never deleted"
        before = parse_tree(old, project)
        after, found = _with_sources(store, before)
        after = _renewed(store, after) if states is None else after.with_states({**found, **states})
        return None if after is before else after.render()

    done = swap(store, tree_key(project), change, "application/json")
    shown = _derive(store, parse_tree(done.data, project))
    if signer is not None:
        sign_pages(store, signer, shown.pages)
    return Shown(shown.pages, (*([tree_key(project)] if done.written else ()), *shown.written))


def delete_copies(store: Store, project: str, removed: Collection[str], present: Collection[str] | None = None) -> None:
    """Deletes the bytes of copies of removed wheels, once no page leads to them; only those present, if given."""
    found = store.get(tree_key(project))
    for copy in () if found is None else parse_tree(found.data, project).files:
        if copy.source in removed:
            for key in copy.keys:
                if present is None or key in present:
                    store.discard(key)


def _with_sources(store: Store, tree: Tree) -> tuple[Tree, dict[str, State]]:
    """The tree with the wheels of copies for which an older farm noted none, and the states of these wheels."""
    if all(copy.source for copy in tree.files):
        return tree, {}
    names = [key.removeprefix("records/").removesuffix(".json") for key in store.list("records/")]
    files, found = [], dict[str, State]()
    for copy in tree.files:
        fitting = [name for name in names if copy.source is None and _fits(copy, tree.name, name)]
        states = {name: read_state(store, name) for name in fitting}
        if states:
            # Of several (rebuilds, CUDA versions) the one about which the worst was said: it must not stay offered.
            worst = max(sorted(states), key=lambda name: _severity(states[name]))
            found[worst] = states[worst]
            copy = copy.model_copy(update={"source": worst})  # noqa: PLW2901
        files.append(copy)
    tree = tree.changed(files=tuple(files))
    for name in found:
        if (record := _record(store, name)) is not None:
            tree = tree.with_wheel(record)
    return tree, found


def _severity(state: State) -> tuple[bool, bool, bool]:
    return state.removed is not None, state.quarantined is not None, state.yanked is not False


def _fits(copy: Copy, project: str, filename: str) -> bool:
    """Can a copy be one of this wheel, by their names? `…-1.0-…-sm61_v3.whl` of `…-1.0+cu118.sm61.avx2-…`."""
    try:
        name, version = pages.parse_wheel_name(filename)
    except ValueError:
        return False
    gpu, _, level = copy.label.rpartition("_")
    words = [f"{gpu}.{cpu}" for cpu, its in facts().levels.items() if its == level]
    local = without_rebuild(filename.split("-")[1]).partition("+")[2]
    return (
        name == project
        and Version(version.public) == Version(copy.version)
        and filename.removesuffix(".whl").split("-")[2:] == copy.filename.split("-")[2:-1]
        and any(f".{local}".endswith(f".{word}") for word in words)
    )


def _record(store: Store, filename: str) -> Record | None:
    found = store.get(record_key(filename))
    return None if found is None else parse_record(found.data, record_key(filename))


def _renewed(store: Store, tree: Tree) -> Tree:
    """The tree with its page of wheels made anew from records and events."""
    sources = sorted({copy.source for copy in tree.files if copy.source})
    records = {name: record for name in sources if (record := _record(store, name)) is not None}
    # Read after the page, so that no event that it shows is missed.
    states = {name: read_state(store, name) for name in (tree.name, *sources)}
    page = pages.rebuilt(
        tree.name, {name: record.file() for name, record in records.items()}, after=tree.page.generation
    )
    page = with_states(page, "variant", states)
    return tree if _plain(page) == _plain(tree.page) else tree.changed(page=page)


def _plain(page: ProjectPage) -> ProjectPage:
    """But for its generations."""

    def plain(files: Iterable[File] | None) -> tuple[File, ...]:
        return tuple(file.model_copy(update={"generation": None}) for file in files or ())

    lists = {name: plain(getattr(page, name)) for name in ("files", "withheld")}
    removed = tuple(sorted(plain(page.removed), key=lambda file: file.filename))
    return page.model_copy(update={**lists, "removed": removed, "meta": page.meta.model_copy(update={"generation": 1})})


def _derive(store: Store, tree: Tree) -> Shown:
    shown: dict[str, bytes] = {}
    written = []
    # For readers: what a page leads to comes before it.
    for version in sorted({copy.version for copy, _wheel in tree.offered()}):
        labels = {copy.label: copy.properties for copy in tree.files if copy.version == version}
        key = variants_key(tree.name, version)

        def new_variants(old: bytes | None, labels: Mapping[str, Properties] = labels) -> bytes | None:
            # Labels are only ever added, so the longer list is the newer one.
            if old is not None and labels_of(old) > labels.keys():
                return None
            new = json.dumps(variant_json(labels), sort_keys=True).encode()
            return None if new == old else new

        done = swap(store, key, new_variants, "application/json")
        shown[key] = done.data
        written += [key] if done.written else []
    key = html_key(tree.name)

    def new_html(old: bytes | None) -> bytes | None:
        # Of the same generation it differs if an older farm wrote it.
        newer = old is not None and html.generation_of(old, key) > tree.generation
        return None if newer or old == tree.html() else tree.html()

    done = swap(store, key, new_html, pages.HTML)
    shown[key] = done.data
    written += [key] if done.written else []
    listed = ProjectList(f"{ROOT}/index.html", "variant")
    written += [listed.key] if add_to_list(store, listed, tree.name, shown, None) else []
    return Shown(shown, tuple(written))
