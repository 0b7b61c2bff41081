"""`farm init`: a small project to start from: configuration with comments, a recipe and a workflow."""

import argparse
import json
import shutil
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="new project folder (default: this folder)"
    )


def run(args: argparse.Namespace) -> int:
    """Copy the example; a file that is already there is an error, and nothing is written then."""
    from farm import shipped
    from farm.cli import show
    from farm.errors import UsageError

    files = sorted(
        path.relative_to(shipped.EXAMPLE)
        for path in shipped.EXAMPLE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    for file in files:
        # All are looked at before the first is written: a half-made project would be the user's to clean up.
        if (args.folder / file).exists():
            raise UsageError(
                f"{args.folder / file} is already there: nothing was written", hint="farm init DIR, with a new folder"
            )
    for file in files:
        target = args.folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped.EXAMPLE / file, target)
    if args.json:
        print(
            json.dumps({"folder": str(args.folder.absolute()), "files": [file.as_posix() for file in files]}, indent=2)
        )
        return 0
    for file in files:
        show.say(args.folder / file)
    enter = "" if args.folder == Path() else f"cd {args.folder} && "
    show.say(f"\nnext: {enter}farm doctor && farm submit --variant cpu-avx-py311 --package hello")
    return 0
