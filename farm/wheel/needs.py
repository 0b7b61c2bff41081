"""One library needs another: the words for it, the same for every operating system."""

from dataclasses import dataclass
from enum import StrEnum


class Answer(StrEnum):
    """Where a needed library comes from."""

    WHEEL = "wheel"
    DEPENDENCY = "dependency"  # another wheel, which METADATA requires, brings it
    SYSTEM = "system"
    PYTHON = "python"  # the interpreter brings it (Windows)
    RUNTIME = "vc runtime"  # Microsoft's redistributable package, which users install
    DRIVER = "driver"  # the GPU driver's (Windows; on Linux it is excluded)
    EXCLUDED = "excluded"
    UNREACHABLE = "unreachable"  # in the wheel, but the loader does not look there
    MISSING = "missing"


@dataclass(frozen=True)
class Need:
    """`who` needs `name`; `by` is the member that answers or, if unreachable, could.

    `when`: `load`; `call` for delay loads; `name` for what the code asks LoadLibrary for.
    """

    who: str
    name: str
    answer: Answer
    by: str | None = None
    when: str = "load"


def installed_path(member: str) -> str:
    """Where a member lies below site-packages: `x.data/platlib/` and `x.data/purelib/` are unpacked there."""
    parts = member.split("/", 2)
    if len(parts) == 3 and parts[0].endswith(".data") and parts[1] in ("platlib", "purelib"):
        return parts[2]
    return member
