"""Where an ELF file looks for libraries, entry by entry: what `verify` refuses there, and repair takes out."""

from fnmatch import fnmatchcase

from farm.wheel.expansion import ABOVE, SITE, System, expanded
from farm.wheel.needs import installed_path
from farm.wheel.policy import defaults


def foreign(member: str, entry: str) -> str | None:
    """Why an entry of a wheel's library leads elsewhere than into site-packages; None where it stays inside.

    Args:
        member: The library's name in the wheel.
        entry: Of its RUNPATH or RPATH, as it stands there (ld.so(8)).
    """
    if any(fnmatchcase(entry, pattern) for pattern in defaults("build_folders")):
        return None
    if not entry:
        return "an empty entry in its RUNPATH: the folder in which the program happens to be started"
    path = expanded(member, entry, "", System.FEDORA)
    if not path.startswith("/"):
        return f"its RUNPATH names {entry}, relative to the folder in which the program happens to be started"
    if entry.startswith("/"):
        return f"its RUNPATH names {entry}, a folder of the machine that built it"
    # Official wheels of jaxlib miscount so. It is beside Python's own modules, from where the package itself would be
    # imported if it lay there: who can write there needs no RUNPATH.
    package = installed_path(member).split("/")[0]
    if not f"{path}/".startswith((f"{SITE}/", f"{ABOVE}/{package}/")):
        return f"its RUNPATH {entry} leads out of site-packages"
    return None
