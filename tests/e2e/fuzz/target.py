"""One coverage-guided fuzzer: `target.py PARSER [libFuzzer options] [corpus folders]`.

Any exception but `VerificationFailedError` is a crash: libFuzzer stops and keeps the input.
"""

import contextlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["farm", "packaging"]):
    from farm.base.errors import VerificationFailedError
    from farm.policy.rules import Policy
    from farm.wheel.archive import Archive
    from farm.wheel.checks.numpy import check_numpy
    from farm.wheel.elf import (
        code_sections,
        function_symbols,
        read_elf,
        section_ranges,
        symbol_name,
    )
    from farm.wheel.elf_symbols import read_symbols
    from farm.wheel.fatbin import find_fatbins, has_kernel, read_fatbins, unpack
    from farm.wheel.inspect import inspect
    from farm.wheel.isa.scan import scan_dll, scan_isa, scan_starts
    from farm.wheel.metadata import (
        parse_record,
        parse_wheel_name,
        read_dist_info,
        render_record,
        with_tags,
        with_version,
    )
    from farm.wheel.pe import read_dll_symbols, read_pe
    from farm.wheel.repair import RepairOptions, repair
    from farm.wheel.verify import verify

NAME = "canary-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
POLICY = Policy(
    name="canary",
    version="1.0",
    python="cp311",
    platform="linux_x86_64",
    sass=(35,),
    ptx=(35,),
    cpu="sse41",
    numpy="<2",
)
MARK = b"\n=====\n"
FOLDER = Path(tempfile.mkdtemp(prefix="farm-fuzz-"))


def _wheel(data: bytes) -> Path:
    path = FOLDER / NAME
    path.write_bytes(data)
    return path


def directory(data: bytes) -> None:
    with Archive(_wheel(data)) as archive:
        for name in archive.members:
            for _ in archive.chunks(name):
                pass


def whole(data: bytes) -> None:
    """All that a wheel from anywhere goes through; a repaired wheel can be opened."""
    _go_through(_wheel(data))


def parts(data: bytes) -> None:
    """As `whole`, for a sound archive of hostile members: library, METADATA, WHEEL, RECORD between
    these marks.
    """
    members = [
        "canary/a.so",
        *(f"canary-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
    ]
    with zipfile.ZipFile(FOLDER / NAME, "w") as archive:
        for name, content in zip(members, (data + 3 * MARK).split(MARK), strict=False):
            archive.writestr(name, content)
    _go_through(FOLDER / NAME)


def _go_through(wheel: Path) -> None:
    verify(wheel, POLICY)
    out = FOLDER / "out"
    out.mkdir(exist_ok=True)
    try:
        inspect(wheel)
        result = repair(wheel, out, RepairOptions(into="canary/lib", version="1.1"))
        with Archive(result.wheel) as archive:
            read_dist_info(archive)
    except VerificationFailedError:
        assert not list(out.iterdir())
    finally:
        shutil.rmtree(out)


def record(data: bytes) -> None:
    rows = parse_record(data)
    if not all(row.path.isprintable() for row in rows):  # no member has such a name
        return
    assert parse_record(render_record(rows)) == rows


def metadata(data: bytes) -> None:
    """METADATA, a zero byte, WHEEL."""
    first, _, second = data.partition(b"\0")
    path = FOLDER / NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"METADATA": first, "WHEEL": second, "RECORD": b""}.items():
            archive.writestr(f"canary-1.0.dist-info/{name}", content)
    with Archive(path) as opened:
        check_numpy(read_dist_info(opened), POLICY)
    with_version(first, "2.0")
    with_tags(second, ["cp311-cp311-manylinux_2_17_x86_64"])


def names(data: bytes) -> None:
    parse_wheel_name(data.decode("utf-8", "replace"))


def elf(data: bytes) -> None:
    seen = read_elf(data)
    section_ranges(data, [section for section in seen.sections if section.is_code])
    for name in function_symbols(data, seen).names:
        symbol_name(data, name)
    code_sections(data, seen)
    read_symbols(data, seen)


def pe(data: bytes) -> None:
    read_dll_symbols(data, read_pe(data))


def fatbin(data: bytes) -> None:
    for container in read_fatbins(data, 0, len(data)):
        assert container.sass <= {entry.sm for entry in container.entries}
    find_fatbins(data, [])


def cubin(data: bytes) -> None:
    """One byte that chooses the compression, then the data."""
    for zstd in (False, True):
        content = unpack(data[1:], 4096, zstd=zstd)
        assert content is None or len(content) <= 4096
    has_kernel(data[1:])


def isa(data: bytes) -> None:
    seen = read_elf(data)
    scan_isa(data, seen, "avx")
    scan_starts(data, seen, "avx")


def peisa(data: bytes) -> None:
    seen = read_pe(data)
    for on_load in (False, True):
        scan_dll(data, seen, "avx", on_load=on_load)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        directory,
        whole,
        parts,
        record,
        metadata,
        names,
        elf,
        pe,
        fatbin,
        cubin,
        isa,
        peisa,
    )
}


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        with contextlib.suppress(VerificationFailedError):
            target(data)

    atheris.Setup(sys.argv, one)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


main()
