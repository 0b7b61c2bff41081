"""The changes of ELF files that tests/e2e/installers asks glibc about, made to a library of this environment."""

import re
from pathlib import Path

import pytest
import zstandard

from farm.base.errors import VerificationFailedError
from farm.wheel.elf import read_elf
from farm.wheel.library import read_library
from farm.wheel.symbols import read_symbols
from tests.differential.drafts import Draft
from tests.differential.mutations import MUTATIONS

MEMBER = "own/backend_c.so"
# What other checks see: the machine, and the names of libraries, versions and functions.
OTHERS = {f"elf-{name}-missing" for name in ("needed", "version", "symbol", "libc-symbol")} | {
    "elf-machine",
    "elf-machine-unknown",
    "elf-32-bit",
}
CHANGES = [each for each in MUTATIONS if each.name.startswith("elf-") and each.name not in OTHERS]


@pytest.fixture(scope="module")
def library():
    found = [each.read_bytes() for each in Path(zstandard.__file__).parent.glob("backend_c*.so")]
    found = [data for data in found if data[:20].startswith(b"\x7fELF\2\1") and data[18:20] == b"\x3e\0"]
    return found[0] if found else pytest.skip("zstandard has no library for x86-64 Linux here")


def said(data):
    read = read_library(MEMBER, "", data, None)
    if read.error or read.refused:
        return read.error or read.refused
    try:
        read_symbols(data, read_elf(data))
    except VerificationFailedError as error:
        return str(error)
    return None


def test_the_library_is_good(library):
    assert said(library) is None


@pytest.mark.parametrize("change", CHANGES, ids=[each.name for each in CHANGES])
def test_what_the_loader_refuses_is_refused(library, change):
    draft = Draft("own-1.0-py3-none-any.whl", "own-1.0.dist-info", {MEMBER: library})
    change.change(draft)
    found = said(draft.files[MEMBER])
    assert found is None if change.cause is None else re.search(change.cause, found or "nothing", re.IGNORECASE), found


ANDROID = {
    "DT_ANDROID_REL": 0x6000000F,
    "DT_ANDROID_RELA": 0x60000011,
    "DT_ANDROID_RELR": 0x6FFFE000,
}  # of bionic's <elf.h>


@pytest.mark.parametrize("tag", ANDROID.values(), ids=ANDROID)
def test_relocations_that_only_android_unpacks(make_elf, tag):
    """lld's --pack-dyn-relocs=android and --use-android-relr-tags: glibc passes them over, and the library crashes."""
    starts = {"init": [0], "relocate_init": False, "dynamic": [(tag, 176)]}
    glibc = read_library(
        MEMBER, "", make_elf(versions={"libc.so.6": ["GLIBC_2.2.5"]}, needed=["libc.so.6"], **starts), None
    )
    assert glibc.refused == "its relocations are packed for Android, and no other loader unpacks them"
    assert read_library(MEMBER, "", make_elf(needed=["libc.so"], **starts), None).refused is None
