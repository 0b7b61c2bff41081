"""The two pages: HTML from data, everything escaped, each page whole in one file."""

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from farm.index.layout import record_key
from farm.index.layout import wheel_key as wheel_place
from farm.run.journal import Phase
from farm.site import charts
from farm.site.offers import Offer
from farm.site.payload import GROUP
from farm.site.state import STATES, Known, RunView, Wheel

TEMPLATES = Path(__file__).parent / "templates"
MARKS = {
    "smoked": "✔✔",
    "tested": "✔",
    "published": "✔",
    "broken": "✘",
    "running": "▶",
    "waiting": "…",
    "withdrawn": "✕",
    "failed": "✘",
    "cancelled": "✘",
    "open": "○",
    "blocked": "✕",
}
SHOWN_RUNS = 50
SHOWN_WHEELS = 100


class Inline(NamedTuple):
    """Text inside a page, and its hash for the page's content security policy."""

    text: Markup
    hash: str


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)


@cache
def _inline(name: str) -> Inline:
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).digest()
    # The policy of the page lets run what has this hash, and nothing that got into it otherwise.
    return Inline(Markup(text), f"sha256-{base64.b64encode(digest).decode()}")  # noqa: S704 our own files


def embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that can stand inside a script element whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    # `</script>` would end the element; U+2028 and U+2029 end a line in older JavaScript.
    for character, escape in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(character, escape)
    return Markup(text)  # noqa: S704 escaped above


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def selector(data: Mapping[str, Any], offers: Sequence[Offer], known: Known) -> str:
    """The page on which a user picks a wheel."""
    wheels = {offer.key: (offer, wheel) for offer in offers if (wheel := known.wheel(offer))}
    published = [
        {
            "variant": offer.variant,
            "platform": offer.platform,
            "requirement": f"{offer.package}=={wheel.version}",
            "size": megabytes(wheel.size),
            "driver": offer.driver,
        }
        for offer, wheel in wheels.values()
    ]
    return (
        _environment()
        .get_template("index.html")
        .render(
            css=_inline("site.css"),
            js=_inline("selector.js"),
            data=embedded(data),
            published=published,
            group=GROUP,
            pip=shlex.join(("pip", "install", "REQUIREMENT", *data["pip"])),
        )
    )


def farm_page(offers: Sequence[Offer], known: Known, links: Mapping[str, Sequence[tuple[str, str]]], root: str) -> str:
    """The page that shows how the farm stands. `links`: run -> (name, address) of its files."""
    newest = sorted(known.wheels, key=lambda wheel: (wheel.uploaded, wheel.filename), reverse=True)
    # Not the time now: pages that did not change must not be written anew.
    times = [run.created for run in known.runs] + [wheel.uploaded for wheel in newest]
    return (
        _environment()
        .get_template("farm.html")
        .render(
            css=_inline("site.css"),
            states=STATES,
            marks=MARKS,
            counts={"published": len(known.wheels), "offers": len(offers)},
            updated=max(times, default="")[:16].replace("T", " "),
            grids=list(_grids(offers, known)),
            troubles=list(_troubles(offers, known)),
            runs=[_run(run, links.get(run.id, ())) for run in known.runs[:SHOWN_RUNS]],
            legend=charts.LEGEND,
            wheels=[_wheel(wheel) for wheel in newest[:SHOWN_WHEELS]],
            chart=charts.sizes(newest),
            root=root,
        )
    )


class Cell(NamedTuple):
    state: str
    text: str


def _grids(offers: Sequence[Offer], known: Known) -> Iterator[dict[str, Any]]:
    for channel, group in groupby(offers, key=lambda offer: offer.channel):
        builds = list(group)
        cpus = list(dict.fromkeys(offer.cpu for offer in builds))
        rows: dict[tuple[str, str, str, str, str | None], dict[str, Cell]] = {}
        counts: Counter[str] = Counter()
        for offer in builds:
            state, why = known.state(offer)
            counts[state] += 1
            text = f"{offer.package} {offer.version} {offer.variant}: {STATES[state]}" + (f": {why}" if why else "")
            row = rows.setdefault((offer.package, offer.platform, offer.gpu, offer.python, offer.cuda), {})
            row[offer.cpu] = Cell(state, text)
        yield {
            "name": channel,
            "title": f"{len(builds)} builds",
            "proved": [f"{offer.package} {offer.variant}: {offer.proved}" for offer in builds if offer.proved],
            "summary": ", ".join(f"{counts[state]} {STATES[state]}" for state in STATES if counts[state]),
            "open": any(counts[state] for state in STATES if state not in ("cancelled", "open", "blocked")),
            "cpus": cpus,
            "rows": [
                dict(zip(("package", "platform", "gpu", "python", "cuda"), key, strict=True))
                | {"cells": [cells.get(cpu) for cpu in cpus]}
                for key, cells in rows.items()
            ],
        }


def _troubles(offers: Sequence[Offer], known: Known) -> Iterator[dict[str, str]]:
    seen = set()
    for offer in offers:
        state, why = known.state(offer)
        if why and (offer.key, why) not in seen:
            seen.add((offer.key, why))
            yield {"name": f"{offer.channel}: {offer.package} {offer.variant}", "state": state, "why": why}


_ENDED = {
    Phase.SUCCEEDED: ("done", "published"),
    Phase.FAILED: ("failed", "failed"),
    Phase.INFRASTRUCTURE: ("failed: infrastructure", "failed"),
    Phase.CANCELLED: ("cancelled", "cancelled"),
}
"""Ends of runs in the table: the word, and the style of the cell."""


def _run(run: RunView, links: Sequence[tuple[str, str]]) -> dict[str, Any]:
    ended, mark = _ENDED.get(run.phase, (str(run.phase), "running"))
    return {
        "id": run.id,
        "package": run.package,
        "version": run.version,
        "variant": run.variant,
        "ended": ended,
        "mark": mark,
        "why": run.why,
        "time": charts.duration(run.seconds),
        "bar": charts.bar(run.steps),
        "cache": f"{run.cached[0] / run.cached[1]:.0%} of {run.cached[1]}" if run.cached else "-",
        "links": links,
    }


def _wheel(wheel: Wheel) -> dict[str, str]:
    return {
        "filename": wheel.filename,
        "url": quote(wheel_place(wheel.filename)),
        "record": quote(record_key(wheel.filename)),
        "date": wheel.uploaded[:10],
        "size": megabytes(wheel.size),
        "sha256": wheel.sha256,
    }
