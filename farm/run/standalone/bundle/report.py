"""What the program prints, and how it ends."""

from __future__ import annotations

from typing import NoReturn

DAMAGED, FAILED, CANNOT, AGAIN = 2, 5, 9, 10  # exit codes; the farm's own where they mean the same


def say(text: str) -> None:
    print(f"farm: {text}", flush=True)


def leave(code: int, text: str) -> NoReturn:
    say(text)
    raise SystemExit(code)
