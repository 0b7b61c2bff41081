#!/usr/bin/env python3
"""Installs a standalone Python (python-build-standalone): downloads, checks and unpacks it.

    python3 install_python.py URL SHA256 VERSION PREFIX

The image's own Python runs it, 3.9 or newer. FARM_ARCHIVES, a folder or the URL of one, is where
the archive is looked for first, by its name. In the archive all lies below `python/`. The compilers
that its `sysconfig` names are those of the machine that it was built on: they become `cc` and
`c++`, which a build replaces by CC and CXX.

Exit codes: 0 done, 6 the archive is not what was pinned, 9 network or disk.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from install_toolkit import ArchiveError, InstallError, digest, fetch, from_archives, public_url

LIMIT = 256 << 20
TOP = "python"
ASK = (
    "import sys, sysconfig; print(sys.version.split()[0], "
    "int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))"
)
OTHERS_COMPILERS = (
    (re.compile(r"[\w/.-]*clang\+\+"), "c++"),
    (re.compile(r"[\w/.-]*clang(?![\w+])"), "cc"),
    (re.compile(r"(?:/[\w.-]+)*/?[\w-]*-linux-gnu-g\+\+"), "c++"),
    (re.compile(r"(?:/[\w.-]+)*/?[\w-]*-linux-gnu-gcc"), "cc"),
    (re.compile(r"[\w/.-]*llvm-(ar|profdata)"), r"\1"),
    (re.compile(r" ?-fdebug-default-version=\d+"), ""),  # gcc does not know it
)


def unpack(archive: Path, prefix: Path) -> None:
    """What lies below `python/` becomes the prefix.

    Raises:
        ArchiveError: It is no such archive.
    """
    with tempfile.TemporaryDirectory(dir=prefix.parent) as folder:
        try:
            with tarfile.open(archive) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(folder, filter="tar")
                else:  # the sha256 says whose archive it is
                    tar.extractall(folder)  # noqa: S202
        except (tarfile.TarError, EOFError) as error:
            raise ArchiveError(f"{archive.name}: {error}") from None
        unpacked = Path(folder, TOP)
        if not (unpacked / "bin/python3").exists():
            raise ArchiveError(f"{archive.name}: no {TOP}/bin/python3 in it")
        unpacked.rename(prefix)


def localized(text: str, prefix: Path) -> str:
    """A `_sysconfigdata_*.py` for this place and this system's compilers."""
    text = re.sub(r"(?<![\w/])/install(?=[/'\" ])", str(prefix), text)
    for pattern, name in OTHERS_COMPILERS:
        text = pattern.sub(name, text)
    return text


def install(url: str, sha256: str, version: str, prefix: Path) -> None:
    """Raises InstallError: see the exit codes."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "python.tar.gz")
        if not from_archives(url, sha256, archive, LIMIT):
            fetch(url, archive, LIMIT)
            if (found := digest(archive)) != sha256:
                raise ArchiveError(f"{public_url(url)}: sha256 {found}, pinned is {sha256}")
        unpack(archive, prefix)
    for file in sorted(prefix.glob("lib/python3*/_sysconfigdata_*.py")):
        file.write_text(localized(file.read_text(encoding="utf-8"), prefix), encoding="utf-8")
    result = subprocess.run(
        [str(prefix / "bin/python3"), "-I", "-c", ASK], capture_output=True, text=True, check=False
    )
    answer = result.stdout.split()
    if (
        result.returncode
        or answer[0] != version.rstrip("t")
        or (answer[1] == "1") != version.endswith("t")
    ):
        raise ArchiveError(
            f"{public_url(url)}: no Python {version}: "
            f"{(result.stdout or result.stderr)[-300:].strip()}"
        )
    print(f"Python {version} in {prefix}")


def main() -> int:
    url, sha256, version, prefix = sys.argv[1:]
    try:
        install(url, sha256, version, Path(prefix))
    except InstallError as error:
        print(f"install_python: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(
            f"install_python: {error}; check the network, disk space and permissions",
            file=sys.stderr,
        )
        return 9
    return 0


if __name__ == "__main__":
    sys.exit(main())
