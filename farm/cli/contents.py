"""Tables of a wheel's content."""

from collections.abc import Iterator

from farm.cli.show import say, table
from farm.wheel.inspect import WheelContents
from farm.wheel.library import Library
from farm.wheel.needs import Need


def show_contents(contents: WheelContents) -> None:
    """The tables of a wheel's content."""
    say(f"{contents.file}: {contents.size / 1e6:.1f} MB, {contents.unpacked / 1e6:.1f} MB unpacked")
    say(f"tags: {', '.join(contents.tags)}; {_floor(contents)}")
    rows = []
    for library in contents.libraries:
        for found in library.fatbins:
            sass = " ".join(f"sm_{sm}" for sm in found.sass) or "-"
            ptx = " ".join(f"compute_{sm}" for sm in found.ptx) or "-"
            rows.append((library.path, sass, ptx, str(found.containers), f"{found.bytes / 1e6:.2f}"))
    if rows:
        table("device code", ("library", "SASS", "PTX", "fat binaries", "MB"), rows)
    else:
        say("device code: none")
    for line in components(contents):
        say(line)
    libraries = []
    for library in contents.libraries:
        code = library.instructions
        beyond = "not read: " + library.error if library.error else ""
        if code:
            counts = [f"{feature} {count}" for feature, (count, _) in code.beyond.items()]
            beyond = code.not_checked or ", ".join(counts) or f"nothing beyond {code.level}"
        elif library.is_loadable and not library.error:
            beyond = "not decoded (--cpu)"
        linker = f"MSVC linker {library.linker}" if library.linker else ""
        libraries.append((library.path, f"{library.size / 1e6:.2f}", linker or "-", beyond))
    table("libraries", ("library", "MB", "made by", "CPU features (instructions)"), libraries)
    needs = [(need.who, need.name, need.when, need.answer, need.by or "") for need in contents.needs]
    table("imports", ("library", "needs", "on", "answered by", "member"), needs)


def components(contents: WheelContents) -> Iterator[str]:
    """A line for each of NVIDIA's components inside a wheel."""
    for part in contents.components:
        sass = " ".join(f"sm_{sm}" for sm in part.sass) or "no machine code"
        ptx = "".join(f" compute_{sm}" for sm in part.ptx)
        which = f"{sass}, PTX{ptx}" if ptx else sass
        yield f"{part.name} inside ({len(part.libraries)} libraries), which supports {which}"


def _floor(contents: WheelContents) -> str:
    """The oldest system that the libraries allow, as far as it follows from them."""
    linkers = sorted({library.linker for library in contents.libraries if library.linker and library.is_loadable})
    if linkers:
        return f"made by MSVC linker {', '.join(linkers)}: needs a Visual C++ runtime that is not older"
    if not contents.libraries and not contents.manylinux:
        return "no libraries that are read (ELF, PE)"
    return f"its libraries allow: {contents.manylinux or f'none: {contents.manylinux_problem}'}"


def print_tree(contents: WheelContents) -> None:
    """The wheel as a tree of lines."""
    say(f"{contents.file} ({contents.size / 1e6:.1f} MB)")
    for line in components(contents):
        say(line)
    by_who: dict[str, list[Need]] = {}
    for need in contents.needs:
        by_who.setdefault(need.who, []).append(need)
    for index, library in enumerate(contents.libraries):
        last = index + 1 == len(contents.libraries)
        say(f"{'└── ' if last else '├── '}{library.path} ({library.size / 1e6:.2f} MB)")
        lines = [*_facts(library), *map(_need, by_who.get(library.path, []))]
        for number, line in enumerate(lines):
            stem = "    " if last else "│   "
            say(f"{stem}{'└── ' if number + 1 == len(lines) else '├── '}{line}")


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
