"""Tables as text, laid out as Rich lays them out: importing Rich takes longer than most answers."""

import re
from collections.abc import Iterator, Sequence

GAP = 2
_WORD = re.compile(r"\s*\S+\s*")
_ALSO_NARROW = frozenset("\u2013\u2014\u2018\u2019\u201c\u201d\u2026\u2192\u2264\u2265")
"""Dashes, quotation marks, an ellipsis, an arrow, less or equal, greater or equal."""


def is_narrow(text: str) -> bool:
    """True if every character takes one place, which is all that this module measures."""
    known = text.isascii() or all(char < "\u0300" or char in _ALSO_NARROW for char in text)
    return known and text.isprintable()


def lines(rows: Sequence[Sequence[str]], right: Sequence[bool], room: int) -> Iterator[str]:
    """The lines of a table whose columns together take at most `room` places; cells that are longer are folded.

    Args:
        rows: Printable narrow text, the header first; all rows have the same length.
        right: By column, whether it is aligned to the right.
        room: Places in a line.
    """
    last = len(right) - 1
    gaps = [*[GAP] * last, 0]
    natural = [max(map(len, column)) + gap for column, gap in zip(zip(*rows, strict=True), gaps, strict=True)]
    inner = [max(width - gap, 1) for width, gap in zip(_narrowed(natural, room), gaps, strict=True)]
    for row in rows:
        cells = [[cell] if len(cell) <= width else folded(cell, width) for cell, width in zip(row, inner, strict=True)]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            aligned = (
                part.rjust(inner[index]) if right[index] else part.ljust(inner[index])
                for index, part in enumerate(parts)
            )
            yield (" " * GAP).join(aligned).rstrip()


def folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`: broken between words, and in words that are longer than a line."""
    breaks: list[int] = []
    at = 0
    for match in _WORD.finditer(text):
        word, start = match[0], match.start()
        length = len(word.rstrip())
        if length <= width - at:
            at += len(word)
        elif length > width:
            pieces = [word[begin : begin + width] for begin in range(0, len(word), width)]
            for piece in pieces:
                if start:
                    breaks.append(start)
                start += len(piece)
            at = len(pieces[-1])
        elif at and start:
            breaks.append(start)
            at = len(word)
    ends = [*breaks, len(text)]
    return [text[begin:end].rstrip() for begin, end in zip([0, *breaks], ends, strict=True)]


def _narrowed(widths: list[int], room: int) -> list[int]:
    """The widest columns made narrower, down to the next widest and so on, until all fit."""
    found = list(widths)
    while (excess := sum(found) - room) > 0:
        widest = max(found)
        second = max((width for width in found if width != widest), default=0)
        chosen = [index for index, width in enumerate(found) if width == widest]
        if widest == second or not widest:
            break
        most, left, parts = min(excess, widest - second), excess, len(chosen)
        for index in chosen:
            # Rounded anew for each column, so that what is taken adds up to the excess.
            taken = min(most, round(left / parts))
            found[index] -= taken
            left -= taken
            parts -= 1
    return found
