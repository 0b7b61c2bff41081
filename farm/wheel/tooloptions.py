"""What `farm repair --tools` hands on to auditwheel and delvewheel, and which packages are namespaces.

A namespace package is one that several wheels share: a folder without `__init__.py` (PEP 420), or one whose
`__init__.py` says so (pkgutil, pkg_resources). delvewheel writes its load code into each package's `__init__.py`, which
would make it the package of one wheel alone; told of a namespace, it takes the packages inside.
"""

import os
import posixpath
import re
from typing import NamedTuple

from farm.base.errors import UsageError
from farm.platforms.facts import DEFAULT, PLATFORMS, WINDOWS
from farm.wheel.archive import Archive
from farm.wheel.needs import installed_path

_INIT_LIMIT = 1 << 20
_SHARED = rb"\bextend_path\b|\bdeclare_namespace\b"
_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_FOLDER = r"[^.:;\\]+"  # delvewheel reads a list of dotted names; this leaves .dist-info out, too
_LEVEL = r"auto|(linux|manylinux[\w]*|musllinux[\w]*)_\w+"


class ToolOptions(NamedTuple):
    """Options of the tools.

    Attributes:
        namespaces: Namespace packages by their dotted names, besides those that are seen to be some (delvewheel).
        no_mangle: DLLs that keep their names (delvewheel).
        include: DLLs that go in although no other names them (delvewheel).
        custom_patch: Load code goes where `# delvewheel: patch` stands, instead of into each package (delvewheel).
        strip: Take symbols out (auditwheel), or what hinders a change of names (delvewheel).
        plat: The wheel must not need more than this platform tag (auditwheel).
    """

    namespaces: tuple[str, ...] = ()
    no_mangle: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    custom_patch: bool = False
    strip: bool = False
    plat: str | None = None

    def check(self, *, windows: bool) -> None:
        """Raise UsageError where an option is wrong, or not for wheels of this platform."""
        theirs = {
            "--namespace-pkg": self.namespaces,
            "--no-mangle": self.no_mangle,
            "--include": self.include,
            "--custom-patch": self.custom_patch,
        }
        others = {"--plat": self.plat} if windows else theirs
        for option, given in others.items():
            if given:
                tool, platform = ("auditwheel", DEFAULT) if windows else ("delvewheel", WINDOWS)
                raise UsageError(
                    f"{option} is an option of {tool}, for wheels for {PLATFORMS[platform].title}; this one is not"
                )
        for name in self.namespaces:
            if not re.fullmatch(_DOTTED, name):
                raise UsageError(f"--namespace-pkg {name!r} is not a package's name", hint="such as google.cloud")
        for name in (*self.no_mangle, *self.include):
            if not name or set(name) & {"/", "\\", ":", ";", os.pathsep}:
                raise UsageError(f"{name!r} is not a DLL's name", hint="such as libiomp5md.dll, without a folder")
        if self.plat is not None and not re.fullmatch(_LEVEL, self.plat):
            raise UsageError(f"--plat {self.plat!r} is not a platform tag", hint="such as manylinux_2_28_x86_64")
        if self.namespaces and self.custom_patch:
            raise UsageError("--namespace-pkg and --custom-patch exclude each other")

    def auditwheel(self) -> list[str]:
        """Its arguments."""
        return [*(["--plat", self.plat] if self.plat else []), *(["--strip"] if self.strip else [])]

    def delvewheel(self, wheel: Archive) -> list[str]:
        """Its arguments, with the namespace packages of the wheel."""
        words = ["--strip"] if self.strip else []
        words += [f"--no-mangle={os.pathsep.join(self.no_mangle)}"] if self.no_mangle else []
        words += [f"--include={os.pathsep.join(self.include)}"] if self.include else []
        if self.custom_patch:
            return [*words, "--custom-patch"]
        names = sorted({*self.namespaces, *namespaces_of(wheel)})
        return [*words, *([f"--namespace-pkg={os.pathsep.join(names)}"] if names else [])]


def namespaces_of(wheel: Archive) -> list[str]:
    """A wheel's namespace packages by dotted name, outermost first; folders of data count: they import as such."""
    inits: dict[str, str] = {}  # folder to member
    folders: set[str] = set()
    for member in wheel.members:
        folder, name = posixpath.split(installed_path(member))
        if name.lower() == "__init__.py":
            inits[folder] = member
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    found = {"": ""}  # folder to dotted name
    # Outer folders first: inside of an ordinary package nothing is a namespace.
    for folder in sorted(folders, key=lambda each: (each.count("/"), each)):
        if posixpath.dirname(folder) not in found or not re.fullmatch(_FOLDER, folder):
            continue
        init = inits.get(folder)
        if init is None or (wheel.members[init].size <= _INIT_LIMIT and re.search(_SHARED, wheel.read(init))):
            found[folder] = folder.replace("/", ".")
    return [dotted for folder, dotted in found.items() if folder]
