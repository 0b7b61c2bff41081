"""The static answer against emulation: `python tests/bench/imports.py [--level avx] [--mutants N]
WHEEL...`.

For Arm: `--level armv8_2 --image IMAGE`, an image for arm64 with Python 3.11, which qemu runs by
binfmt.

Of each wheel all libraries count as dispatching: `farm verify` says what their import runs, then
imports them on an emulated CPU of the level. Mutants: AVX-512 (on Arm SVE) in a function that the
import enters, with `--deep` in one at least three calls below (x86-64), which the import may or may
not reach. Prints a row a wheel; ends with 1 where one says passed and the import dies, or one says
failed and it goes on.
"""

import argparse
import random
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from farm.base.errors import FarmError
from farm.policy.rules import Policy
from farm.smoke.emulation import emulate
from farm.wheel.elf import read_elf
from farm.wheel.isa.elf_image import ElfImage
from farm.wheel.isa.walk_x86 import Walk
from farm.wheel.isa.x86 import Sweep
from farm.wheel.report import Report
from farm.wheel.verify import verify

# vpaddd zmm0, zmm0, zmm0; add z0.s, z1.s, z2.s of SVE
BEYOND = {62: bytes.fromhex("62f17d48fec0"), 183: bytes.fromhex("2000a204")}
_DEEP = 5000
# An image's Python on a CPU without SVE; what a signal ended ends by it here too.
CONTAINER = """#!/bin/sh
docker run --rm --init --network none -v "$PWD:$PWD" -e QEMU_CPU=neoverse-n1 {image} python3 "$@"
code=$?
[ $code -gt 128 ] && kill -$((code - 128)) $$
exit $code
"""


def deep(image: ElfImage) -> list[int]:
    """Functions that loading a library may call, three calls and more below where the loader enters
    it.
    """
    walk = Walk(image, Sweep("avx"))
    walk.descend([*image.starts(), *image.entries])
    # What is called above as well has been decoded: in it an instruction counts.
    seen = {address for page, bits in walk.seen.items() for address in _set(page, bits)}
    walk.below = {each: None for each in walk.below if each not in seen}
    found, waiting = dict.fromkeys(walk.below), list(walk.below)
    while waiting and len(found) < _DEEP:
        waiting = walk.follow(waiting)
        found |= dict.fromkeys(waiting)
    return list(found)


def _set(page: int, bits: bytearray) -> list[int]:
    return [
        page * 8 * len(bits) + at for at in range(8 * len(bits)) if bits[at >> 3] & 1 << (at & 7)
    ]


def mutants(wheel: Path, folder: Path, count: int, *, below: bool) -> list[Path]:
    """Copies of a wheel, in each one function on the way of an import replaced."""
    chosen = random.Random(wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    places = []
    for name, data in members.items():
        if data[:4] == b"\x7fELF" and ".so" in name:
            image = ElfImage(data, read_elf(data))
            # Modules of Cython ask for others first: what is in their PyInit alone runs for
            # certain.
            starts = deep(image) if below else (*image.starts(), *image.entries)
            places += [(name, place[0]) for start in starts if (place := image.offset(start))]
    made = []
    for number, (name, offset) in enumerate(chosen.sample(places, min(count, len(places)))):
        (folder / str(number)).mkdir()
        made.append(folder / str(number) / wheel.name)
        with zipfile.ZipFile(made[-1], "w") as out:
            for member, data in members.items():
                beyond = BEYOND[data[18]] if member == name else b""
                changed = data[:offset] + beyond + data[offset + len(beyond) :]
                out.writestr(member, changed)
    return made


def judged(wheel: Path, level: str, command: list[str] | None) -> tuple[str, str]:
    """What the static check says, and how the import ends: passed, failed or not decided."""
    before = verify(wheel, Policy(cpu=level, dispatching=("*",)))
    after = emulate(before, wheel, command)
    return _verdict(before), _ended(before, after)


def _verdict(report: Report) -> str:
    check = report.check("cpu")
    undecided = check.undecided or check.status == "not_run"
    return "failed" if check.status == "failed" else "not decided" if undecided else "passed"


def _ended(before: Report, after: Report) -> str:
    more = len(after.findings) - len(before.findings)
    return (
        "failed" if more else "not decided" if " not (" in after.check("cpu").emulated else "passed"
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("wheels", nargs="+", type=Path)
    options.add_argument("--level", default="avx")
    options.add_argument("--mutants", type=int, default=0, help="of each wheel, besides itself")
    options.add_argument(
        "--deep", action="store_true", help="mutants below the functions that count"
    )
    options.add_argument("--image")
    chosen = options.parse_args()
    count: Counter[tuple[str, str, str]] = Counter()
    for wheel in chosen.wheels:
        with tempfile.TemporaryDirectory() as folder:
            command = None
            if chosen.image:
                command = [f"{folder}/python"]
                Path(command[0]).write_text(CONTAINER.format(image=chosen.image))
                Path(command[0]).chmod(0o755)
            for number, each in enumerate(
                [wheel, *mutants(wheel, Path(folder), chosen.mutants, below=chosen.deep)]
            ):
                kind = "mutant" if number else "wheel"
                try:
                    verdict, ended = judged(each, chosen.level, command)
                except FarmError as error:
                    print(f"{wheel.name}: {error}", flush=True)
                    continue
                count[kind, verdict, ended] += 1
                print(
                    f"{wheel.name} {kind if number else ''}: said {verdict}; import {ended}",
                    flush=True,
                )
    for (kind, verdict, ended), number in sorted(count.items()):
        print(f"{number:4} {kind}s: said {verdict}, import {ended}")
    return int(any({verdict, ended} == {"passed", "failed"} for _, verdict, ended in count))


if __name__ == "__main__":
    sys.exit(main())
