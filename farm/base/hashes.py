"""Hashes of files and of source trees."""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from farm.base.errors import UsageError


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal; OSError where it cannot be read."""
    return sha256_and_size(path)[0]


def sha256_and_size(path: Path) -> tuple[str, int]:
    """The sha256 of a file, in hexadecimal, and how many bytes it was taken of; OSError where it
    cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


_LISTED = (["--cached", "--recurse-submodules"], ["--others", "--exclude-standard"])
"""git's lists of tracked files and of files that it would add; the latter lists no submodules."""


@dataclass(frozen=True)
class Tree:
    """The files of a source tree in a stable order, among them links to files, which stand for what
    is in them.

    `links`: to folders of the tree, and to what is not there: where each leads from its own folder;
    `leading_out`: to folders elsewhere, which are no part of the source and may hold anything.
    """

    files: list[Path]
    links: dict[Path, str]
    leading_out: list[Path]


def read_tree(root: Path) -> Tree:
    """The files of a source tree, without Python's caches; of a git checkout those that git tracks
    or would add.
    """
    paths: Iterable[Path]
    if (root / ".git").exists():
        paths = _of_checkout(root)
    else:
        paths = root.rglob("*")
    tree = Tree([], {}, [])
    top = Path(os.path.realpath(root))
    # By parts: paths of Windows compare without case.
    for path in sorted(paths, key=lambda path: path.relative_to(root).parts):
        if "__pycache__" in path.parts:
            continue
        if path.is_file():
            tree.files.append(path)
        elif path.is_symlink():
            end = Path(os.path.realpath(path))
            if end.is_relative_to(top):
                # The same text wherever the tree is, as it is elsewhere when it is built.
                relative = os.path.relpath(end, os.path.realpath(path.parent))
                tree.links[path] = Path(relative).as_posix()
            else:
                tree.leading_out.append(path)
    return tree


def tree_files(root: Path) -> list[Path]:
    """The files of a source tree; see `read_tree`."""
    return read_tree(root).files


def _of_checkout(root: Path) -> set[Path]:
    # Those that a hook of git sets are about another checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    paths = set()
    for which in _LISTED:
        command = ["git", "-C", str(root), "ls-files", "-z", *which]
        try:
            done = subprocess.run(command, capture_output=True, check=False, env=environment)
        except FileNotFoundError as error:
            raise UsageError(
                f"{root} is a git checkout, and there is no git", hint="install git"
            ) from error
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip()
            raise UsageError(f"git cannot list the files of {root}: {message[:500]}")
        for name in filter(None, done.stdout.split(b"\0")):
            paths.add(root / os.fsdecode(name))
    return paths


class TreeDigest:
    """Sha256 over names and contents, in the order in which they are added."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, name: str, content: bytes) -> None:
        """Add a name and its content."""
        encoded = os.fsencode(name)
        # With both lengths, so that no other split into names and contents gives the same bytes.
        self._total.update(b"%d %s %d " % (len(encoded), encoded, len(content)))
        self._total.update(content)

    def add_file(self, path: Path, content: bytes) -> None:
        """Add a file of a tree; `path` is relative to the tree."""
        self.add(path.as_posix(), content)

    def add_link(self, path: Path, target: str) -> None:
        """Add a link of a tree; no file's name ends in a NUL."""
        self.add(f"{path.as_posix()}\0", os.fsencode(target))

    def hexdigest(self) -> str:
        """The sha256 of what was added, in hexadecimal."""
        return self._total.hexdigest()


def tree_digest(root: Path) -> str:
    """Sha256 over the names and contents of the files under `root`, and its links."""
    tree = read_tree(root)
    digest = TreeDigest()
    for path in tree.files:
        digest.add_file(path.relative_to(root), path.read_bytes())
    for path, target in tree.links.items():
        digest.add_link(path.relative_to(root), target)
    return digest.hexdigest()


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """Sha256 over names and contents."""
    digest = TreeDigest()
    for name, content in files:
        digest.add(name, content)
    return digest.hexdigest()
