"""The result of a build: the wheel and the libraries that repair needs, in pieces that can be copied one at a time."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from .report import FAILED, leave, say

PIECE = 15 << 20


def write_pieces(manifest: dict[str, Any], output: Path, out: Path) -> None:
    """Write the pieces of one tar into `out`, and `result.json`, which says what they make."""
    wheels = sorted((output / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        leave(FAILED, f"the build left {len(wheels)} wheels, expected one")
    out.mkdir(parents=True, exist_ok=True)
    whole, total, pieces = output / "built.tar", hashlib.sha256(), 0
    with tarfile.open(whole, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in (*wheels, *sorted(each for each in (output / "lib").glob("*") if each.is_file())):
            archive.add(path, f"built/{path.relative_to(output).as_posix()}", recursive=False)
    with whole.open("rb") as stream:
        while data := stream.read(PIECE):
            (out / f"piece-{pieces:02d}").write_bytes(data)
            total.update(data)
            pieces += 1
    size = whole.stat().st_size
    whole.unlink()
    result = {"plan": manifest["plan"], "size": size, "sha256": total.hexdigest(), "pieces": pieces}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    say(f"{wheels[0].name}: {pieces} pieces in {out}; give that folder to `farm submit --from-bundle`")
