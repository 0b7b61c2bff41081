"""The pages: HTML from data, everything escaped, each page whole in one file."""

import base64
import hashlib
import json
import shlex
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
from farm.index.layout import record_key
from farm.index.layout import wheel_key as wheel_place
from farm.plan.evidence import Evidence
from farm.plan.matrix import Channel
from farm.site.wheels import STATES, Wheel

TEMPLATES = Path(__file__).parent / "templates"


class Inline(NamedTuple):
    """Text inside a page, and its hash for the page's content security policy."""

    text: Markup
    hash: str


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"megabytes": megabytes, "quoted": quote}
    made.globals |= {"css": _inline("site.css"), "states": STATES}
    return made


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


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def project_key(project: str) -> str:
    return f"project/{project}.html"


def of_project(there: Sequence[Wheel]) -> dict[str, list[Wheel]]:
    """The wheels by project, in the order of names; of each the newest first."""
    return {
        name: [*found]
        for name, found in groupby(sorted(there, key=lambda each: each.project), lambda each: each.project)
    }


def index_page(
    data: Mapping[str, Any], there: Sequence[Wheel], channels: Iterable[Channel], evidence: Evidence, root: str
) -> str:
    """Published wheels by project and by group; then what could be built."""
    projects = [
        {
            "name": name,
            "newest": next((wheel.version for wheel in found if wheel.withdrawn is None), "all withdrawn"),
            "versions": len({wheel.version for wheel in found}),
            "wheels": len(found),
            "groups": len({group for wheel in found for group in wheel.groups}),
            "checked": sum(wheel.report is not None for wheel in found),
            "date": max(wheel.uploaded for wheel in found)[:10],
        }
        for name, found in of_project(there).items()
    ]
    counted = Counter(group for wheel in there for group in wheel.groups)
    named: dict[str, set[str]] = {}
    for wheel in there:
        for group in wheel.groups:
            named.setdefault(group, set()).add(wheel.project)
    groups = [(group, _meaning(group), counted[group], sorted(named[group])) for group in sorted(counted)]
    offered = [(channel, _tested(evidence, channel.name)) for channel in channels]
    return (
        _environment()
        .get_template("index.html")
        .render(
            data=embedded(data),
            js=_inline("answers.js", "page.js"),
            projects=projects,
            groups=groups,
            wheels=len(there),
            channels=sorted(offered, key=lambda pair: not pair[1]),
            root=root,
        )
    )


def _tested(evidence: Evidence, channel: str) -> str:
    found = {wheel.variant: wheel.state for wheel in evidence.of_channel(channel, "torch")}
    return "; ".join(f"{variant}: {state}" for variant, state in found.items())


def _meaning(group: str) -> str:
    """`Kepler, Tesla K40; Core 4xxx (Haswell)` of a group's name; empty for a name of one's own."""
    gpu, _, cpu = group.partition("-")
    card, level = catalog.architectures().architectures.get(gpu), catalog.cpu_levels().get(cpu)
    words = [f"{card.name}, {card.example}"] if card else {"cpu": ["no GPU"], "mps": ["Apple GPU"]}.get(gpu, [])
    return "; ".join([*words, *([level.example] if level else [])])


def project_page(name: str, found: Sequence[Wheel], sources: Mapping[str, tuple[str, ...]]) -> str:
    """All versions and files of a project, and the line that installs each version from each group."""
    versions = []
    for version, files in groupby(found, key=lambda wheel: wheel.version):
        listed = list(files)
        groups = sorted({group for wheel in listed for group in wheel.groups if wheel.withdrawn is None})
        lines = [(group, shlex.join(["pip", "install", f"{name}=={version}", *sources[group]])) for group in groups]
        versions.append((version, listed, lines))
    return (
        _environment()
        .get_template("project.html")
        .render(name=name, versions=versions, count=len(found), place=wheel_place, record=record_key)
    )
