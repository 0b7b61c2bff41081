"""Text from outside (logs, wheels, reports) made safe to print; the word that was meant."""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

# ESC sequences: CSI, OSC, two characters
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_BREAKS = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
# How the farm begins its own lines in a log, on Windows after the time.
_OWN_LINE = re.compile(r"farm:(?=\s)")
MAX_LINE = 2000
MAX_SHORT = 400


def plain(text: str, limit: int = MAX_LINE) -> str:
    """One line of printable text, at most `limit` characters, and nothing that steers a terminal:
    for outside text.
    """
    line = text.rstrip("\r\n")
    if not line.isprintable():  # most are, and this takes a tenth of the time
        line = _BREAKS.sub(" ", _ESCAPES.sub("", line))
        line = "".join(filter(_is_shown, line))
    if len(line) <= limit:
        return line
    return line[:limit] + " […]"


def _is_shown(character: str) -> bool:
    if character == "\t" or character.isprintable():
        return True
    return unicodedata.category(character) == "Zs"


def log_line(text: str, limit: int = MAX_LINE) -> str:
    """A line of a program's output as `plain`; what a carriage return had overwritten is left
    out.
    """
    return plain(text.rstrip("\r\n").rsplit("\r", 1)[-1], limit)


def quoted_line(line: bytes) -> str:
    """A line of a program's output for a log in which the farm has lines, too.

    Args:
        line: The line as the program wrote it.

    Returns:
        The line as `log_line`, of any length. Where it looks like one of the farm's own, it is
        marked as a quotation.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text = line.decode("cp1252", "replace")  # cl.exe writes in the system's encoding
    return _OWN_LINE.sub("| farm:", log_line(text, len(text)))


def plain_lines(text: str) -> str:
    """A program's output, each line as `log_line`, of any length."""
    return "\n".join(log_line(line, len(line)) for line in text.split("\n"))


def short(text: object) -> str:
    """One printable line with runs of blanks as one, at most `MAX_SHORT` characters."""
    # Cut before it is cleaned: the length is someone else's choice.
    cleaned = plain(" ".join(str(text)[: 4 * MAX_SHORT].split()))
    if len(cleaned) <= MAX_SHORT:
        return cleaned
    return cleaned[: MAX_SHORT - 1] + "…"


def printable(text: str) -> str:
    """A name to be compared as well as shown: escaped where it holds what cannot be printed."""
    if text.isprintable():
        return text
    return text.encode("unicode_escape").decode("ascii")


def undo_download_name(filename: str) -> str:
    """A file's name without what a download may have made of it: `%2B` for `+`, and a browser's `
    (1)`.
    """
    from urllib.parse import unquote  # noqa: PLC0415 slow to import

    return re.sub(r" ?\([0-9]{1,3}\)(?=\.[a-z]+$)", "", unquote(filename))


def nearest(name: str, known: list[str] | tuple[str, ...], count: int = 3) -> list[str]:
    """The known names most like `name`, best first; empty when nothing is near."""
    import difflib  # noqa: PLC0415 slow to import

    return difflib.get_close_matches(name, known, n=count, cutoff=0.6)


def first_of(names: Sequence[str], limit: int) -> str:
    """The first `limit` names, and how many more there are: `a, b and 3 more`."""
    first_names = ", ".join(names[:limit])
    if len(names) <= limit:
        return first_names
    return f"{first_names} and {len(names) - limit} more"


def duration(seconds: float) -> str:
    """`7.3 s`, `2 min 05 s`, `6 min` or `3 h 07 min`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s".removesuffix(" 00 s")
    return f"{total // 3600} h {total % 3600 // 60:02} min".removesuffix(" 00 min")


def parse_age(text: str) -> timedelta:
    """Hours, days or weeks: `12h`, `90d`, `12w`; ValueError for anything else."""
    from datetime import timedelta  # noqa: PLC0415 slow to import

    match = re.fullmatch(r"([0-9]{1,5})([hdw])", text, re.ASCII)
    if match is None:
        raise ValueError(f"not an age: {text[:80]!r}; write 12h, 90d or 12w")
    return timedelta(hours=int(match[1]) * {"h": 1, "d": 24, "w": 168}[match[2]])


def json_lines(data: object) -> str:
    """JSON indented by two, ASCII alone, with a newline at the end; json's own encoder is slow
    where it indents.
    """
    import json  # noqa: PLC0415 slow to import

    from pydantic_core import to_json  # noqa: PLC0415 what needs no models does not wait for it

    encoded = to_json(data, indent=2)
    if encoded.isascii():
        text = encoded.decode()
    else:
        text = json.dumps(data, indent=2)
    return text + "\n"
