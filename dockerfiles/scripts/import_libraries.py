"""Makes the import libraries (NAME.lib) that NVIDIA's wheels for Windows lack, by lib.exe of Visual
Studio.

Usage: import_libraries.py CUDA_FOLDER, with lib.exe on PATH. One file, standard library, Python
3.9+.

The wheels have the DLLs of cuBLAS, cuFFT, cuRAND, cuSOLVER, cuSPARSE, NVRTC and cuDNN, and no .lib
to link with; their archives have both. The names that a DLL exports are all that such a library
says. What lib/x64 has already is kept. Exit codes: 0 done, 3 lib.exe is missing or failed, 9 a DLL
cannot be read.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DLL_FOLDERS = ("bin", "bin/x86_64")
# cublas64_13.dll is linked as cublas.lib, nvJitLink_130_0.dll as nvJitLink.lib;
# nvrtc64_130_0.alt.dll is a second copy.
LINKED = re.compile(r"([A-Za-z][\w-]*?)(?:64)?_[0-9][0-9._]*\.dll", re.IGNORECASE)
MAX_NAMES = 65536
HELD_S = 10.0  # how long a virus scanner may have a new file open
CODE = 0x20  # IMAGE_SCN_CNT_CODE


class DllError(Exception):
    """A file is no DLL for x86-64, or a damaged one."""


def exports(data: bytes) -> list[tuple[str, bool]]:
    """The names that a DLL exports, each with whether it is data.

    Source: Microsoft's PE format, "The .edata Section".

    Raises:
        DllError: It is no DLL for x86-64, or damaged.
    """
    try:
        (header,) = struct.unpack_from("<I", data, 0x3C)
        signature, machine, sections, optional_size = struct.unpack_from("<4sHH12xH", data, header)
        (magic,) = struct.unpack_from("<H", data, header + 24)
        if (signature, machine, magic) != (b"PE\0\0", 0x8664, 0x20B):
            raise DllError("no DLL for x86-64")
        (table,) = struct.unpack_from("<I", data, header + 24 + 112)
        rows = [
            struct.unpack_from("<8x4I12xI", data, header + 24 + optional_size + 40 * number)
            for number in range(sections)
        ]

        def section(address: int) -> tuple[int, int]:
            """Where in the file an address lies, and the flags of its section."""
            for size, start, raw_size, raw, flags in rows:
                if start <= address < start + max(size, raw_size):
                    return address - start + raw, flags
            raise DllError(f"no section holds address {address:#x}")

        if not table:
            return []
        functions, names, function_table, name_table, ordinals = struct.unpack_from(
            "<5I", data, section(table)[0] + 20
        )
        if max(functions, names) > MAX_NAMES:
            raise DllError(f"more than {MAX_NAMES} names")
        found = []
        for number in range(names):
            (where,) = struct.unpack_from("<I", data, section(name_table)[0] + 4 * number)
            (ordinal,) = struct.unpack_from("<H", data, section(ordinals)[0] + 2 * number)
            (address,) = struct.unpack_from("<I", data, section(function_table)[0] + 4 * ordinal)
            start = section(where)[0]
            found.append(
                (
                    data[start : data.index(b"\0", start)].decode("ascii"),
                    not section(address)[1] & CODE,
                )
            )
    except (struct.error, ValueError) as error:
        raise DllError(f"damaged: {error}") from None
    return found


def definition(dll: str, names: list[tuple[str, bool]]) -> str:
    """The module definition that lib.exe reads."""
    lines = [f"  {name}{' DATA' if data else ''}" for name, data in names]
    return "\n".join([f'LIBRARY "{dll}"', "EXPORTS", *lines]) + "\n"


def make(dll: Path, target: Path) -> None:
    """Makes one library; it is there whole or not at all.

    Raises:
        DllError: The DLL cannot be read.
        OSError: lib.exe is missing, or a file cannot be written.
        subprocess.CalledProcessError: lib.exe failed.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        text = Path(folder, "names.def")
        made = Path(folder, target.name)
        text.write_text(definition(dll.name, exports(dll.read_bytes())), encoding="ascii")
        command = ["lib.exe", "/nologo", "/machine:x64", f"/def:{text}", f"/out:{made}"]
        subprocess.run(command, check=True)
        end = time.monotonic() + HELD_S
        while True:
            try:
                made.replace(target)
                return
            except PermissionError:  # a virus scanner opens what is new, for seconds
                if sys.platform != "win32" or time.monotonic() > end:
                    raise
                time.sleep(0.05)


def main() -> int:
    home = Path(sys.argv[1])
    libraries = home / "lib" / "x64"
    libraries.mkdir(parents=True, exist_ok=True)
    for dll in sorted(path for folder in DLL_FOLDERS for path in (home / folder).glob("*.dll")):
        match = LINKED.fullmatch(dll.name)
        if not match or (libraries / f"{match[1]}.lib").exists():
            continue
        try:
            make(dll, libraries / f"{match[1]}.lib")
        except DllError as error:
            print(f"import_libraries: {dll}: {error}", file=sys.stderr)
            return 9
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"import_libraries: {dll}: {error}", file=sys.stderr)
            return 3
        print(f"{match[1]}.lib for {dll.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
