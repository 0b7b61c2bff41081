"""The wheel, cut into pieces that can be copied one at a time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .report import AGAIN, FAILED, leave, say

PIECE = 15 << 20
PIECES_A_CALL = 4


def write_pieces(manifest: dict[str, Any], output: Path, out: Path, first: int) -> None:
    """The wheel in pieces into `out`, a few a call."""
    wheels = sorted((output / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        leave(FAILED, f"the build left {len(wheels)} wheels, expected one")
    data = wheels[0].read_bytes()
    count = -(-len(data) // PIECE)
    result = {"wheel": wheels[0].name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pieces": count}
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps({**result, "plan": manifest["plan"]}, indent=1))
    last = min(first + PIECES_A_CALL, count)
    for number in range(first, last):
        (out / f"piece-{number:02d}").write_bytes(data[number * PIECE : (number + 1) * PIECE])
    say(f"{wheels[0].name}: {len(data)} bytes; pieces {first} to {last - 1} of {count} are in {out}")
    if last < count:
        leave(AGAIN, f"call again with --first-piece {last}")
