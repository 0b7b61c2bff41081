"""Declared changes to a source tree: applied once, shown as a diff, refused where the source looks different.

Standard library alone: this file is also copied beside a build script and run there.

    python patches.py PATCHES.json SOURCE [--dry-run]

Exit codes: 0 done, 2 the patches or the folder cannot be read, 5 the source does not look as a patch says.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 8 << 20
MINIMUM = re.compile(r"(cmake_minimum_required\s*\(\s*VERSION\s+)(\d+\.\d+(?:\.\d+)*)(?!\.\.\.|[\d.])", re.IGNORECASE)


class PatchError(Exception):
    """The source does not look as a patch says; nothing was written."""


@dataclass(frozen=True)
class Facts:
    """Facts that decide whether a patch is needed; versions are major numbers, None: there is none."""

    system: str
    setuptools: int | None
    cmake: int | None
    compiler: str


@dataclass(frozen=True)
class Outcome:
    """The result of one patch; `changed` maps a path below the source to (before, after)."""

    name: str
    state: str  # "needed", "done", "skipped"
    why: str
    changed: dict[str, tuple[str, str]]

    def diff(self) -> str:
        """A unified diff of all files."""
        lines: list[str] = []
        for name, (before, after) in sorted(self.changed.items()):
            lines += difflib.unified_diff(
                before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
            )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def facts_here() -> Facts:
    """Of this machine: the running Python's setuptools, the cmake on PATH, the compiler of CC."""
    systems = {"win32": "windows", "darwin": "macos"}
    try:
        setuptools: int | None = _major(importlib.metadata.version("setuptools"))
    except importlib.metadata.PackageNotFoundError:
        setuptools = None
    try:
        printed = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        printed = ""
    match = re.search(r"cmake version (\d+)", printed)
    compiler = os.environ.get("CC") or ("cl" if sys.platform == "win32" else "cc")
    return Facts(
        systems.get(sys.platform, "linux"), setuptools, int(match[1]) if match else None, compiler_name(compiler)
    )


def compiler_name(text: str) -> str:
    """`icx` for a path that ends in bin/icx.exe, `clang` for `clang-18`."""
    name = re.split(r"[\\/]", text.strip())[-1].lower()
    return re.sub(r"(\.exe)?$", "", re.sub(r"-\d+(\.exe)?$", "", name))


def _major(version: str) -> int | None:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else None


def not_needed(when: dict[str, Any], facts: Facts) -> str | None:
    """Why the conditions do not hold; None: they do."""
    if "system" in when and facts.system != when["system"]:
        return f"it is for {when['system']}, this is {facts.system}"
    for tool in ("setuptools", "cmake"):
        first, found = when.get(f"{tool}_from"), getattr(facts, tool)
        if first is not None and found is None:
            return f"it is for {tool} {first} and newer; there is no {tool} here"
        if first is not None and found < first:
            return f"it is for {tool} {first} and newer, this is {tool} {found}"
    if "compilers" in when and facts.compiler not in when["compilers"]:
        return f"it is for {', '.join(when['compilers'])}; the compiler is {facts.compiler}"
    return None


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise PatchError(f"{path}: larger than {MAX_BYTES >> 20} MiB: not the file that the patch is for")
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _inside(source: Path, name: str) -> Path:
    """The path of a file of the tree; a link that leads outside is refused."""
    path = source / name
    if source.resolve() not in path.resolve().parents:
        raise PatchError(f"{name}: leads out of {source}")
    return path


def _edit(source: Path, patch: str, change: dict[str, Any]) -> tuple[str, str] | str:
    """Before and after; or why there is nothing to do. A file with CRLF line ends keeps them."""
    name = change["file"]
    path = _inside(source, name)
    if not path.is_file():
        return f"this release has no {name}"
    before = _read(path)
    crlf = "\r\n" in before
    text = before.replace("\r\n", "\n")
    if change["done"] in text:
        return f"done: {name} is as the patch makes it"
    if change["about"] not in text:
        return f"this release has no {change['about']} in {name}"
    for edit in change["edits"]:
        count = text.count(edit["old"])
        if count != 1:
            shown = edit["old"].strip().splitlines()[0]
            raise PatchError(
                f"patch {patch}: {name} does not look as expected: {shown!r} is in it {count} times, not once"
            )
        text = text.replace(edit["old"], edit["new"])
    return before, text.replace("\n", "\r\n") if crlf else text


def _raise_minimum(source: Path, least: str) -> dict[str, tuple[str, str]]:
    floor = [int(part) for part in least.split(".")]
    changed = {}
    for path in sorted((*source.rglob("CMakeLists.txt"), *source.rglob("*.cmake"))):
        name = path.relative_to(source).as_posix()
        if not path.is_file() or path.is_symlink():
            continue
        before = _read(_inside(source, name))

        def lifted(match: re.Match[str]) -> str:
            low = [int(part) for part in match[2].split(".")] < floor
            return match[1] + (least if low else match[2])

        after = MINIMUM.sub(lifted, before)
        if after != before:
            changed[name] = (before, after)
    return changed


def plan_patches(source: Path, patches: list[dict[str, Any]], facts: Facts) -> list[Outcome]:
    """The changes of each patch, without writing them.

    Raises:
        PatchError: A file that a needed patch changes looks different.
    """
    outcomes = []
    for patch in patches:
        name = patch["name"]
        against = not_needed(patch["when"], facts)
        if against:
            outcomes.append(Outcome(name, "skipped", against, {}))
            continue
        if "raise_cmake_minimum" in patch:
            changed = _raise_minimum(source, patch["raise_cmake_minimum"])
            state = "needed" if changed else "done"
            why = f"{len(changed)} files ask for less than {patch['raise_cmake_minimum']}"
            outcomes.append(Outcome(name, state, why, changed))
            continue
        results = {change["file"]: _edit(source, name, change) for change in patch["changes"]}
        edits = {file: found for file, found in results.items() if not isinstance(found, str)}
        reasons = [found for found in results.values() if isinstance(found, str)]
        state = "needed" if edits else "done" if all(why.startswith("done:") for why in reasons) else "skipped"
        outcomes.append(Outcome(name, state, "; ".join(reasons) or ", ".join(edits), edits))
    return outcomes


def write(source: Path, outcomes: list[Outcome]) -> None:
    """Write the files of the patches that are needed, each whole or not at all."""
    for outcome in outcomes:
        for name, (_, after) in outcome.changed.items():
            path = source / name
            part = path.with_name(path.name + ".farm-part")
            part.write_bytes(after.encode("utf-8", "surrogateescape"))
            part.chmod(path.stat().st_mode)
            part.replace(path)


def main(argv: list[str]) -> int:
    """Apply the patches of a JSON file, or show what they would do."""
    parser = argparse.ArgumentParser(description="Applies declared changes to a source tree.")
    parser.add_argument("patches", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="show the differences, write nothing")
    args = parser.parse_args(argv)
    try:
        patches = json.loads(args.patches.read_text(encoding="utf-8"))
        if not args.source.is_dir():
            raise OSError(f"{args.source}: no such folder")
        outcomes = plan_patches(args.source, patches, facts_here())
    except PatchError as error:
        print(f"patches: {error}", file=sys.stderr)
        return 5
    except (OSError, ValueError) as error:
        print(f"patches: {error}", file=sys.stderr)
        return 2
    for outcome in outcomes:
        applied = "applied" if outcome.state == "needed" and not args.dry_run else outcome.state
        print(f"patch {outcome.name}: {applied}: {outcome.why}")
        if args.dry_run:
            print(outcome.diff(), end="")
    if not args.dry_run:
        write(args.source, outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
