"""Draws the pictures of the docs as SVG, from the catalogue, the evidence and a recorded session.

    python -m tools.pictures [--out FOLDER]

For maintainers: `make generate` runs it. A test says so when it was forgotten. The colours follow
the reader's light or dark theme.
"""

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

import yaml

from farm import catalog
from farm.plan.compat.answer import Question
from farm.plan.compat.official import best
from farm.plan.compat.official_wheels import PLATFORMS
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "pictures"
WHOLE = ROOT / "docs" / "evidence" / "torch-2.6.0-whole" / "official-by-group.json"
SESSION = OUT / "session.txt"
"""Recorded on 2026-11-28 in a terminal of 100 columns, without the frames that were overwritten; the
table of `farm submit` is left out."""

STYLE = """\
<style>
  text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 14px; }
  .ink { fill: #1f2328; } .soft { fill: #59636e; } .line { stroke: #818b98; fill: none; }
  .small { font-size: 12px; }
  .typed, .printed, .done { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace;
    font-size: 13px; white-space: pre; }
  .typed { fill: #1f2328; font-weight: 600; } .printed { fill: #59636e; } .done { fill: #1a7f37; } .title { font-size: 16px; font-weight: 600; }
  .box { fill: #f6f8fa; stroke: #818b98; } .key { fill: #ddf4ff; stroke: #0969da; }
  .official { fill: #1a7f37; } .limited { fill: #9a6700; } .built { fill: #0969da; }
  .planned { fill: #ffffff; stroke: #0969da; stroke-width: 2; } .none { fill: #d1d9e0; }
  .mark { fill: #ffffff; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .ink { fill: #f0f6fc; } .soft { fill: #9198a1; } .line { stroke: #656c76; }
    .box { fill: #151b23; stroke: #656c76; } .key { fill: #121d2f; stroke: #4493f8; }
    .official { fill: #3fb950; } .limited { fill: #d29922; } .built { fill: #4493f8; }
    .typed { fill: #f0f6fc; } .printed { fill: #9198a1; } .done { fill: #3fb950; }
    .planned { fill: #0d1117; stroke: #4493f8; } .none { fill: #2a313c; } .mark { fill: #0d1117; }
  }
</style>
"""

STEPS = (
    ("plan", "variant, channel and options become one file: versions, hashes, flags"),
    ("image", "a toolchain with CUDA, made once and shared by variants"),
    ("build", "in a container, without network or credentials"),
    ("repair", "bundle libraries; the tag says what the wheel needs"),
    ("verify", "GPU and CPU code, imports and metadata keep the name's promise"),
    ("publish", "to your index: a folder or a bucket; a name never changes its bytes"),
    ("install", "by pip, from the index, into a fresh environment"),
    ("smoke", "runs on the card, and on emulated old CPUs"),
)
"""The steps of `farm submit` and what each does."""

COLUMN = 56
ROW = 34
"""The size of a cell of the table of cards, in pixels."""
SUPPORT = {
    "official": "PyTorch's own wheel runs",
    "limited": "it runs, without cuDNN",
    "built": "the farm built and tested a wheel",
    "planned": "the farm plans a wheel, not built yet",
    "none": "neither",
}
MARKS = {"official": "✓", "limited": "✓", "built": "farm"}
"""What a cell says besides its colour, for readers who do not see colours."""


def svg(width: int, height: int, title: str, body: str) -> str:
    """An SVG document with the common style and a title for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n{STYLE}{body}</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>\n'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>\n'
    )


def way_of_a_wheel() -> str:
    """The steps from a plan to a smoke test, four in a row."""
    width, height, gap = 196, 104, 24
    body = ""
    for index, (name, what) in enumerate(STEPS):
        x = 8 + (index % 4) * (width + gap)
        y = 8 + (index // 4) * (height + 36)
        body += rectangle(x, y, width, height, "key" if name == "verify" else "box")
        body += text(x + 12, y + 26, f"{index + 1}  {name}", "ink title")
        for number, line in enumerate(textwrap.wrap(what, 26)):
            body += text(x + 12, y + 48 + 17 * number, line, "soft small")
        if index % 4 < 3:
            arrow = x + width + 4
            body += f'<path class="line" d="M{arrow} {y + 52}h14m-5 -5l5 5l-5 5"/>\n'
    middle = 8 + height
    last = 8 + 3 * (width + gap) + width / 2
    first = 8 + width / 2
    body += (
        f'<path class="line" d="M{last:g} {middle + 4}v14H{first:g}v14m-5 -5l5 5l5 -5" '
        'fill="none"/>\n'
    )
    title = "The way of a wheel: plan, image, build, repair, verify, publish, install, smoke test"
    return svg(8 + 4 * (width + gap), 2 * height + 52, title, body)


def minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def farm_builds() -> Iterator[tuple[int, str]]:
    """The SM and the minor release of each PyTorch that a channel plans, on any platform."""
    seen = set()
    for build in load_matrix(ROOT).builds():
        key = (build.channel, str(build.variant.gpu), build.platform, build.cuda)
        if build.package != "torch" or not build.variant.sms or key in seen:
            continue
        seen.add(key)
        options: dict[str, Choice] = {}
        if build.cuda:
            options["cuda"] = Choice(build.cuda, "--cuda")
        plan = resolve(
            ROOT, BuildRequest(build.variant, "torch", build.platform, build.channel, options)
        )
        for sm in build.variant.sms:
            yield sm, minor(plan.version)


def built_wheels() -> set[tuple[int, str]]:
    """The SM and the minor release of each PyTorch wheel in the evidence."""
    names = catalog.architectures().architectures
    entries = yaml.safe_load((ROOT / "ci" / "evidence.yaml").read_text(encoding="utf-8"))["wheels"]
    return {
        (int(gpu[2:]), minor(entry["version"]))
        for entry in entries
        if entry["package"] == "torch" and (gpu := entry["variant"].split("-")[0]) in names
    }


def official(sm: int, release: str) -> str | None:
    """How PyTorch's own wheels of a minor release serve a card: "official", "limited" or None."""
    versions = [version for version in catalog.torch_releases() if minor(version) == release]
    state = None
    for version in versions:
        for platform in PLATFORMS:
            answer = best(Question((sm,), platform, torch=version))
            if answer.runs and not answer.without:
                return "official"
            if answer.runs:
                state = "limited"
    return state


def cards_by_release() -> str:
    """Who serves a card, by release of PyTorch: one row a GPU architecture."""
    architectures = catalog.architectures()
    sms = {
        int(name[2:]): card
        for name, card in architectures.architectures.items()
        if int(name[2:]) not in architectures.tegra
    }
    releases = sorted({minor(v) for v in catalog.torch_releases()}, key=catalog.number)
    built = built_wheels()
    planned = set(farm_builds())
    left = 286
    body = ""
    for column, release in enumerate(releases):
        body += text(left + column * COLUMN + COLUMN / 2, 24, release, "ink", "middle")
    for row, (sm, card) in enumerate(sms.items()):
        top = 36 + row * ROW
        body += text(8, top + 21, f"{card.name}  sm_{sm}")
        body += text(left - 8, top + 21, card.example, "soft small", "end")
        for column, release in enumerate(releases):
            kind = official(sm, release) or "none"
            if kind != "official" and (sm, release) in built:
                kind = "built"
            elif kind == "none" and (sm, release) in planned:
                kind = "planned"
            x = left + column * COLUMN + 3
            body += rectangle(x, top + 3, COLUMN - 6, ROW - 6, kind)
            if kind in MARKS:
                letter = MARKS[kind]
                body += text(x + (COLUMN - 6) / 2, top + 22, letter, "mark small", "middle")
    bottom = 36 + len(sms) * ROW + 12
    x = 8
    for kind, words in SUPPORT.items():
        body += rectangle(x, bottom, 22, 18, kind)
        body += text(x + 30, bottom + 14, words, "ink small")
        x += 66 + 6 * len(words)
    title = "Which PyTorch release runs on which GPU, and who builds it"
    return svg(left + len(releases) * COLUMN + 8, bottom + 30, title, body)


def benchmark(threads: str) -> str:
    """The speed of the farm's wheel for AVX2 beside the official one: a bar for each group of
    operations.
    """
    run = json.loads(WHOLE.read_text(encoding="utf-8"))["runs"][f"{threads}, Xeon with AMX"]
    left = 150
    unit = 380  # pixels of the ratio 1
    body = text(
        8, 22, f"Speed beside the official wheel, geometric means ({threads}, Xeon with AMX)"
    )
    groups = [group for group in run["means"] if group != "all"]
    for row, group in enumerate([*groups, "all"]):
        top = 36 + row * 26
        ratio = run["means"][group]
        body += text(left - 10, top + 15, group, "ink small", "end")
        body += rectangle(left, top + 2, min(ratio, 1.4) * unit, 18, "built")
        end = left + min(ratio, 1.4) * unit
        body += text(end - 8, top + 15, f"{ratio:.2f}", "mark small", "end")
    bottom = 36 + (len(groups) + 1) * 26
    body += f'<path class="line" stroke-dasharray="4 4" d="M{left + unit} 32V{bottom}"/>\n'
    body += text(left + unit, bottom + 16, "as fast as the official wheel", "soft small", "middle")
    title = "PyTorch 2.6.0 of the farm beside the official wheel, by group of operations"
    return svg(740, bottom + 28, title, body)


LETTER = 7.83
"""The width of a letter of a terminal, in pixels."""
LINE = 20


def session() -> str:
    """A terminal with the recorded session: what was typed, and what the farm answered."""
    lines = SESSION.read_text(encoding="utf-8").splitlines()
    width = round(max(map(len, lines)) * LETTER) + 32
    height = len(lines) * LINE + 56
    body = rectangle(1, 1, width - 2, height - 2, "box")
    for number in range(3):
        body += f'<circle cx="{20 + 18 * number}" cy="20" r="5" class="none"/>\n'
    for row, line in enumerate(lines):
        kind = "typed" if line.startswith(("$ ", "pip ")) else "printed"
        y = 54 + row * LINE
        if line.startswith("✓ "):
            body += text(16, y, "✓", "done")
        body += text(16, y, line.replace("✓", " ", 1), kind)
    title = "A terminal: farm why --official for a GTX 1080 Ti, and farm submit for a Tesla K40"
    return svg(width, height, title, body)


PICTURES: dict[str, Callable[[], str]] = {
    "way-of-a-wheel.svg": way_of_a_wheel,
    "session.svg": session,
    "cards-by-release.svg": cards_by_release,
    "benchmark-16-threads.svg": lambda: benchmark("16 threads"),
    "benchmark-1-thread.svg": lambda: benchmark("1 thread"),
}


def main() -> None:
    options = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    options.add_argument("--out", type=Path, default=OUT)
    folder = options.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
