"""The pages for people as HTML. Everything is escaped, and each page is whole in one file."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from farm import catalog
from farm.base.errors import FarmError
from farm.index.layout import record_key
from farm.index.layout import wheel_key as wheel_place
from farm.plan.channel import Channel
from farm.plan.compat import official, official_cpu, official_wheels
from farm.plan.compat.stack import reaches
from farm.plan.evidence import Evidence
from farm.plan.recommend import FarmBuild, buildable_here, machine_of
from farm.site.overview import Overview, Words, pip_line, release_of
from farm.site.wheels import STATES, Wheel

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("cards.js", "paste.js", "answers.js", "page.js")
"""The program of the page's search, in the order in which its parts need each other."""
SHOWN_BUILDS = 3
"""Builds of a card that an answer names."""
HERE = "in this index"
SHIPPED = "by the farm's own evidence"
"""Which of the two a statement about a build comes from."""


class Inline(NamedTuple):
    """Text inside a page, and its hash for the page's content security policy."""

    text: Markup
    hash: str


@cache
def _environment() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["megabytes"] = _megabytes
    templates.filters["quoted"] = quote
    templates.globals["css"] = _inline("site.css")
    templates.globals["states"] = STATES
    return templates


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@cache
def _inline(*names: str) -> Inline:
    """Our own files as text inside a page, one after the other."""
    text = ""
    for name in names:
        text += (TEMPLATES / name).read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).digest()
    digest_text = base64.b64encode(digest).decode()
    # The policy of the page lets run what has this hash, and nothing that got into it otherwise.
    return Inline(Markup(text), f"sha256-{digest_text}")  # noqa: S704 our own files


def embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that can be inside a script element whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    # `</script>` would end the element; U+2028 and U+2029 end a line in older JavaScript.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 escaped above


# --- the first page


def index_page(data: Mapping[str, Any], overview: Overview, root: str) -> str:
    """The search, and published wheels by project and by group.

    Args:
        data: What the search reads: see `data`.
        overview: The wheels.
        root: The address of the index's root, ending in a slash.
    """
    template = _environment().get_template("index.html")
    return template.render(
        data=embedded(data),
        js=_inline(*SCRIPTS),
        projects=overview.projects,
        groups=_group_rows(overview),
        wheels=sum(project.wheels for project in overview.projects),
        root=root,
    )


GroupRow = tuple[str, str, int, list[str]]
"""A group, what its name means, how many wheels it has, and its projects."""


def _group_rows(overview: Overview) -> list[GroupRow]:
    """The rows of the table of groups."""
    wheels: Counter[str] = Counter()
    projects: dict[str, list[str]] = {}
    for project in overview.projects:
        wheels.update(project.groups)
        for group in project.groups:
            projects.setdefault(group, []).append(project.name)
    rows = []
    for group, names in sorted(projects.items()):
        row = (group, _meaning(group), wheels[group], names)
        rows.append(row)
    return rows


def _meaning(group: str) -> str:
    """`Kepler, Tesla K40; Core 4xxx (Haswell)` of a group's name; empty for a name of one's own."""
    gpu, _, cpu = group.partition("-")
    parts = []
    card = catalog.architectures().architectures.get(gpu)
    if card:
        parts.append(f"{card.name}, {card.example}")
    elif gpu in WITHOUT_CARD:
        parts.append(WITHOUT_CARD[gpu])
    level = catalog.cpu_levels().get(cpu)
    if level:
        parts.append(level.example)
    return "; ".join(parts)


WITHOUT_CARD = {"cpu": "no GPU", "mps": "Apple GPU"}


def data(overview: Overview, project: Path | None) -> dict[str, Any]:
    """Collect what the page's search reads, as JSON.

    Args:
        overview: The wheels.
        project: The project whose channels could be built.
    """
    facts = dict(official.facts())
    facts["cpu"] = official_cpu.facts()
    facts |= overview.model_dump(mode="json")
    facts["own"] = own_builds(project, overview) if project else {}
    facts["aliases"] = {"pytorch": "torch"}
    return facts


OwnRow = list[str]
"""A build as the page's search reads it: see `own_builds`."""


def own_builds(
    project: Path,
    overview: Overview | None = None,
) -> dict[str, dict[str, list[OwnRow]]]:
    """By platform and SM, builds of which `farm why --official` names the first ones that the
    driver runs.

    Each is: release, CUDA, how far it was proved and what it costs, the words of the command, the
    first driver that runs it, what the official wheel has and it lacks.
    """
    published = overview or Overview()
    rows: dict[str, dict[str, list[OwnRow]]] = {}
    for place in official_wheels.PLATFORMS:
        for name in catalog.architectures().architectures:
            sm = int(name.removeprefix("sm"))
            try:
                builds = _first_builds(project, sm, place)
            except FarmError:  # the rest of the page does not need the matrix
                return {}
            if builds:
                rows_of_gpu = [_own_row(build, published) for build in builds]
                rows.setdefault(place, {})[str(sm)] = rows_of_gpu
    return rows


def _first_builds(project: Path, sm: int, place: str) -> list[FarmBuild]:
    """The builds for a card that are among the first ones for some driver."""
    machine = machine_of((sm,), place)
    drivers: list[str] = []
    first_builds = []
    for build in buildable_here(project, machine, limit=None):
        driver = build.driver or "0"
        # Those before it that run wherever it does.
        better = [floor for floor in drivers if reaches(driver, floor)]
        if len(better) < SHOWN_BUILDS:
            first_builds.append(build)
        drivers.append(driver)
    return first_builds


def _own_row(build: FarmBuild, overview: Overview) -> OwnRow:
    about = f"{_standing(build, overview)}; {build.cost}"
    return [
        build.torch,
        str(build.cuda),
        about,
        build.words,
        build.driver or "0",
        build.without,
    ]


def _standing(build: FarmBuild, overview: Overview) -> str:
    """How far a build was proved: by this index, and by the evidence that the farm comes with."""
    variant = build.variant
    for project, published in overview.builds_of(build.channel):
        if project != "torch" or release_of(published.version) != build.torch:
            continue
        if published.group == variant.group and published.python == variant.python:
            standing = f"{HERE}: {STATES[published.state]}"
            if build.proved:
                standing += f"; {SHIPPED}: {build.proved}"
            return standing
    return build.standing


# --- what could be built


class ChannelRow(NamedTuple):
    """A channel of the page by GPU, and what was tested of it for this GPU."""

    channel: Channel
    tested: tuple[str, ...]


class GpuSection(NamedTuple):
    """What could be built for a GPU: channels that were tested for it, and the others."""

    gpu: str
    title: str
    tested: list[ChannelRow]
    untested: list[ChannelRow]


def buildable_page(
    channels: Iterable[Channel],
    evidence: Evidence,
    overview: Overview,
) -> str:
    """What could be built, by GPU: channels that were tested for it, then the others."""
    sections: dict[str, GpuSection] = {}
    for channel in channels:
        for gpu in channel.gpus:
            if gpu not in sections:
                sections[gpu] = GpuSection(
                    gpu=gpu,
                    title=_meaning(gpu),
                    tested=[],
                    untested=[],
                )
            lines = _tested_here(overview, channel.name, gpu)
            lines += _proved(evidence, channel, gpu)
            row = ChannelRow(channel, tuple(lines))
            if lines:
                sections[gpu].tested.append(row)
            else:
                sections[gpu].untested.append(row)
    ordered = []
    for gpu in ("cpu", *catalog.architectures().architectures):
        if gpu in sections:
            ordered.append(sections.pop(gpu))
    ordered += [sections[gpu] for gpu in sorted(sections)]
    template = _environment().get_template("buildable.html")
    return template.render(gpus=ordered)


def _tested_here(overview: Overview, channel: str, gpu: str) -> list[str]:
    """What this index has of a channel for a GPU."""
    lines = []
    for project, build in overview.builds_of(channel):
        group_gpu, _, _ = build.group.partition("-")
        if group_gpu == gpu:
            wheel = f"{project} {build.version} for {build.group}, {build.python}"
            lines.append(f"{HERE}: {wheel}: {STATES[build.state]}")
    return lines


def _proved(evidence: Evidence, channel: Channel, gpu: str) -> list[str]:
    """What the farm's own evidence has of a channel's torch for a GPU."""
    states: dict[str, str] = {}
    for wheel in evidence.of_channel(channel.name, "torch"):
        variant_gpu, _, _ = wheel.variant.partition("-")
        if variant_gpu == gpu:
            states[wheel.variant] = wheel.state
    lines = []
    for variant, state in states.items():
        lines.append(f"{SHIPPED}: {variant}: {state}")
    return lines


# --- a project's page


Line = tuple[str, str]
"""What an install line is for, and the line."""


class Release(NamedTuple):
    """The wheels of a release, whatever their local versions.

    Attributes:
        name: The version without its local part.
        lines: Each version, with what its install lines are for and these lines.
        wheels: Its files.
    """

    name: str
    lines: list[tuple[str, list[Line]]]
    wheels: list[Wheel]


def project_page(name: str, wheels: Sequence[Wheel], words: Words) -> str:
    """All versions and files of a project, and the line that installs each version from each
    group.
    """
    releases = []
    for release, wheels_of_release in groupby(wheels, key=_release_of_wheel):
        files = list(wheels_of_release)
        lines = []
        for version, wheels_of_version in groupby(files, key=_version_of_wheel):
            install_lines = _install_lines(wheels_of_version, words)
            lines.append((version, install_lines))
        releases.append(Release(release, lines, files))
    template = _environment().get_template("project.html")
    return template.render(
        name=name,
        releases=releases,
        count=len(wheels),
        versions=len(set(map(_version_of_wheel, wheels))),
        place=wheel_place,
        record=record_key,
    )


def _version_of_wheel(wheel: Wheel) -> str:
    return wheel.version


def _release_of_wheel(wheel: Wheel) -> str:
    return release_of(wheel.version)


def _install_lines(wheels: Iterable[Wheel], words: Words) -> list[Line]:
    """The lines that install one version, each with what it is for: a group, or one of its wheels
    where each has a line of its own.
    """
    first_wheels: dict[tuple[str, str], Wheel] = {}
    for wheel in wheels:
        if wheel.withdrawn is not None:
            continue
        for group in wheel.groups:
            line = pip_line(words, group, wheel)
            first_wheels.setdefault((group, line), wheel)
    lines_in_group = Counter(group for group, _ in first_wheels)
    labelled = []
    for group, line in sorted(first_wheels):
        label = group
        if lines_in_group[group] > 1:
            wheel = first_wheels[group, line]
            label = f"{group}, {' '.join(wheel.tags)}"
        labelled.append((label, line))
    return labelled
