"""Small pictures as SVG: where a run's time went, how wheels grew, and badges. No script, no style from outside."""

from collections.abc import Sequence

from markupsafe import Markup, escape

from farm.site.state import Step, Wheel

COLOURS = {
    "image": "#7b8794",
    "fetch": "#3e7cb1",
    "build": "#c9772b",
    "repair": "#8367a8",
    "verify": "#4c8c4a",
    "publish": "#14807a",
    "install": "#b0892e",
    "smoke": "#b5485d",
}
OTHER = "#9a9a9a"
LEGEND = [*((colour, name) for name, colour in COLOURS.items()), (OTHER, "other")]
BAR = (220, 14)
CHART = (640, 160)
_BADGE = {
    "smoked": "#1c6b3a",
    "tested": "#4a5560",
    "published": "#4a5560",
    "broken": "#a3262a",
    "withdrawn": "#a3262a",
    "running": "#8a5200",
    "waiting": "#8a5200",
    "failed": "#a3262a",
    "cancelled": "#a3262a",
}
_BADGE_OTHER = "#5a646c"


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `8.2 s`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.1f} s"


def _colour(name: str) -> str:
    return COLOURS.get(name.split(" ", maxsplit=1)[0], OTHER)


def bar(steps: Sequence[Step]) -> Markup:
    """A run as one bar, its steps as parts in proportion to their time; each says its name and time."""
    width, height = BAR
    total = sum(step.seconds for step in steps)
    if not total:
        return Markup("")
    label = "; ".join(f"{step.name} {duration(step.seconds)}" for step in steps)
    parts, at = [], 0.0
    for step in steps:
        size = width * step.seconds / total
        title = f"{step.name}: {duration(step.seconds)}, {step.outcome}"
        parts.append(
            Markup('<rect x="{:.1f}" width="{:.1f}" height="{}" fill="{}"><title>{}</title></rect>').format(
                at, size, height, _colour(step.name), title
            )
        )
        at += size
    head = Markup('<svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">')
    return head.format(width, height, label) + Markup("").join(parts) + Markup("</svg>")


def sizes(newest_first: Sequence[Wheel]) -> Markup:
    """Sizes of the wheels in the order of their publishing, one line a project, in MB."""
    wheels = list(reversed(newest_first))
    if len(wheels) < 2:
        return Markup("")
    width, height = CHART
    top = max(wheel.size for wheel in wheels) or 1
    lines = []
    for number, project in enumerate(sorted({wheel.project for wheel in wheels})):
        # From the second colour on: the first is grey.
        colour = list(COLOURS.values())[(number + 1) % len(COLOURS)]
        points = [
            (30 + (width - 40) * place / (len(wheels) - 1), height - 20 - (height - 40) * wheel.size / top)
            for place, wheel in enumerate(wheels)
            if wheel.project == project
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>').format(path, colour))
        lines += [Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="{}"/>').format(x, y, colour) for x, y in points]
        x, y = points[-1]
        lines.append(
            Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(x, max(y - 7, 12), project)
        )
    head = Markup(
        '<svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="Size of each wheel, by date">'
    )
    scale = Markup('<text x="0" y="14">{:.1f} MB</text><text x="0" y="{}">0</text>').format(top / 1e6, height - 18)
    return head.format(width, height) + scale + Markup("").join(lines) + Markup("</svg>")


def badge(left: str, right: str, state: str) -> str:
    """A badge of two fields, for READMEs. Its widths are those of DejaVu Sans at 11 px, on average."""
    one, two = (round(6.9 * len(text)) + 12 for text in (left, right))
    colour = _BADGE.get(state, _BADGE_OTHER)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{one + two}" height="20" role="img" '
        f'aria-label="{escape(left)}: {escape(right)}"><title>{escape(left)}: {escape(right)}</title>'
        f'<rect width="{one + two}" height="20" rx="4" fill="{colour}"/>'
        f'<path d="M4 0h{one - 4}v20H4a4 4 0 0 1-4-4V4a4 4 0 0 1 4-4z" fill="#333b41"/>'
        f'<g fill="#fff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{one / 2:g}" y="14">{escape(left)}</text>'
        f'<text x="{one + two / 2:g}" y="14">{escape(right)}</text></g></svg>\n'
    )
