"""`farm inspect`: what is inside a wheel."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from farm.base.errors import UsageError
from farm.cli import show
from farm.wheel.explain import Explanation, explain
from farm.wheel.inspect import DECODED, WheelContents, inspect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path, help="a file; with --explain an installed package's folder too")
    parser.add_argument(
        "--cpu", action="store_true", help="decode libraries above 16 MiB too, which takes seconds for each"
    )
    parser.add_argument(
        "--explain",
        metavar="MESSAGE",
        help="what a message of the loader, CUDA or torch means: WinError 126, 127, 193, 1114, 'undefined symbol', "
        "'GLIBC_2.34 not found', 'no kernel image', 'illegal instruction', …; - reads it from the input",
    )
    parser.add_argument(
        "--why-126",
        action="store_const",
        const="WinError 126",
        dest="explain",
        help="the same as --explain 'WinError 126': which DLL is missing, who needs it, where to get it",
    )


def run(args: argparse.Namespace) -> int:
    if args.explain is not None:
        explanations = explanations_of(args.wheel, message_of(args.explain))
        if args.json:
            show.json_document([each.model_dump(mode="json") for each in explanations])
        else:
            print_explanations(explanations)
        return 0
    contents = inspect(args.wheel, decoded=None if args.cpu else DECODED)
    if args.json:
        show.json_document(contents.to_json())
        return 0
    show_contents(contents)
    return 0


def show_contents(contents: WheelContents) -> None:
    """The tables of a wheel's content."""
    show.say(f"{contents.file}: {contents.size / 1e6:.1f} MB, {contents.unpacked / 1e6:.1f} MB unpacked")
    show.say(f"tags: {', '.join(contents.tags)}; {_floor(contents)}")
    rows = []
    for library in contents.libraries:
        for found in library.fatbins:
            sass = " ".join(f"sm_{sm}" for sm in found.sass) or "-"
            ptx = " ".join(f"compute_{sm}" for sm in found.ptx) or "-"
            rows.append((library.path, sass, ptx, str(found.containers), f"{found.bytes / 1e6:.2f}"))
    if rows:
        show.table("device code", ("library", "SASS", "PTX", "fat binaries", "MB"), rows)
    else:
        show.say("device code: none")
    libraries = []
    for library in contents.libraries:
        code = library.instructions
        beyond = "not read: " + library.error if library.error else ""
        if code:
            counts = [f"{feature} {count}" for feature, (count, _) in code.beyond.items()]
            beyond = code.not_checked or ", ".join(counts) or f"nothing beyond {code.level}"
        elif library.is_loadable and not library.error:
            beyond = "not decoded (--cpu)"
        linker = f"MSVC linker {library.linker}" if library.linker else ""
        libraries.append((library.path, f"{library.size / 1e6:.2f}", linker or "-", beyond))
    show.table("libraries", ("library", "MB", "made by", "CPU features (instructions)"), libraries)
    needs = [(need.who, need.name, need.when, need.answer, need.by or "") for need in contents.needs]
    show.table("imports", ("library", "needs", "on", "answered by", "member"), needs)


def _floor(contents: WheelContents) -> str:
    """The oldest system that the libraries allow, as far as it follows from them."""
    linkers = sorted({library.linker for library in contents.libraries if library.linker and library.is_loadable})
    if linkers:
        return f"made by MSVC linker {', '.join(linkers)}: needs a Visual C++ runtime that is not older"
    if not contents.libraries and not contents.manylinux:
        return "no libraries that are read (ELF, PE)"
    return f"its libraries allow: {contents.manylinux or f'none: {contents.manylinux_problem}'}"


def message_of(argument: str) -> str:
    """The message: the argument itself, or with `-` what is on the input.

    Raises:
        UsageError: Nothing is there.
    """
    text = sys.stdin.read() if argument == "-" else argument
    if not text.strip():
        raise UsageError("--explain: no message", hint="paste it as the argument, or on the input with --explain -")
    return text


def explanations_of(path: Path, message: str) -> tuple[Explanation, ...]:
    """A message by the files of the wheel or package.

    Raises:
        UsageError: There is no such file or folder, no library in it, or no known error in the message.
        VerificationFailedError: The wheel is damaged.
    """
    found = explain(path, message)
    if not found:
        raise UsageError(
            "no known error in the message",
            hint="paste the line with the error, such as '[WinError 126] …' or 'undefined symbol: …'; if it stays "
            "unknown, send the whole traceback, the name of the wheel and the output of `farm detect` to the farm",
        )
    return found


def print_explanations(found: Sequence[Explanation]) -> None:
    """Cause, culprits and cure of each."""
    for each in found:
        show.say(f"{each.message}: {each.cause}")
        for culprit in each.culprits:
            show.say(f"  {culprit}")
        show.say(f"  what to do: {each.cure}")
