"""`farm inspect --tree`: each library with its device code, its CPU features and, below it, what it needs."""

from farm.cli import show
from farm.cli.contents import components
from farm.wheel.inspect import WheelContents
from farm.wheel.library import Library
from farm.wheel.needs import Need


def print_tree(contents: WheelContents) -> None:
    """The wheel as a tree of lines."""
    show.say(f"{contents.file} ({contents.size / 1e6:.1f} MB)")
    for line in components(contents):
        show.say(line)
    by_who: dict[str, list[Need]] = {}
    for need in contents.needs:
        by_who.setdefault(need.who, []).append(need)
    for index, library in enumerate(contents.libraries):
        last = index + 1 == len(contents.libraries)
        show.say(f"{'└── ' if last else '├── '}{library.path} ({library.size / 1e6:.2f} MB)")
        lines = [*_facts(library), *map(_need, by_who.get(library.path, []))]
        for number, line in enumerate(lines):
            stem = "    " if last else "│   "
            show.say(f"{stem}{'└── ' if number + 1 == len(lines) else '├── '}{line}")


def _facts(library: Library) -> list[str]:
    if library.error:
        return [f"cannot be read: {library.error}"]
    lines = []
    if library.linker:
        lines.append(f"made by MSVC linker {library.linker}")
    for found in library.fatbins:
        sass = " ".join(f"sm_{sm}" for sm in found.sass) or "none"
        ptx = " ".join(f"compute_{sm}" for sm in found.ptx)
        lines.append(f"{found.containers} fat binaries: {sass}{', PTX ' + ptx if ptx else ''}")
    code = library.instructions
    if code:
        counts = ", ".join(f"{feature} {count}" for feature, (count, _) in code.beyond.items())
        lines.append(f"CPU: {code.not_checked or counts or 'nothing beyond ' + code.level}")
    elif library.is_loadable:
        lines.append("CPU: not decoded (--cpu)")
    return lines


def _need(need: Need) -> str:
    on = {"load": "", "call": " (when called)", "name": " (by name)"}[need.when]
    return f"needs {need.name}{on}: {need.answer}{' ' + need.by if need.by else ''}"
