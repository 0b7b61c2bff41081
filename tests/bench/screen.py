"""How long the screen stands still: runs a command in a terminal, records it, and finds the longest pause.

    python tests/bench/screen.py RECORDING.cast farm submit --variant sm35-avx-py311 --package canary --rebuild

What moves by itself is not counted: the wheel that turns, the time of the step, and how long a program has printed
nothing. The recording is an asciicast (`asciinema play`).
"""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterable
from pathlib import Path

COLUMNS, ROWS = 100, 30
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.")
BY_ITSELF = re.compile(
    r"^[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏|/\\-] (.*?)  (\d+ h )?(\d+ min )?[\d.]+ (s|min)\b|\(no output for [^)]*\)", re.MULTILINE
)


def record(command: list[str]) -> tuple[list[tuple[float, str]], int]:
    """What a command writes to a terminal, each piece with its second, and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.pop("CI", None)
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start, pieces = time.monotonic(), []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the end of a terminal
            break
        if not piece:
            break
        pieces.append((time.monotonic() - start, piece.decode("utf-8", "replace")))
    return pieces, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def pauses(pieces: Iterable[tuple[float, str]]) -> list[tuple[float, float, str]]:
    """Seconds between two changes of what is true, the second of the first, and what stood there; longest first."""
    found, last, since = [], "", 0.0
    for second, piece in pieces:
        text = BY_ITSELF.sub(r"\1", ESCAPES.sub("", piece).replace("\r", "\n"))
        text = "\n".join(line.strip() for line in text.splitlines() if line.strip())
        if text and text != last:
            found.append((second - since, since, last))
            last, since = text, second
    return sorted(found, reverse=True)


def main() -> int:
    file, command = Path(sys.argv[1]), sys.argv[2:]
    pieces, code = record(command)
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": " ".join(command)}
    lines = [json.dumps(head), *(json.dumps([round(second, 3), "o", text]) for second, text in pieces)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{pieces[-1][0] if pieces else 0:.0f} s, exit code {code}; the longest pauses:")
    for seconds, since, text in pauses(pieces)[:5]:
        print(f"  {seconds:5.1f} s from {since:6.1f} s: {' / '.join(text.splitlines())[:150]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
