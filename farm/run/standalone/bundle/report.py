"""Output and exit codes of the program."""

from __future__ import annotations

from typing import NoReturn

DAMAGED, FAILED, CANNOT, AGAIN, INTERRUPTED = 2, 5, 9, 10, 130
EXIT_CODES = """exit codes:
  0    done: the wheel is there, or with --check: this machine can build it
  2    a part is damaged, or an option is wrong
  5    the build failed; its error is on the screen
  9    this machine cannot do it; the line `next:` says what to change
  10   call again: parts are missing, the build was lost, or --wait-s is over and it goes on
  130  Ctrl-C; the build goes on
"""


def say(text: str) -> None:
    print(f"farm: {text}", flush=True)


def leave(code: int, text: str, todo: str | None = None) -> NoReturn:
    """End the program; `todo` is what to do about it."""
    say(text)
    if todo:
        print(f"next: {todo}", flush=True)
    raise SystemExit(code)
