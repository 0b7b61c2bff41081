"""What the parts of refresh-catalogue share: records as text, the choice of a wheel to read, and
notes for a person.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from tools.package_index import RemoteWheel, Wheel, release_key, wheels

OLDEST_TORCH = (1, 12)
PLATFORMS = {"linux": "manylinux.*x86_64", "windows": "win_amd64", "macos": "macosx.*arm64"}
"""Operating systems, as `pythons` in `torch.yaml` names them, with the platform tags of wheels."""
MACHINES = {
    "linux-x86_64": "manylinux.*x86_64",
    "linux-aarch64": "manylinux.*aarch64",
    "windows-x86_64": "win_amd64",
}
"""Systems with their processors, with the platform tags of wheels."""
JOBS = 6

Proposal = tuple[str, str, str]
"""The file's section, the record's key, the record's text."""


class Notes:
    """Facts that a person must add."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)


def insert(text: str, section: str, key: str, record: str) -> str:
    """The YAML text with a record more in a top-level section, in the order of versions."""
    # As text: a YAML library would lose the comments and the layout.
    lines = text.splitlines(keepends=True)
    start = lines.index(next(line for line in lines if line.startswith(f"{section}:"))) + 1
    place = start
    for number in range(start, len(lines)):
        match = re.match(r'  "?([\d.]+)"?:', lines[number])
        if match and release_key(match[1]) > release_key(key):
            place = number
            break
        if re.match(r"[a-z_]+:", lines[number]):
            break
        if lines[number].startswith("  "):
            place = number + 1
    return "".join([*lines[:place], record, *lines[place:]])


def append(text: str, record: str) -> str:
    """The YAML text with a record more at the end of its list `wheels`."""
    return text.replace("wheels: []\n", "wheels:\n").rstrip("\n") + "\n" + record


def flow_list(items: Iterable[str]) -> str:
    """A YAML list on one line: `[a, b]`."""
    return f"[{', '.join(items)}]"


def python_order(name: str) -> tuple[int, bool]:
    """The key that sorts `py39`, `py310`, `py313`, `py313t`."""
    return int(name.removeprefix("py3").removesuffix("t") or 0), name.endswith("t")


def by_version(index: str, package: str) -> dict[str, list[Wheel]]:
    """The wheels of each release of a package on the index."""
    releases: dict[str, list[Wheel]] = {}
    for wheel in wheels(index, package):
        releases.setdefault(wheel.version, []).append(wheel)
    return releases


def on_platform(candidates: Iterable[Wheel], platform: str) -> Iterator[Wheel]:
    """The wheels whose platform tag matches a pattern whole."""
    for wheel in candidates:
        if re.fullmatch(platform, wheel.platform):
            yield wheel


def pythons_on(candidates: Iterable[Wheel], platform: str) -> list[str]:
    """The Pythons that have a wheel for a platform, in order."""
    return sorted({wheel.python for wheel in on_platform(candidates, platform)}, key=python_order)


def wheel_to_read(candidates: Sequence[Wheel], platform: str) -> Wheel | None:
    """The wheel that is read for a release and platform: of the oldest Python that is not
    free-threaded.
    """
    with_gil = [w for w in on_platform(candidates, platform) if not w.python.endswith("t")]
    return min(with_gil, key=lambda wheel: (python_order(wheel.python), wheel.file), default=None)


def version_facts(wheel: RemoteWheel, package: str) -> dict[str, str]:
    """Values that `<package>/version.py` assigns: `git_version`, `cuda`."""
    name = wheel.find(f"{package}/version.py")
    if name:
        return dict(re.findall(r"^(\w+)(?::[^=]*)? = '([^']*)'", wheel.text(name), re.MULTILINE))
    return {}


def pinned_version(requirements: Iterable[str], pattern: str) -> str | None:
    """The version that the first matching requirement pins, e.g. of `torch==2.6.0`.

    Args:
        requirements: The wheel's `Requires-Dist`.
        pattern: A regular expression for the package's name.
    """
    for line in requirements:
        if match := re.match(rf"{pattern} ?\(?==([\d.]+)", line):
            return match[1]
    return None
