"""What the first page shows of all wheels, as data inside that page.

It is read back from the page, so that a publish changes the rows of one project and need not read
the other projects.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from packaging.version import Version
from pydantic import BaseModel, ConfigDict

from farm.site.wheels import Wheel

Words = Callable[[str, str], tuple[str, ...]]
"""Group and file name of a wheel -> the arguments of `pip install` for it."""

FIRST_PROJECT = "torch"
"""At the head of lists: the others are its helpers."""
_EMBEDDED = re.compile(rb'<script type="application/json" id="data">(.*)</script>')


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Model):
    """The newest wheel of a project in a group.

    Attributes:
        project: Its project.
        group: The group.
        version: Its version.
        sms: What it has machine code for.
        tags: The Pythons of all wheels of the project in the group.
        verified: The code that was verified, in words; empty if none was.
        without: What the official wheel has and it lacks.
        pip: The line that installs it; None where addresses are not known.
        pip_for: What that line is for, where the group has the version for other Pythons or
            systems, too.
    """

    project: str
    group: str
    version: str
    sms: tuple[int, ...]
    tags: tuple[str, ...]
    verified: str
    without: str
    pip: str | None
    pip_for: str


class Build(_Model):
    """The newest wheel that a channel built for a group and Python.

    Attributes:
        channel: The channel.
        group: A group that lists the wheel: in most its GPU and CPU level.
        python: Its Python, by the file's name.
        version: Its version.
        state: A key of `farm.site.wheels.STATES`.
    """

    channel: str
    group: str
    python: str
    version: str
    state: str


class ProjectSummary(_Model):
    """A row of the table of projects.

    Attributes:
        name: Its name.
        newest: The version that pip takes; empty if all wheels are withdrawn.
        versions: How many versions there are.
        releases: The versions without their local parts, newest first.
        wheels: How many wheels there are.
        verified: How many of them were verified.
        published: The day of the last publish.
        groups: How many wheels each group has.
        builds: What was built by a channel.
    """

    name: str
    newest: str
    versions: int
    releases: tuple[str, ...]
    wheels: int
    verified: int
    published: str
    groups: dict[str, int]
    builds: tuple[Build, ...]


class Overview(_Model):
    """All projects that have wheels, torch first, and their newest wheels."""

    projects: tuple[ProjectSummary, ...] = ()
    there: tuple[Row, ...] = ()

    @classmethod
    def of(cls, wheels: Sequence[Wheel], words: Words | None) -> "Overview":
        """Sum up wheels, the newest first."""
        projects = []
        rows: list[Row] = []
        for name, wheels_of_project in by_project(wheels).items():
            summary = _summary(name, wheels_of_project)
            projects.append(summary)
            rows += _rows(name, wheels_of_project, words)
        return cls(
            projects=tuple(projects),
            there=_in_order(rows),
        )

    def with_projects(self, names: Collection[str], update: "Overview") -> "Overview":
        """The overview with these projects as another one has them."""
        projects = list(update.projects)
        for project in self.projects:
            if project.name not in names:
                projects.append(project)
        projects.sort(key=lambda project: _rank(project.name))

        rows = list(update.there)
        for row in self.there:
            if row.project not in names:
                rows.append(row)
        return Overview(
            projects=tuple(projects),
            there=_in_order(rows),
        )

    def builds_of(self, channel: str) -> Iterator[tuple[str, Build]]:
        """The projects and builds of a channel."""
        for project in self.projects:
            for build in project.builds:
                if build.channel == channel:
                    yield project.name, build


def overview_in(page: bytes) -> Overview | None:
    """The overview inside a first page; None if this version of the farm did not write it."""
    match = _EMBEDDED.search(page)
    if match is None:
        return None
    try:
        document = json.loads(match[1])
        fields = {name: document[name] for name in Overview.model_fields}
        return Overview.model_validate(fields)
    except (ValueError, KeyError, TypeError, RecursionError):  # ValidationError is a ValueError
        return None


def by_project(wheels: Iterable[Wheel]) -> dict[str, list[Wheel]]:
    """The wheels of each project in the order in which they come; torch is the first project."""
    projects: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        projects.setdefault(wheel.project, []).append(wheel)
    ordered = {}
    for name in sorted(projects, key=_rank):
        ordered[name] = projects[name]
    return ordered


def newest_version(wheels: Iterable[Wheel]) -> str:
    """The version that pip takes: the newest that is no pre-release, or the newest of these.

    Returns:
        The version; empty if all are withdrawn.
    """
    versions = []
    releases = []
    for wheel in wheels:
        if wheel.withdrawn is not None:
            continue
        version = Version(wheel.version)
        versions.append(version)
        if not version.is_prerelease:
            releases.append(version)
    return str(max(releases or versions, default=""))


def release_of(version: str) -> str:
    """A version without its local part."""
    return Version(version).public


def _rank(project: str) -> tuple[bool, str]:
    """A key to sort projects by."""
    return project != FIRST_PROJECT, project


def _in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows by project and group."""
    in_order = sorted(rows, key=lambda row: (row.project, row.group))
    return tuple(in_order)


def _summary(name: str, wheels: Sequence[Wheel]) -> ProjectSummary:
    """The row of a project in the table of projects."""
    groups: Counter[str] = Counter()
    releases: dict[str, None] = {}
    versions = set()
    verified = 0
    published = ""
    for wheel in wheels:
        groups.update(wheel.groups)
        versions.add(wheel.version)
        releases[release_of(wheel.version)] = None
        published = max(published, wheel.uploaded)
        if wheel.report is not None:
            verified += 1
    return ProjectSummary(
        name=name,
        newest=newest_version(wheels),
        versions=len(versions),
        releases=tuple(releases),
        wheels=len(wheels),
        verified=verified,
        published=published[:10],
        groups=dict(sorted(groups.items())),
        builds=tuple(_builds(wheels)),
    )


def _builds(wheels: Iterable[Wheel]) -> list[Build]:
    """What channels built, of which the newest wheel counts."""
    builds: dict[tuple[str, str, str], Build] = {}
    for wheel in wheels:
        if wheel.channel is None or wheel.withdrawn is not None:
            continue
        for group in wheel.groups:
            build = Build(
                channel=wheel.channel,
                group=group,
                python=wheel.tags[0],
                version=wheel.version,
                state=wheel.state,
            )
            key = (build.channel, build.group, build.python)
            builds.setdefault(key, build)
    return [builds[key] for key in sorted(builds)]


def pip_line(words: Words, group: str, wheel: Wheel) -> str:
    """The line that installs a wheel from a group."""
    arguments = words(group, wheel.filename)
    return shlex.join(["pip", "install", *arguments])


def _rows(name: str, wheels: Iterable[Wheel], words: Words | None) -> Iterator[Row]:
    """The newest wheel of the project in each group."""
    wheels_by_group: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        if wheel.withdrawn is None:
            for group in wheel.groups:
                wheels_by_group.setdefault(group, []).append(wheel)
    for group, wheels_of_group in wheels_by_group.items():
        wheel = _first_for_pip(wheels_of_group)
        pythons = {file.tags[0] for file in wheels_of_group}
        verified = ""
        if wheel.report:
            verified = wheel.report.code
        pip = None
        if words is not None:
            pip = pip_line(words, group, wheel)
        yield Row(
            project=name,
            group=group,
            version=wheel.version,
            sms=wheel.sms,
            tags=tuple(sorted(pythons)),
            verified=verified,
            without=wheel.without,
            pip=pip,
            pip_for=_python_of_line(wheel, wheels_of_group),
        )


def _python_of_line(wheel: Wheel, wheels: Sequence[Wheel]) -> str:
    """What the line of one wheel is for, where the group has the version for others, too."""
    versions = [file.version for file in wheels]
    if versions.count(wheel.version) == 1:
        return ""
    return " ".join(wheel.tags)


def _first_for_pip(wheels: Sequence[Wheel]) -> Wheel:
    """The wheel that pip takes of a group, the newest first: a pre-release only if there is
    nothing else.
    """
    for wheel in wheels:
        if not Version(wheel.version).is_prerelease:
            return wheel
    return wheels[0]
