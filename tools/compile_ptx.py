"""Has the driver compile the PTX of libraries: `python -m tools.compile_ptx LIBRARY... [--jobs N]
[--cards N]`.

A card that is newer than a wheel's machine code runs its PTX, which the driver compiles a fat
binary at a time, at the first use and in one thread: minutes for sort or reduction. This loads each
fat binary once, in several processes, so that the driver's cache has it.
CUDA_CACHE_MAXSIZE=4294967296 lets that cache hold all of torch (set it for what runs later too, and
CUDA_CACHE_PATH, if the cache is not in the home folder). Exit code 1: the driver refused some.
"""

import argparse
import ctypes
import mmap
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from farm.base.errors import VerificationFailedError
from farm.wheel.fatbin import find_fatbins


class Piece(NamedTuple):
    """A fat binary with PTX: where it lies in a file, in bytes."""

    path: str
    start: int
    end: int


def pieces(libraries: list[Path]) -> list[Piece]:
    """The fat binaries with PTX, largest first: they take longest.

    Raises:
        OSError: A library cannot be read.
        VerificationFailedError: One holds a damaged fat binary.
    """
    result = []
    for path in libraries:
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            result += [
                Piece(str(path), section.offset, section.offset + section.size)
                for section in find_fatbins(data)
                if section.ptx
            ]
    return sorted(result, key=lambda piece: piece.start - piece.end)


def start(cards: "multiprocessing.Queue[int]") -> None:
    """A worker's first act: its card, and the driver on it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(cards.get())
    driver = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuCtxCreate_v2(ctypes.byref(context), 0, device),
    ):
        if status:
            raise RuntimeError(
                f"the driver does not start on card {os.environ['CUDA_VISIBLE_DEVICES']}: {status=}"
            )


def compile_one(piece: Piece) -> tuple[int, float]:
    """(CUresult, seconds) of loading one."""
    with Path(piece.path).open("rb") as stream:
        stream.seek(piece.start)
        image = stream.read(piece.end - piece.start)
    driver = ctypes.CDLL("libcuda.so.1")
    module = ctypes.c_void_p()
    begun = time.monotonic()
    status = driver.cuModuleLoadData(ctypes.byref(module), image)
    took = time.monotonic() - begun
    if status == 0:
        driver.cuModuleUnload(module)
    return int(status), took


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "libraries", type=Path, nargs="+", metavar="LIBRARY", help="torch/lib/libtorch_cuda.so"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: the CPUs)"
    )
    parser.add_argument("--cards", type=int, default=1, help="spread them over the first N GPUs")
    args = parser.parse_args()
    try:
        ctypes.CDLL("libcuda.so.1")
        texts = pieces(args.libraries)
    except (
        OSError,
        ValueError,
        VerificationFailedError,
    ) as error:  # an empty file cannot be mapped: ValueError
        parser.error(str(error))
    begun = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    cards = spawn.Queue()
    for number in range(args.jobs):
        cards.put(number % args.cards)
    try:
        with ProcessPoolExecutor(
            args.jobs, mp_context=spawn, initializer=start, initargs=(cards,)
        ) as pool:
            results = list(pool.map(compile_one, texts))
    except BrokenProcessPool:  # what its worker says stands above
        print("the driver did not start, or compiling ended a process")
        return 1
    refused = [status for status, _ in results if status]
    took = sum(seconds for _, seconds in results)
    print(
        f"{len(results)} fat binaries with PTX, {took:.0f} s of loading in "
        f"{time.monotonic() - begun:.0f} s"
    )
    if refused:
        print(f"{len(refused)} were refused: CUresult {', '.join(map(str, sorted(set(refused))))}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
