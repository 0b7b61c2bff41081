"""Brings farm/catalog up to what a Python package index has: new releases of PyTorch, CUDA and
cuDNN.

    tools/refresh-catalogue [torch] [cuda] [toolkits] [cudnn] [official] [pythons] [--write]
    [--check]
    tools/refresh-catalogue --checkout conda-forge=FOLDER --checkout Spack=FOLDER [--write]

Each record is read from published wheels and names its source. Without --write the difference is
printed as a patch and nothing is changed. What no wheel says (drivers, the CUDA flavours that
PyTorch publishes elsewhere) is left null or out, and listed under "to do by hand".
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from farm import catalog
from farm.base.errors import FarmError
from tools import (
    cuda_releases,
    cudnn_releases,
    official_wheels,
    other_makers,
    standalone_pythons,
    torch_releases,
    wheel_toolkits,
)
from tools.catalogue_records import Notes, Proposal, append, insert
from tools.package_index import PYPI, release_key

FOLDER = catalog.FOLDER


def refresh_toolkits(index: str, notes: Notes) -> Iterator[Proposal]:
    return wheel_toolkits.records(index, notes.add)


PARTS: dict[str, tuple[str, Callable[[str, Notes], Iterator[Proposal]] | None]] = {
    "torch": ("torch.yaml", torch_releases.proposals),
    "cuda": ("cuda.yaml", cuda_releases.proposals),
    "toolkits": ("toolkit_wheels.yaml", refresh_toolkits),
    "cudnn": ("cudnn.yaml", cudnn_releases.proposals),
    "official": ("official.yaml", official_wheels.proposals),
    "pythons": ("standalone_pythons.yaml", None),
}
"""The file of each part, and what proposes records for it; None: it is written whole."""


def refreshed_makers(checkouts: Mapping[str, Path], notes: Notes) -> tuple[Path, str, str]:
    """The file of other makers before and after."""
    path = FOLDER / "makers.yaml"
    before = path.read_text(encoding="utf-8")
    return path, before, other_makers.refreshed(before, checkouts, notes.add)


def checkout_of(text: str) -> tuple[str, Path]:
    """The maker and the folder of `--checkout MAKER=FOLDER`."""
    maker, _, folder = text.partition("=")
    if maker not in other_makers.MAKERS or not folder:
        known = ", ".join(other_makers.MAKERS)
        raise argparse.ArgumentTypeError(f"{text!r} is not MAKER=FOLDER; makers: {known}")
    return maker, Path(folder)


def refreshed(name: str, index: str, notes: Notes) -> tuple[Path, str, str]:
    """A file of the catalogue before and after."""
    file, propose = PARTS[name]
    path = FOLDER / file
    before = after = path.read_text(encoding="utf-8")
    if propose is None:
        return path, before, standalone_pythons.text(index)
    for section, key, record in propose(index, notes):
        if name == "official":
            after = append(after, record)
        else:
            after = insert(after, section, key, record)
    return path, before, after


def by_hand() -> Iterator[str]:
    """Facts that no wheel of an index says and that the catalogue lacks or keeps by hand."""
    nulls = [name for name, toolkit in catalog.toolkits().items() if toolkit.driver_linux is None]
    if nulls:
        yield f"cuda.yaml: the driver of CUDA {', '.join(nulls)}, from NVIDIA's release notes"
    arm = {
        row.torch
        for row in catalog.official().wheels
        if row.platform == "linux-aarch64" and row.cuda
    }
    new = [name for name in catalog.torch_releases() if release_key(name) >= release_key("2.4.0")]
    if missing := [name for name in new if not arm & {name, name.rpartition(".")[0]}]:
        yield (
            f"official.yaml: wheels with CUDA for linux-aarch64 of torch {', '.join(missing)}, "
            "if there are any"
        )
    yield "makers.yaml: its other makers than those of --checkout"
    yield "gpus.yaml, paste.yaml: names of cards, what tools print"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a patch, or with --write applies it; writes nothing if anything fails."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="refresh-catalogue", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; without one, all"
    )
    parser.add_argument(
        "--index", default=PYPI, help="a package index with PEP 691's JSON (default: %(default)s)"
    )
    parser.add_argument(
        "--write", action="store_true", help="change the files instead of printing the patch"
    )
    parser.add_argument(
        "--check", action="store_true", help="end with exit code 1 where there is something new"
    )
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        type=checkout_of,
        metavar="MAKER=FOLDER",
        help="a clone of another maker's recipes: read makers.yaml's rows from it "
        f"({', '.join(other_makers.MAKERS)}); without parts, nothing else is read",
    )
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(PARTS)}")
    notes = Notes()
    parts = arguments.parts
    if not parts and not arguments.checkout:
        parts = list(PARTS)
    try:
        done = [refreshed(name, arguments.index, notes) for name in parts]
        if arguments.checkout:
            done.append(refreshed_makers(dict(arguments.checkout), notes))
    except FarmError as error:
        print(f"refresh-catalogue: {error}", file=sys.stderr)
        return error.exit_code
    for path, before, after in done:
        place = path.relative_to(FOLDER.parents[1]).as_posix()
        patch = difflib.unified_diff(
            before.splitlines(True), after.splitlines(True), f"a/{place}", f"b/{place}"
        )
        sys.stdout.writelines(patch)
        if arguments.write and before != after:
            path.write_text(after, encoding="utf-8", newline="\n")
    print("kept by hand:", *by_hand(), sep="\n  ", file=sys.stderr)
    if notes.lines:
        print("to do by hand:", *notes.lines, sep="\n  ", file=sys.stderr)
    same = not notes.lines and all(before == after for _, before, after in done)
    if same:
        print("nothing new", file=sys.stderr)
    return int(arguments.check and not same)


if __name__ == "__main__":
    sys.exit(main())
