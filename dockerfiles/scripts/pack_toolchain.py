"""Packs this image's file system as a toolchain that can be carried to a machine without network or
Docker.

Usage: pack_toolchain.py OUT [--whole]. Runs in a toolchain image; writes OUT/tree.tar.xz and
OUT/packed.json.

What compiles and links goes in, what is read by people stays out. Big libraries of the CUDA toolkit
are replaced by stubs of the same soname, with the same names and versions in them: enough to link
with; the real ones are taken from the image when the wheel is repaired. `--whole`: no stubs, for
machines to which the libraries need not be carried.
"""

import contextlib
import fnmatch
import json
import lzma
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Optional

LEFT_OUT = (
    "proc/*",
    "sys/*",
    "dev/*",
    "run/*",
    "tmp/*",
    "boot/*",
    "media/*",
    "mnt/*",
    "home/*",
    "root/*",
    "farm/job",
    "farm/job/*",
    "farm/out",
    "farm/out/*",
    "farm/src*",
    "farm/source*",
    "farm/ccache*",
    "var/cache/*",
    "var/log/*",
    "var/lib/apt/*",
    "var/lib/dpkg/*",
    "var/lib/systemd/*",
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/i18n/*",
    "usr/share/zoneinfo/*",
    "usr/share/perl*",
    "usr/share/bash-completion/*",
    "usr/share/lintian/*",
    "usr/share/cmake-*/Help/*",
    "usr/share/emacs/*",
    "usr/share/vim/*",
    "usr/share/gdb/*",
    "usr/share/icons/*",
    "usr/share/common-licenses/*",
    "usr/share/terminfo/*",
    "usr/share/keyrings/*",
    "usr/share/fonts/*",
    "usr/lib/systemd/*",
    "usr/lib/apt/*",
    "usr/lib/udev/*",
    "usr/lib/*/perl*",
    "usr/bin/perl*",
    "usr/lib/*/gconv/*",
    "usr/bin/gpgv*",
    "usr/bin/ctest",
    "usr/bin/cpack",
    "usr/bin/dpkg*",
    "usr/bin/apt*",
    "usr/lib/*/libapt-*",
    "usr/lib/*/security/*",
    "usr/bin/*ld.gold",
    "usr/bin/*lto-dump*",
    "usr/lib/*/gprofng/*",
    "usr/lib/*/libgprofng*",
    "usr/bin/*gprofng*",
    "usr/bin/*dwp",
    "usr/bin/*gprof*",
    "usr/lib/gcc/*/*/lto1",
    "usr/lib/gcc/*/*/lto-wrapper",
    "usr/lib/gcc/*/*/g++-mapper-server",
    "usr/lib/gcc/*/*/lib*san*",
    "usr/lib/gcc/*/*/plugin/*",
    "usr/lib/gcc/*/*/d21",
    "usr/lib/gcc/*/*/f951",
    "usr/lib/*/lib*san.so*",
    "*/__pycache__",
    "*/__pycache__/*",
    "*.pyc",
    "usr/lib/python3*/test/*",
    "usr/lib/python3*/idlelib/*",
    "usr/lib/python3*/lib2to3/*",
    "usr/lib/python3*/pydoc_data/*",
    "usr/lib/python3*/config-3*/*.a",
    "usr/lib/python3/dist-packages/*/tests/*",
    "usr/lib/valgrind/*",
)
UNWANTED = re.compile("|".join(fnmatch.translate(pattern) for pattern in LEFT_OUT))
LARGEST_ARCHIVE = 400_000
"""Static libraries above this many bytes stay out, except gcc's own and those of limit_symbols.py:
wheels link with shared ones.
"""
LIMITS = "opt/limits/"
STUBBED = re.compile(
    r"/lib(cublas|cublasLt|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|nvJitLink|nvrtc|nvrtc-builtins|cudnn\w*|nvblas)\.so"
)
SMALLEST_STUBBED = 4 << 20
STAND_IN = "farm stand-in for a library"
"""What every stub holds: a wheel's libraries are taken from the image where they would be stubs."""
COMPILERS = "/usr/bin"
PRESET = 4
BLOCK = 32 << 20
"""Bytes that are packed as one stream: many times preset 4's window of 4 MiB."""


def wanted(name: str, status: os.stat_result) -> bool:
    if UNWANTED.match(name):
        return False
    if name.endswith(".a") and stat.S_ISREG(status.st_mode) and status.st_size > LARGEST_ARCHIVE:
        return name.startswith(LIMITS) or ("/gcc/" in name and "libgcc" in name)
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return any(test(status.st_mode) for test in kept)


def compiler() -> str:
    found = sorted(str(path) for path in Path(COMPILERS).glob("gcc-*") if path.name[4:].isdigit())
    if not found:
        raise SystemExit("pack_toolchain: there is no gcc-<version> in this image")
    return found[0]


def stub(library: str, folder: str) -> Optional[str]:
    """A library with the soname, names and versions of `library`, and empty functions; None where
    it has no names.
    """
    dynamic = subprocess.run(
        ["readelf", "-dW", library], capture_output=True, text=True, check=True
    ).stdout
    soname = re.search(r"SONAME.*\[(.+)\]", dynamic)
    needed = re.findall(r"NEEDED.*\[(.+)\]", dynamic)
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"(FUNC|OBJECT|NOTYPE)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+\s+(\S+)", symbols)
    if soname is None or not found:
        return None
    versions: dict = {}
    code = []
    for kind, text in found:
        name, _, version = text.partition("@")
        version = version.lstrip("@")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.$]*", name) or name == version:
            continue
        code.append(
            f".globl {name}\n.type {name}, "
            f"@{'function' if kind != 'OBJECT' else 'object'}\n{name}:\n .byte 0xc3\n"
        )
        if re.fullmatch(
            r"[A-Za-z0-9_.]+", version
        ):  # ld cannot write libnvrtc-builtins' version, which has a dash
            versions.setdefault(version, []).append(name)
    script = ""
    for version, names in sorted(versions.items()):
        script += f"{version} {{ global: {'; '.join(sorted(set(names)))}; }};\n"
    target = Path(folder, Path(library).name)
    source = target.with_suffix(".s")
    map_file = target.with_suffix(".map")
    source.write_text(
        f'.ident "{STAND_IN}"\n.text\n'
        + "".join(dict.fromkeys(code))
        + '.section .note.GNU-stack,"",@progbits\n'
    )
    map_file.write_text(script)
    command = [
        compiler(),
        "-shared",
        "-nostdlib",
        f"-Wl,-soname,{soname[1]}",
        str(source),
        "-o",
        str(target),
    ]
    # As the real one does, it leads to the other parts of the toolkit: what links with libcublas
    # finds the names of libcublasLt through it, and names libcublas alone.
    parts = [name for name in needed if STUBBED.search(f"/{name}")]
    command += ["-Wl,--no-as-needed", *(str(Path(library).with_name(name)) for name in parts)]
    if script:
        command.append(f"-Wl,--version-script={map_file}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pack_toolchain: no stub of {library}: {done.stderr[-400:]}")
    print(
        f"stub of {library}: {len(found)} names; it leads to {', '.join(parts) or 'nothing else'}",
        flush=True,
    )
    return str(target)


def walk(root: str) -> list:
    """(relative name, status) of what goes in, folders before what is in them."""
    found = []
    for folder, folders, files in os.walk(root):
        base = os.path.relpath(folder, root).removeprefix(".").lstrip("/")
        kept = {}
        for name in sorted(folders + files):
            relative = f"{base}/{name}".lstrip("/")
            status = Path(root, relative).lstat()
            if wanted(relative, status):
                kept[name] = (relative, status)
        found += kept.values()
        folders[:] = [
            name
            for name in sorted(folders)
            if name in kept and wanted(f"{kept[name][0]}/", kept[name][1])
        ]
    return found


def clean(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mode &= 0o755
    return info


class Compressed:
    """A file into which each block goes as an .xz stream of its own, so that every core packs one.

    `xz` and Python's lzma read the streams as one; the bytes depend on no number of cores.
    """

    def __init__(self, out: BinaryIO, pool: ThreadPoolExecutor, cores: int) -> None:
        self._out = out
        self._pool = pool
        self._most = cores + 1
        self._block = bytearray()
        self._packing: deque = deque()

    def write(self, data: bytes) -> int:
        self._block += data
        while len(self._block) >= BLOCK:
            self._pack(bytes(self._block[:BLOCK]))
            del self._block[:BLOCK]
        return len(data)

    def _pack(self, block: bytes) -> None:
        self._packing.append(self._pool.submit(lzma.compress, block, preset=PRESET))
        if len(self._packing) > self._most:  # what waits is in memory
            self._out.write(self._packing.popleft().result())

    def close(self) -> None:
        self._pack(bytes(self._block))
        while self._packing:
            self._out.write(self._packing.popleft().result())


@contextlib.contextmanager
def compressed(target: Path) -> Iterator[Compressed]:
    """A stream into `target` as .xz."""
    cores = len(os.sched_getaffinity(0))
    with target.open("wb") as out, ThreadPoolExecutor(cores) as pool:
        stream = Compressed(out, pool, cores)
        yield stream
        stream.close()


STEP_MB = 100  # between two lines of progress


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    target = out / "tree.tar.xz"
    stubs = []
    total = 0
    count = 0
    told = 0  # MB that were told of
    with (
        tempfile.TemporaryDirectory(prefix="stubs-") as folder,
        compressed(target) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, status in walk("/"):
            path = "/" + name
            regular = stat.S_ISREG(status.st_mode)
            if (
                regular
                and "--whole" not in sys.argv
                and status.st_size > SMALLEST_STUBBED
                and STUBBED.search(path)
            ):
                made = stub(path, folder)
                if made:
                    stubs.append(path)
                    archive.add(made, arcname=name, recursive=False, filter=clean)
                    continue
            archive.add(path, arcname=name, recursive=False, filter=clean)
            total += status.st_size if regular else 0
            count += 1
            if total >> 20 >= told + STEP_MB:
                told = total >> 20
                print(f"{told} MB packed", flush=True)
    (out / "packed.json").write_text(
        json.dumps({"files": count, "bytes": total, "stubs": stubs}) + "\n"
    )
    print(
        f"{count} files, {total} bytes, {len(stubs)} stubs; packed: {target.stat().st_size} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
