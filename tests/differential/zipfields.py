"""Single fields of a wheel's ZIP structures, changed (PKWARE APPNOTE 4.3): what `archives.pack` cannot write."""

import struct
from collections.abc import Callable

_LOCAL = "magic:I version:H flags:H method:H time:H date:H crc:I packed:I size:I name:H extra:H"
_CENTRAL = (
    "magic:I made_by:H version:H flags:H method:H time:H date:H crc:I packed:I size:I name:H extra:H comment:H disk:H "
    "internal:H external:I offset:I"
)
_END = "magic:I disk:H start_disk:H here:H count:H length:I start:I comment:H"


def _layout(text: str) -> dict[str, tuple[int, str]]:
    found, at = {}, 0
    for word in text.split():
        name, _, form = word.partition(":")
        found[name] = at, form
        at += struct.calcsize(form)
    return found


LAYOUTS = {"local": _layout(_LOCAL), "central": _layout(_CENTRAL), "end": _layout(_END)}


def _place(raw: bytes, structure: str) -> int:
    """Where it stands; of local headers and records, those of the first member."""
    end = raw.rfind(b"PK\5\6")
    if structure == "end":
        return end
    (start,) = struct.unpack_from("<I", raw, end + LAYOUTS["end"]["start"][0])
    return start if structure == "central" else 0


def field(structure: str, name: str, change: Callable[[int], int]) -> Callable[[bytes], bytes]:
    """The archive with another value of one field."""
    at, form = LAYOUTS[structure][name]

    def run(raw: bytes) -> bytes:
        place = _place(raw, structure) + at
        (value,) = struct.unpack_from(f"<{form}", raw, place)
        new = struct.pack(f"<{form}", change(value) & (1 << 8 * struct.calcsize(form)) - 1)
        return raw[:place] + new + raw[place + len(new) :]

    return run
