"""The site: HTML and data from the index's wheels and the matrix, as a set of files; only what
changed is written.

Everything is escaped, and each page is whole in one file. The data of the page's search
(`answers.js`) are `official.facts`, what the index has for a card, and what could be built for it.
"""

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import jinja2
from markupsafe import Markup
from packaging.version import Version

from farm import catalog
from farm.base.errors import FarmError, InfrastructureError
from farm.index.layout import record_key
from farm.index.layout import wheel_key as wheel_place
from farm.index.pages import catalogue_schema
from farm.index.reader import KEY, Standing, Test, render
from farm.index.stores import Store
from farm.plan.compat import official, official_cpu
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.matrix import Channel, load_matrix
from farm.plan.recommend import FarmBuild, buildable_here, machine_of
from farm.site.wheels import REQUESTS, STATES, Wheel

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("cards.js", "paste.js", "answers.js", "page.js")
"""The program of the page's search, in the order in which its parts need each other."""
TRIES = 5
TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json"}
BUILDABLE = "buildable.html"
FIRST = frozenset({"torch"})
"""Projects at the head of lists: what the others are helpers of."""
LIMIT = 6
"""Builds of a card in the data: for an old driver some of the first three may be none."""


Words = Callable[[str, str], tuple[str, ...]]
"""Group and file name of a wheel -> the arguments of `pip install` for it."""


def files(
    there: Sequence[Wheel],
    *,
    project: Path | None,
    words: Words,
    root: str,
    projects: Iterable[str] = (),
) -> dict[str, bytes]:
    """Every file of the site by its key below the index's root. The same data give the same bytes.

    Args:
        there: The index's wheels, newest first.
        project: The project whose channels could be built.
        words: What `pip install` is given for a wheel of a group.
        root: The address of the index's root, ending in a slash.
        projects: All projects that the index ever had: one without wheels has an empty page.
    """
    pages_by_key = project_files(there, words=words, projects=projects)
    channels, evidence = _offered(project)
    facts = data(project, there, words)
    pages_by_key["index.html"] = index_page(facts, there, root).encode()
    pages_by_key[BUILDABLE] = buildable_page(channels, evidence).encode()
    pages_by_key["catalog.schema.json"] = json.dumps(catalogue_schema(), indent=2).encode()
    return pages_by_key


def project_files(
    there: Sequence[Wheel], *, words: Words, projects: Iterable[str]
) -> dict[str, bytes]:
    """The files that follow from the index's wheels alone: a page of each project, and what was
    tested.
    """
    wheels = {name: list[Wheel]() for name in projects} | of_project(there)
    pages_by_key = {
        f"project/{name}.html": project_page(name, wheels[name], words).encode()
        for name in sorted(wheels)
    }
    pages_by_key[KEY] = render(
        {wheel.filename: _standing(wheel) for wheel in there if wheel.withdrawn is None}
    )
    return pages_by_key


def installable_files(page: bytes) -> set[str]:
    """The wheels to which a project's page leads."""
    links = re.findall(rb'href="\.\./whl/files/([^"#]+)"', page)
    return {unquote(link.decode("utf-8", "replace")) for link in links}


def _offered(project: Path | None) -> tuple[list[Channel], Evidence]:
    with suppress(FarmError):  # what is in the index is shown whatever the matrix says
        if project is not None:
            return list(load_matrix(project).channels.values()), load_evidence(project)
    return [], Evidence(())


def _standing(wheel: Wheel) -> Standing:
    tests = tuple(
        Test(where=test.where, date=test.date, outcome=test.outcome) for test in wheel.tests
    )
    return Standing(state=STATES[wheel.state], tests=tests)


def write(store: Store, made: Mapping[str, bytes]) -> list[str]:
    """Write what differs from what is there, and give its keys; InfrastructureError if others write
    all the time.
    """
    with ThreadPoolExecutor(REQUESTS) as pool:
        written = pool.map(lambda key: _put(store, key, made[key]), made)
        return [key for key, changed in zip(made, written, strict=True) if changed]


def _put(store: Store, key: str, data: bytes) -> bool:
    content_type = TYPES[Path(key).suffix]
    for _ in range(TRIES):
        stored = store.get(key)
        if stored is not None and stored.data == data:
            return False
        # Only where it is still what was read: someone else may build the site at the same time.
        if store.replace(key, data, stored.etag if stored else None, content_type=content_type):
            return True
    raise InfrastructureError(
        f"{key}: another process keeps writing it", hint="run `farm site build` again"
    )


class Inline(NamedTuple):
    """Text inside a page, and its hash for the page's content security policy."""

    text: Markup
    hash: str


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    templates = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"megabytes": lambda size: f"{size / 1e6:.1f} MB", "quoted": quote}
    templates.globals |= {"css": _inline("site.css"), "states": STATES}
    return templates


@cache
def _inline(*names: str) -> Inline:
    text = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    digest = hashlib.sha256(text.encode()).digest()
    # The policy of the page lets run what has this hash, and nothing that got into it otherwise.
    return Inline(Markup(text), f"sha256-{base64.b64encode(digest).decode()}")  # noqa: S704 our own files


def embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that can be inside a script element whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    # `</script>` would end the element; U+2028 and U+2029 end a line in older JavaScript.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 escaped above


def of_project(there: Sequence[Wheel]) -> dict[str, list[Wheel]]:
    """The wheels by project, torch first; of each project the newest first."""
    wheels: dict[str, list[Wheel]] = {}
    for wheel in sorted(there, key=lambda wheel: (wheel.project not in FIRST, wheel.project)):
        wheels.setdefault(wheel.project, []).append(wheel)
    return wheels


def newest_version(wheels: Iterable[Wheel]) -> str:
    """The version that pip takes: the newest that is no pre-release, or the newest of these.

    Returns:
        It; empty if all are withdrawn.
    """
    versions = [Version(wheel.version) for wheel in wheels if wheel.withdrawn is None]
    releases = [version for version in versions if not version.is_prerelease]
    return str(max(releases or versions, default=""))


def index_page(data: Mapping[str, Any], there: Sequence[Wheel], root: str) -> str:
    """Published wheels by project and by group."""
    projects = [_project_row(name, wheels) for name, wheels in of_project(there).items()]
    projects_by_group: dict[str, list[str]] = {}
    for wheel in there:
        for group in wheel.groups:
            projects_by_group.setdefault(group, []).append(wheel.project)
    groups = [
        (group, _meaning(group), len(names), sorted({*names}))
        for group, names in sorted(projects_by_group.items())
    ]
    template = _environment().get_template("index.html")
    return template.render(
        data=embedded(data),
        js=_inline(*SCRIPTS),
        projects=projects,
        groups=groups,
        wheels=len(there),
        root=root,
    )


def _project_row(name: str, wheels: Sequence[Wheel]) -> dict[str, Any]:
    return {
        "name": name,
        "newest": newest_version(wheels) or "all withdrawn",
        "versions": len({wheel.version for wheel in wheels}),
        "wheels": len(wheels),
        "groups": len({group for wheel in wheels for group in wheel.groups}),
        "checked": sum(wheel.report is not None for wheel in wheels),
        "date": max(wheel.uploaded for wheel in wheels)[:10],
    }


def buildable_page(channels: Iterable[Channel], evidence: Evidence) -> str:
    """What could be built, by GPU: builds that were tested, then channels without one."""
    offered = [(channel, _tested(evidence, channel.name)) for channel in channels]
    by_gpu: dict[str, list[tuple[Channel, str]]] = {}
    for channel, tested in sorted(offered, key=lambda pair: not pair[1]):
        for gpu in channel.gpus:
            by_gpu.setdefault(gpu, []).append((channel, tested))
    architectures = catalog.architectures().architectures
    order = ["cpu", *architectures]
    gpus = []
    for gpu in sorted(by_gpu, key=lambda gpu: order.index(gpu) if gpu in order else len(order)):
        card = architectures.get(gpu)
        title = f"{card.name}, {card.example}" if card else _meaning(gpu)
        tested_channels = [pair for pair in by_gpu[gpu] if pair[1]]
        untested = [pair for pair in by_gpu[gpu] if not pair[1]]
        gpus.append((gpu, title, tested_channels, untested))
    return _environment().get_template("buildable.html").render(gpus=gpus)


def _tested(evidence: Evidence, channel: str) -> str:
    states_by_variant = {
        wheel.variant: wheel.state for wheel in evidence.of_channel(channel, "torch")
    }
    return "; ".join(f"{variant}: {state}" for variant, state in states_by_variant.items())


def _meaning(group: str) -> str:
    """`Kepler, Tesla K40; Core 4xxx (Haswell)` of a group's name; empty for a name of one's own."""
    gpu, _, cpu = group.partition("-")
    card = catalog.architectures().architectures.get(gpu)
    level = catalog.cpu_levels().get(cpu)
    if card:
        words = [f"{card.name}, {card.example}"]
    else:
        words = {"cpu": ["no GPU"], "mps": ["Apple GPU"]}.get(gpu, [])
    return "; ".join([*words, *([level.example] if level else [])])


def project_page(name: str, found: Sequence[Wheel], words: Words) -> str:
    """All versions and files of a project, and the line that installs each version from each
    group.
    """
    versions = []
    for version, files in groupby(found, key=lambda wheel: wheel.version):
        version_files = list(files)
        lines = _install_lines(version_files, words)
        versions.append((version, version_files, lines))
    template = _environment().get_template("project.html")
    return template.render(
        name=name, versions=versions, count=len(found), place=wheel_place, record=record_key
    )


def _install_lines(wheels: Sequence[Wheel], words: Words) -> list[tuple[str, str]]:
    """The lines that install one version, each with what it is for: a group, or one of its wheels
    where each has a line of its own.
    """
    lines: dict[tuple[str, str], list[Wheel]] = {}
    for wheel in wheels:
        if wheel.withdrawn is not None:
            continue
        for group in wheel.groups:
            line = shlex.join(["pip", "install", *words(group, wheel.filename)])
            lines.setdefault((group, line), []).append(wheel)
    groups = Counter(group for group, _ in lines)
    labelled = []
    for (group, line), installed in sorted(lines.items(), key=lambda entry: entry[0]):
        label = group
        if groups[group] > 1:
            label = f"{group}, {' '.join(installed[0].tags[:2])}"
        labelled.append((label, line))
    return labelled


def data(
    project: Path | None, there: Sequence[Wheel], words: Words | None = None
) -> dict[str, Any]:
    """Collect what the page's search reads, as JSON.

    Args:
        project: The project whose channels could be built.
        there: The index's wheels, the newest of each project first.
        words: What `pip install` is given for a wheel of a group.
    """
    newest: dict[tuple[str, str], list[Wheel]] = {}
    for wheel in there:
        for group in wheel.groups if wheel.withdrawn is None else ():
            newest.setdefault((wheel.project, group), []).append(wheel)
    rows = []
    for (name, group), wheels in sorted(newest.items()):
        wheel = wheels[0]
        install = ["pip", "install", *words(group, wheel.filename)] if words else []
        rows.append(
            {
                "project": name,
                "group": group,
                "version": wheel.version,
                "sms": list(wheel.sms),
                "tags": sorted({one_wheel.tags[0] for one_wheel in wheels}),
                "verified": wheel.report.code if wheel.report else "",
                "without": wheel.without,
                "pip": shlex.join(install) or None,
            }
        )
    return official.facts() | {
        "cpu": official_cpu.facts(),
        "there": rows,
        "own": own(project) if project else {},
        "aliases": {"pytorch": "torch"},
    }


def own(project: Path) -> dict[str, dict[str, list[list[str]]]]:
    """By platform and SM, builds of which `farm why --official` names the first three that the
    driver runs.

    Release, CUDA, how far it was proved, words, the first driver that runs it, what the official
    wheel has beside it.
    """
    rows: dict[str, dict[str, list[list[str]]]] = {}
    for place in official.PLATFORMS:
        for name in catalog.architectures().architectures:
            sm = int(name.removeprefix("sm"))
            try:
                builds = buildable_here(project, machine_of((sm,), place), limit=LIMIT)
            except (
                FarmError
            ):  # a matrix that cannot be read: the rest of the page stands without it
                return {}
            if builds:
                rows.setdefault(place, {})[str(sm)] = [_row(build) for build in builds]
    return rows


def _row(own: FarmBuild) -> list[str]:
    cost = f"{own.standing}; {own.cost}"
    return [own.torch, str(own.cuda), cost, own.words, own.driver or "0", own.without]
