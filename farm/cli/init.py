"""`farm init`: write a small project to start from."""

import argparse
import json
import os
import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from farm.base import outputs, resources
from farm.base.errors import UsageError
from farm.cli import show
from farm.plan.matrix import load_matrix

WORKFLOW = Path(".github", "workflows", "wheels.yml")
MATRIX = Path("ci", "matrix.yaml")
EXAMPLE_CHANNEL = "mine"
REPOSITORY_FILES = ("README.md", ".gitignore")
"""Files that a repository may have already: they stay as they are."""
_REACHABLE = re.compile(r"(https|ssh)://(git@)?[A-Za-z0-9.-]+(:[0-9]{1,5})?/[A-Za-z0-9._~/%+-]+")
"""An address that another machine can fetch, without a password in it."""


def run_init(args: argparse.Namespace) -> int:
    """Copy the example, or its workflow alone; a file that is already there is an error.

    Nothing is left if it fails.
    """
    if args.channel and not args.github:
        raise UsageError("--channel is of --github", hint="farm init --github --channel NAME")
    if args.github:
        channel = _channel_of(args.folder, args.channel)
        files = [WORKFLOW]
    else:
        channel = EXAMPLE_CHANNEL
        files = _example_files(args.folder)
    for file in files:
        # All are looked at before the first is written: a half-made project would be the user's to
        # clean up.
        if existing := _taken(args.folder / file):
            raise UsageError(
                f"{existing} is already there: nothing was written",
                hint="farm init DIR, with a new folder",
            )
    contents = {file: (resources.EXAMPLE / file).read_bytes() for file in files}
    farm = _this_farm()
    contents[WORKFLOW] = _workflow(contents[WORKFLOW].decode(), channel, farm).encode()
    outputs.write(args.folder, contents)
    lines: list[object] = [args.folder / file for file in files]
    if not farm:
        lines.append(
            f"{args.folder / WORKFLOW}: write into FARM which farm it installs, with its commit "
            "or hash"
        )
    if not args.github and Path(".gitignore") not in files:
        lines.append(f"{args.folder / '.gitignore'}: add /artifacts/, which holds what runs make")
    lines += ["", f"next: {_next_step(args.folder, workflow_alone=args.github)}"]
    document = {"folder": str(args.folder.absolute()), "files": [file.as_posix() for file in files]}
    show.answer(args, document, lines)
    return 0


def _example_files(folder: Path) -> list[Path]:
    """The files of the example that the folder is given, in their order."""
    files = []
    for path in sorted(resources.EXAMPLE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files.append(path.relative_to(resources.EXAMPLE))
    for name in REPOSITORY_FILES:
        if os.path.lexists(folder / name):
            files.remove(Path(name))
    return files


def _channel_of(folder: Path, name: str | None) -> str:
    """The channel that the workflow of a project builds.

    Raises:
        UsageError: There is no project, no such channel, or several of which none was named.
    """
    if not (folder / MATRIX).is_file():
        raise UsageError(
            f"{folder} is no project: it has no {MATRIX}",
            hint="farm init DIR writes a whole project, with the workflow",
        )
    matrix = load_matrix(folder)
    if name:
        return matrix.channel(name).name
    channels = matrix.own()
    if len(channels) != 1:
        raise UsageError(
            f"{folder / MATRIX} has {len(channels)} channels of its own",
            hint="name the one that the workflow builds, such as --channel "
            f"{[*channels, *matrix.channels][0]}",
        )
    return channels[0]


def _workflow(text: str, channel: str, farm: str | None) -> str:
    """The example's workflow for a channel, with the farm that it installs where that is known."""
    text = text.replace(f"--channel {EXAMPLE_CHANNEL} ", f"--channel {channel} ")
    text = text.replace(f"channel `{EXAMPLE_CHANNEL}`", f"channel `{channel}`")
    if farm is None:
        return text
    return text.replace('FARM: ""', f"FARM: {json.dumps(farm)}")


def _next_step(folder: Path, *, workflow_alone: bool) -> str:
    name = str(folder)
    if name.startswith("-"):
        name = f"./{name}"
    enter = f"cd {shlex.quote(name)} && "
    if folder == Path():
        enter = ""
    if workflow_alone:
        return (
            f"{enter}git add {WORKFLOW.as_posix()}, commit and push it; its first lines name the "
            "settings for own runners, a bucket and GitHub Pages"
        )
    return f"{enter}farm doctor && farm submit --variant cpu-avx-py311 --package hello"


def _this_farm() -> str | None:
    """The requirement by which pip installs this very farm elsewhere; None where that is not known.

    From PEP 610's record of the installation: a commit, an archive with its hash, or a clone
    without changes.
    """
    try:
        text = metadata.distribution("torch-farm").read_text("direct_url.json")
        record = json.loads(text or "{}")
        url = record["url"]
        commit = record.get("vcs_info", {}).get("commit_id")
        sha256 = record.get("archive_info", {}).get("hashes", {}).get("sha256")
        if "dir_info" in record:
            url, commit = _clone(Path(url2pathname(urlsplit(url).path)))
    except (
        metadata.PackageNotFoundError,
        ValueError,
        KeyError,
        OSError,
        subprocess.SubprocessError,
    ):
        return None
    if not _REACHABLE.fullmatch(url):
        return None
    if commit and re.fullmatch(r"[0-9a-f]{40}", commit):
        return f"git+{url}@{commit}"
    if sha256 and re.fullmatch(r"[0-9a-f]{64}", sha256):
        return f"torch-farm @ {url}#sha256={sha256}"
    return None


def _clone(folder: Path) -> tuple[str, str]:
    """The address that a clone came from and its commit; of one with changes of its own neither."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    if not (folder / ".git").exists() or git("status", "--porcelain", "--untracked-files=no"):
        return "", ""
    return git("remote", "get-url", "origin"), git("rev-parse", "HEAD")


def _taken(target: Path) -> str | None:
    """The path that is in the way of the file or one of its folders, a link that leads nowhere
    included.
    """
    if os.path.lexists(target):
        return str(target)
    for part in target.parents:
        if os.path.lexists(part) and not part.is_dir():
            return f"the file {part}"
    return None
