"""`farm init`: a small project to start from: configuration with comments, a recipe and a workflow."""

import argparse
import json
import os
import shlex
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="new project folder (default: this folder)"
    )


def run(args: argparse.Namespace) -> int:
    """Copy the example; a file that is already there is an error. Nothing is left if it fails."""
    from farm.base import outputs
    from farm.base import resources as shipped
    from farm.base.errors import UsageError
    from farm.cli import show

    files = sorted(
        path.relative_to(shipped.EXAMPLE)
        for path in shipped.EXAMPLE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    if os.path.lexists(args.folder / "README.md"):
        files.remove(Path("README.md"))  # a repository has its own
    for file in files:
        # All are looked at before the first is written: a half-made project would be the user's to clean up.
        if taken := _taken(args.folder / file):
            raise UsageError(f"{taken} is already there: nothing was written", hint="farm init DIR, with a new folder")
    outputs.write(args.folder, {file: (shipped.EXAMPLE / file).read_bytes() for file in files})
    if args.json:
        print(
            json.dumps({"folder": str(args.folder.absolute()), "files": [file.as_posix() for file in files]}, indent=2)
        )
        return 0
    for file in files:
        show.say(args.folder / file)
    enter = "" if args.folder == Path() else f"cd {shlex.quote(_for_cd(args.folder))} && "
    show.say(f"\nnext: {enter}farm doctor && farm submit --variant cpu-avx-py311 --package hello")
    return 0


def _taken(target: Path) -> str | None:
    """The path that is in the way of the file or one of its folders, a link that leads nowhere included."""
    if os.path.lexists(target):
        return str(target)
    return next((f"the file {part}" for part in target.parents if os.path.lexists(part) and not part.is_dir()), None)


def _for_cd(folder: Path) -> str:
    text = str(folder)
    return f"./{text}" if text.startswith("-") else text
