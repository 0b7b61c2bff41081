"""`farm help`: a section of the reference, a page of the documentation, or the options of a command."""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence

from farm.cli import show

PAGES = {
    "options": "options.md: what can be overridden for one build",
    "verify": "verify.md: what `farm verify` checks",
    "your-package": "your-package.md: a package of your own in 15 minutes",
}
"""Pages that are printed whole. A command's name means its options, so `farm help verify` shows both."""
REFERENCE = "reference.md"
_CELLS = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_MARKS = re.compile(r"\*\*|`")
_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="*", metavar="TOPIC|COMMAND", help="without one: the list of topics")


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.base.text import nearest
    from farm.cli.main import COMMANDS, command_parser, parser

    found = sections()
    if not args.topic:
        print("Topics, for `farm help TOPIC`:")
        for name, text in found.items():
            print(f"  {name:<14}{first_sentence(text)}")
        for name, text in PAGES.items():
            print(f"  {name:<14}{text.partition(': ')[2]}")
        print("\n`farm help COMMAND` shows the options of a command; `farm --help` lists the commands.")
        return 0
    asked = " ".join(args.topic)
    first, *below = asked.lower().split()
    if below and first in COMMANDS:
        below_of(command_parser(parser((first,)), first), below, asked).print_help()
        return 0
    topic = asked.lower().replace("_", "-").replace(" ", "-")
    # `farm help variant` means the section "Variants".
    topic = f"{topic}s" if f"{topic}s" in found and topic not in COMMANDS else topic
    # The options of a command; where there is a section of its name as well, such as "Plans", that follows.
    if topic in COMMANDS:
        command_parser(parser((topic,)), topic).print_help()
        if f"{topic}s" in found:
            print(f"\n{text_of(found[f'{topic}s'])}", end="")
    elif topic in found:
        print(text_of(found[topic]), end="")
    if topic in PAGES:
        print(text_of(page(PAGES[topic].partition(":")[0])), end="")
    elif topic not in COMMANDS and topic not in found:
        known = [*found, *PAGES, *COMMANDS]
        near = nearest(topic, known)
        raise UsageError(f"no topic {asked!r}", hint=f"did you mean: {', '.join(near)}?" if near else "farm help")
    return 0


def below_of(one: argparse.ArgumentParser, words: Sequence[str], asked: str) -> argparse.ArgumentParser:
    """The command of several words: `key rotate` of `farm index`."""
    from farm.base.errors import UsageError
    from farm.cli.main import command_parser

    for word in words:
        try:
            one = command_parser(one, word)
        except (KeyError, ValueError) as error:
            raise UsageError(f"no topic {asked!r}", hint=f"{one.prog} --help") from error
    return one


def text_of(markdown: str) -> str:
    """Markdown as a terminal shows it: tables with aligned columns, headings underlined, no marks."""
    lines: list[str] = []
    rows: list[list[str]] = []
    code = False
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|") and not code:
            rows.append([_unmarked(cell.strip().replace("\\|", "|")) for cell in _CELLS.split(line)[1:-1]])
            continue
        if rows:
            head, _, *body = rows
            room = shutil.get_terminal_size().columns if sys.stdout.isatty() else show.LOG_WIDTH
            lines += show.lines(head, body, room)
            rows = []
        if line.startswith("```"):
            code = not code
        elif code:
            lines.append(f"    {line}")
        elif line.startswith("#"):
            title = _unmarked(line.lstrip("#").strip())
            lines += [title, ("=" if line.startswith("# ") else "-") * len(title)]
        elif not line.startswith("<!--"):
            lines.append(_unmarked(line))
    return "\n".join(lines).rstrip() + "\n"


def _unmarked(text: str) -> str:
    return _MARKS.sub("", _LINK.sub(r"\1", text))


def page(name: str) -> str:
    """A page of docs/, as the farm carries it."""
    from farm.base import resources as shipped

    return (shipped.ROOT / "docs" / name).read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """The sections of the reference by topic: `exit-codes` for `## Exit codes`."""
    text = _COMMENT.sub("", page(REFERENCE))
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {
        title.lower().replace(" ", "-"): f"{title}\n{'=' * len(title)}\n{body.rstrip()}\n"
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def first_sentence(text: str) -> str:
    """Of a section, without its heading; empty where it begins with a table."""
    body = " ".join(text.split("\n", 2)[2].split())
    return "" if body.startswith(("|", "#")) else re.split(r"[.:] ", body)[0]
