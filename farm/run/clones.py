"""Clones of git repositories, kept in the cache of `farm.run.sources` as one tar file a commit."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from farm.base import outputs
from farm.base.errors import BuildFailedError, InfrastructureError
from farm.base.hashes import sha256_of
from farm.base.retries import retry_while_open
from farm.base.source_tree import read_tree
from farm.base.temporary import temporary_folder
from farm.base.text import log_line, plain
from farm.plan.file import SourcePlan

Line = Callable[[str], None]

_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_SMALL = 1024  # bytes: a pointer is smaller, by the specification
_SHOWN = 3


def packed_clone(source: SourcePlan, cache: Path, line: Line) -> Path:
    """One tar a commit, with its submodules; made from a shallow clone, and its own hash kept beside it.

    Raises:
        InfrastructureError: The repository cannot be cloned.
        BuildFailedError: It has no such tag, or the tag is of another commit.
    """
    assert source.commit is not None
    packed = cache / f"{source.commit}.tar"
    noted, without = packed.with_suffix(".sha256"), packed.with_suffix(".pointers")
    # The commit names the content, not the bytes of a tar: only its own hash shows that the cache is damaged.
    if packed.exists() and noted.exists() and noted.read_text(encoding="ascii") == sha256_of(packed):
        if not without.exists():
            return packed
        if not shutil.which("git-lfs"):
            line(without.read_text(encoding="utf-8"))
            return packed
    with temporary_folder("clone-", cache) as folder, outputs.writing(folder):
        tree = folder / "tree"
        _clone(source, tree, line)
        without.unlink(missing_ok=True)
        if told := without_content(tree, read_tree(tree).files):
            line(told)
            without.write_text(told, encoding="utf-8")
        part = folder / "packed.tar"
        with tarfile.open(part, "w") as archive:
            archive.add(tree, arcname="source")
        # The hash before the file: killed between the two, they differ, and the next call clones again.
        noted.write_text(sha256_of(part), encoding="ascii")
        retry_while_open(part.replace, packed)
    return packed


def without_content(tree: Path, files: list[Path]) -> str | None:
    """Which files of a tree Git LFS would have fetched: a git without it leaves a few lines in place of each."""
    pointers = [file for file in files if file.stat().st_size < _SMALL and file.read_bytes().startswith(_POINTER)]
    if not pointers:
        return None
    more = len(pointers) - _SHOWN
    names = ", ".join(plain(file.relative_to(tree).as_posix()) for file in pointers[:_SHOWN])
    return (
        f"Git LFS has the content of {names}{f' and {more} more' if more > 0 else ''}, which is not fetched; "
        "if the build needs it, install git-lfs here and submit again (in a checkout of your own: `git lfs pull`)"
    )


def _clone(source: SourcePlan, tree: Path, line: Line) -> None:
    url, tag = str(source.url), str(source.tag)
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, "--recurse-submodules"]
    command += ["--shallow-submodules", "--", url, str(tree)]
    line("+ " + " ".join(command))
    # A farm has no one to type a password; what git says is read below.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environment)
    except FileNotFoundError as error:
        raise InfrastructureError(f"{url} cannot be fetched: there is no git here", hint="install git") from error
    if result.returncode:
        tail = "\n".join(log_line(text) for text in result.stderr.splitlines()[-5:])
        if "not found in upstream" in result.stderr:
            raise BuildFailedError(f"{url} has no tag {tag}:\n{tail}", hint="correct the tag in the recipe")
        if "transport 'file' not allowed" in result.stderr:
            raise BuildFailedError(
                f"git clone of {url} at {tag} failed: a submodule is a folder of this machine:\n{tail}",
                hint="git takes such a submodule only if it is told to: git config --global protocol.file.allow always",
            )
        raise InfrastructureError(f"git clone of {url} at {tag} failed:\n{tail}", hint="is the host reachable?")
    head = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # A tag can be moved; the commit is what the plan means.
    if head != source.commit:
        raise BuildFailedError(
            f"{url}: tag {tag} is commit {head}, the plan says {source.commit}",
            hint="if upstream moved the tag on purpose, change `commit` of the recipe, or the catalogue's of PyTorch",
        )
