"""Compiling PTX beforehand, with a stand-in for the driver: there is no card here.

It notes what it is given, and refuses what is called `bad`.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("NO_CARD") ? 100 : 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = device ? 0 : "c"; return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuModuleLoadData(void **module, const unsigned char *image) {
    unsigned size = 16 + *(const unsigned *)(image + 8);
    const char *text = (const char *)image + size - 8; /* the last eight bytes are its name */
    FILE *log = fopen(getenv("LOADED"), "a");
    fprintf(log, "[\"%.8s\", %u, \"%s\"]\n", text, size, getenv("CUDA_VISIBLE_DEVICES"));
    fclose(log);
    return strncmp(text, "bad", 3) ? 0 : 218;
}
"""


def fat_binary(name: str, kind: int = 1, padding: int = 0) -> bytes:
    """A container with one entry, PTX (1) or machine code (2), that ends with its name of eight
    letters.
    """
    body = b"." * padding + name.encode()
    entry = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(body), 0, 0, 3, 7, 35, 0, 0, 0x11, 0, 0
    )[:64]
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(body)) + entry + body


@pytest.fixture
def compile_ptx(tmp_path):
    """Runs the tool on fat binaries; returns (exit code, output, what was loaded, in order)."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: the stand-in for the driver is made with one")
    (tmp_path / "driver.c").write_text(DRIVER)
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-w",
        "-o",
        tmp_path / "libcuda.so.1",
        tmp_path / "driver.c",
    ]
    subprocess.run(command, check=True)

    def run(content: bytes, *arguments: str, **environ: str):
        (tmp_path / "libtorch_cuda.so").write_bytes(content)
        log = tmp_path / "loaded"
        log.unlink(missing_ok=True)
        environ |= {"LD_LIBRARY_PATH": str(tmp_path), "LOADED": str(log), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "tools.compile_ptx", tmp_path / "libtorch_cuda.so", *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environ},
        )  # fmt: skip
        loaded = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return done.returncode, done.stdout + done.stderr, loaded

    return run


def test_each_fat_binary_with_ptx_is_loaded_once_largest_first(compile_ptx):
    content = (
        b"x" * 100
        + fat_binary("small...")
        + b"y" * 9
        + fat_binary("machine.", kind=2)
        + fat_binary("large...", 1, 400)
    )
    code, out, loaded = compile_ptx(content, "--jobs", "1")
    assert (code, loaded) == (0, [["large...", 488, "0"], ["small...", 88, "0"]])
    assert out.startswith("2 fat binaries with PTX, ")


def test_cards_take_turns(compile_ptx):
    code, _, loaded = compile_ptx(
        b"".join(fat_binary(f"kernel{n:02}") for n in range(40)), "--jobs", "2", "--cards", "2"
    )
    assert code == 0
    assert sorted(name for name, _, _ in loaded) == [f"kernel{n:02}" for n in range(40)]
    assert {card for _, _, card in loaded} <= {"0", "1"}


def test_what_the_driver_refuses_is_said(compile_ptx):
    code, out, loaded = compile_ptx(fat_binary("bad.....") + fat_binary("good...."), "--jobs", "1")
    assert (code, len(loaded)) == (1, 2)
    assert "1 were refused: CUresult 218" in out


def test_a_driver_that_does_not_start_is_an_error_not_a_wait(compile_ptx):
    code, out, loaded = compile_ptx(fat_binary("kernel.."), "--jobs", "2", NO_CARD="1")
    assert (code, loaded) == (1, [])
    assert "the driver does not start on card 0: status=100" in out


def test_a_damaged_library_is_a_usage_error(compile_ptx):
    damaged = fat_binary("kernel..")
    code, out, _ = compile_ptx(damaged[:20] + b"\xff" * 8 + damaged[28:])
    assert code == 2
    assert "damaged fat binary" in out


def test_an_empty_file_is_a_usage_error(compile_ptx):
    code, out, _ = compile_ptx(b"")
    assert code == 2
    assert "empty file" in out
