"""The files of a source tree, and the hash over them."""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from farm.errors import UsageError

_LISTED = (["--cached", "--recurse-submodules"], ["--others", "--exclude-standard"])
"""What git tracks, and what it would add: it lists no submodules with the latter."""


def tree_files(root: Path) -> list[Path]:
    """The files of a source tree in a stable order, without caches that Python leaves behind.

    Of a git checkout those that git tracks or would add: what builds leave there is ignored, or else is source.

    Raises:
        UsageError: Git does not list the files of the checkout.
    """
    found = _of_checkout(root) if (root / ".git").exists() else root.rglob("*")
    files = (p for p in found if p.is_file() and "__pycache__" not in p.parts)
    return sorted(files, key=lambda p: p.relative_to(root).parts)  # paths of Windows compare without case


def _of_checkout(root: Path) -> set[Path]:
    # Those that a hook of git sets are about another checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    found = set()
    for which in _LISTED:
        command = ["git", "-C", str(root), "ls-files", "-z", *which]
        try:
            done = subprocess.run(command, capture_output=True, check=False, env=environment)
        except FileNotFoundError as error:
            raise UsageError(f"{root} is a git checkout, and there is no git", hint="install git") from error
        if done.returncode:
            raise UsageError(
                f"git cannot list the files of {root}: {done.stderr.decode(errors='replace').strip()[:500]}"
            )
        found |= {root / os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return found


def tree_digest(root: Path) -> str:
    """Sha256 over the names and contents of the files under `root`."""
    return digest_of((path.relative_to(root).as_posix(), path.read_bytes()) for path in tree_files(root))


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """Sha256 over names and contents."""
    total = hashlib.sha256()
    for relative, content in files:
        name = os.fsencode(relative)
        # With both lengths, so that no other split into names and contents gives the same bytes.
        total.update(b"%d %s %d " % (len(name), name, len(content)))
        total.update(content)
    return total.hexdigest()
