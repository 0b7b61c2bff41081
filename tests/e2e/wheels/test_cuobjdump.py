"""The fat binary reader against NVIDIA's own `cuobjdump`, on published wheels of different makers.

Downloads (kept in FARM_CACHE, by default ~/.cache/farm-tests): the wheels, and `cuobjdump` out of
Debian's CUDA 11.8, the last whose tools still list Kepler code. FARM_CUDA_WHEELS=all adds the large
wheels. cuobjdump reads no PE file, so device code of Windows libraries is given to it container by
container.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.wheel.archive import Archive, Buffer
from farm.wheel.elf import ELF_MAGIC, read_elf, section_ranges
from farm.wheel.fatbin import FATBIN_SECTION, Container, read_fatbins

CACHE = Path(os.environ.get("FARM_CACHE", "~/.cache/farm-tests")).expanduser()
PACKAGE = "nvidia-cuda-toolkit"
SOURCES = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} bookworm main "
    "non-free\n"
)
LINUX = (
    "manylinux1_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_24_x86_64",
)
WINDOWS = ("win_amd64",)
SMALL = [
    ("torchvision==0.13.1", LINUX),
    ("torchaudio==0.12.1", LINUX),
    ("faiss-gpu==1.7.2", LINUX),
    ("jax-cuda11-plugin==0.4.25", LINUX),
    ("catboost==1.2.2", LINUX),
    ("k2==1.23.2", LINUX),
    ("nvidia-nvjpeg-cu11==11.9.0.86", LINUX),
    ("nvidia-nvjpeg-cu11==11.9.0.86", WINDOWS),
    ("nvidia-curand-cu11==10.3.0.86", WINDOWS),
    ("xgboost==1.7.6", WINDOWS),
]
LARGE = [
    ("xgboost==1.7.6", LINUX),
    ("bitsandbytes==0.41.3", LINUX),
    ("spconv-cu117==2.3.6", LINUX),
    ("spconv-cu117==2.3.6", WINDOWS),
    ("cupy-cuda11x==12.3.0", LINUX),
    ("cupy-cuda11x==12.3.0", WINDOWS),
    ("nvidia-cufft-cu11==10.9.0.58", LINUX),
    ("nvidia-npp-cu11==11.8.0.86", LINUX),
]
CASES = [*SMALL, *(LARGE if os.environ.get("FARM_CUDA_WHEELS") == "all" else [])]
LISTED = re.compile(r"^(ELF|PTX) file +\d+: .*\.sm_(\d+a?)\.(?:cubin|ptx)$", re.MULTILINE)


def need(what: str, reason: str) -> None:
    if os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail(f"{what} is missing: {reason}")
    pytest.skip(f"{what} is missing: {reason}")


def mirror() -> str:
    """The Debian mirror that this machine's apt uses."""
    command = [
        "apt-get",
        "indextargets",
        "--format",
        "$(CODENAME) $(REPO_URI)",
        "Created-By: Packages",
    ]
    listed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    found = [
        uri
        for codename, uri in (line.split() for line in listed.splitlines())
        if codename == "bookworm"
    ]
    if not found:
        need("cuobjdump", "this machine's apt knows no mirror of bookworm")
    return found[0]


@pytest.fixture(scope="session")
def cuobjdump() -> Path:
    """The program, taken out of its package in a folder of our own: this machine's apt is left as
    it is.
    """
    program = CACHE / "cuda-11.8" / "cuobjdump"
    if program.exists():
        return program
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        need("cuobjdump", "apt-get and dpkg-deb fetch it; this is not a Debian")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        (folder / "sources.list").write_text(SOURCES.format(mirror=mirror()))
        places = {
            "Dir::Etc::sourcelist": "sources.list",
            "Dir::State::lists": "lists",
            "Dir::Cache": "cache",
        }
        options = [f"-o{key}={folder / value}" for key, value in places.items()]
        options += ["-oDir::Etc::sourceparts=-", "-oAPT::Sandbox::User=root"]
        for command in (["update"], ["download", f"{PACKAGE}:amd64"]):
            done = subprocess.run(
                ["apt-get", "-q", *options, *command],
                check=False,
                cwd=folder,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                need("cuobjdump", f"apt-get {command[0]}: {done.stderr[-300:]}")
        [package] = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder / "x"], check=True)
        program.parent.mkdir(exist_ok=True)
        (folder / "x/usr/bin/cuobjdump").replace(program)
    return program


def fetch(requirement: str, platforms: tuple[str, ...]) -> Path:
    folder = CACHE / "cuda-wheels" / requirement.replace("==", "-") / platforms[0]
    if not list(folder.glob("*.whl")):
        options = [f"--platform={platform}" for platform in platforms]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
        ]
        command += ["--python-version=3.10", *options, "-d", str(folder), requirement]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            need(requirement, done.stderr[-300:])
    [wheel] = folder.glob("*.whl")
    return wheel


def pe_sections(data: Buffer) -> Iterator[tuple[bytes, int, int]]:
    """(name, offset, end) by the PE format's section table."""
    at = struct.unpack_from("<I", data, 60)[0]
    assert data[at : at + 4] == b"PE\0\0"
    count, optional = struct.unpack_from("<H12xH", data, at + 6)
    for index in range(count):
        name, virtual, _, size, offset = struct.unpack_from(
            "<8sIIII", data, at + 24 + optional + 40 * index
        )
        yield name.rstrip(b"\0"), offset, offset + min(size, virtual)


def device_code(data: Buffer) -> list[tuple[int, list[Container]]]:
    """Where each section with device code begins, and its containers."""
    if data[:4] == ELF_MAGIC:
        ranges = section_ranges(
            data, (part for part in read_elf(data).sections if part.name == FATBIN_SECTION)
        )
        places = [(start, end) for _, start, end in ranges]
    else:
        places = [(start, end) for name, start, end in pe_sections(data) if name == b".nv_fatb"]
    return [(start, read_fatbins(data, start, end)) for start, end in places]


def listed(cuobjdump: Path, file: Path) -> Counter[tuple[str, str]]:
    """Multiset of (kind, architecture) that cuobjdump sees."""
    found: Counter[tuple[str, str]] = Counter()
    for option in ("--list-elf", "--list-ptx"):
        done = subprocess.run(
            [cuobjdump, option, file], check=False, capture_output=True, text=True
        )
        # It complains where there is none of the one kind asked for.
        assert done.returncode == 0 or "does not contain" in done.stderr + done.stdout, done.stderr
        found.update((match[1], match[2]) for match in LISTED.finditer(done.stdout))
    return found


def seen(containers: list[Container]) -> Counter[tuple[str, str]]:
    return Counter(
        ("PTX" if entry.kind == "ptx" else "ELF", str(entry.sm))
        for container in containers
        for entry in container.entries
    )


@pytest.mark.parametrize(
    ("requirement", "platforms"), CASES, ids=[f"{name}-{tags[0]}" for name, tags in CASES]
)
def test_agrees_with_cuobjdump(requirement, platforms, cuobjdump, tmp_path):
    wheel = fetch(requirement, platforms)
    entries = 0
    ours = theirs = 0.0
    with Archive(wheel) as archive:
        for name in archive.members:
            with archive.content(name, (ELF_MAGIC, b"MZ")) as (_, data):
                if data is None:
                    continue
                start = time.perf_counter()
                sections = device_code(data)
                ours += time.perf_counter() - start
                if not sections:
                    continue
                library = tmp_path / "library"
                start = time.perf_counter()
                if data[:4] == ELF_MAGIC:
                    library.write_bytes(data)
                    start = time.perf_counter()
                    expected = listed(cuobjdump, library)
                    theirs += time.perf_counter() - start
                    assert (
                        seen([each for _, containers in sections for each in containers])
                        == expected
                    ), name
                    entries += expected.total()
                    continue
                for section, containers in sections:
                    for container in containers:
                        at = section + container.offset
                        fatbin = tmp_path / "one.fatbin"
                        fatbin.write_bytes(
                            data[at : at + 16 + int.from_bytes(data[at + 8 : at + 16], "little")]
                        )
                        expected = listed(cuobjdump, fatbin)
                        assert seen([container]) == expected, (name, container.offset)
                        entries += expected.total()
    assert entries, "the wheel holds no device code: nothing was compared"
    print(
        f"{wheel.name}: {entries} entries agree; {ours * 1000:.0f} ms, cuobjdump "
        f"{theirs * 1000:.0f} ms (ELF only)"
    )
