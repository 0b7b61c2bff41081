"""The main job for ARM on a machine that is none: base image, toolchain, build and smoke test by
qemu and binfmt.
"""

import contextlib
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from farm.wheel.inspect import inspect
from tests.e2e.conftest import Farm, make_project, need

BINFMT = Path("/proc/sys/fs/binfmt_misc")
ENTRY = BINFMT / "qemu-aarch64"
HANDLER = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
"""Debian's own, of qemu-user-static; with the flag F the interpreter is opened outside the
container.
"""
IMAGE_S = 3600
"""Base image and toolchain take four minutes of CPU time, where an earlier run left none."""
CANARY = ("--package", "canary", "--json")


@contextlib.contextmanager
def mounted():
    if (BINFMT / "register").exists():
        yield
        return
    command = ["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT]
    mount = subprocess.run(command, capture_output=True, text=True, check=False)
    if mount.returncode:
        need("binfmt_misc", f"it cannot be mounted: {mount.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", BINFMT], check=True)


@pytest.fixture(scope="module")
def unregistered():
    """No programs for AArch64 here; a handler that somebody registered is active again
    afterwards.
    """
    if platform.machine() == "aarch64":
        pytest.skip("this machine runs them itself")
    if os.geteuid():
        need("root", "binfmt_misc is the kernel's")
    with mounted():
        before = ENTRY.exists()
        if before:
            ENTRY.write_text("0")
        yield
        if before:
            ENTRY.write_text("1")


@pytest.fixture(scope="module")
def farm(tmp_path_factory, client, unregistered):
    return Farm(make_project(tmp_path_factory.mktemp("arm") / "project"))


@pytest.fixture(scope="module")
def registered(farm):
    if not HANDLER.exists():
        need("qemu for programs of AArch64", "install Debian's qemu-user-static")
    new = not ENTRY.exists()
    (BINFMT / "register").write_text(HANDLER.read_text().strip()) if new else ENTRY.write_text("1")
    yield
    ENTRY.write_text("-1" if new else "0")


def test_without_an_emulator_it_is_refused_with_the_way_to_get_one(farm):
    done = farm.run("submit", "--variant", "cpu-armv8_2-py311", *CANARY)
    assert done.returncode == 4, done.stderr
    assert (
        "the plan is for aarch64, the Docker engine runs on x86_64, which has no emulator "
        "registered" in done.stderr
    )
    assert "apt-get install qemu-user-static" in done.stderr


@pytest.mark.parametrize(
    ("variant", "model", "sass"),
    [
        ("cpu-armv8_2-py311", "neoverse-n1", set()),
        ("cpu-armv9-py311", "max", set()),
        (
            "sm90-armv9-py311",
            "max",
            {90},
        ),  # CUDA 13 out of NVIDIA's wheels for aarch64: nvcc is emulated as well
    ],
)
@pytest.mark.usefixtures("registered")
def test_it_is_built_and_tested_and_called_emulated(farm, client, variant, model, sass):
    process = farm.start("submit", "--variant", variant, *CANARY)
    out, err = process.communicate(timeout=IMAGE_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    steps = {step["step"]: step for step in document["steps"]}
    names = [
        "render",
        "image",
        "build",
        "repair",
        "verify",
        "publish",
        "install",
        f"smoke ({model})",
    ]
    assert (list(steps), {step["outcome"] for step in steps.values()}) == (names, {"done"})
    assert steps["image"]["result"].endswith(", emulated")
    assert "aarch64 is emulated by qemu on this engine" in err
    # Two bytes of its ELF header say for which machine a program is: the compilers run on this one,
    # without qemu.
    place = (
        'od -An -tx1 -j18 -N2 "$(g++-12 -print-prog-name=cc1plus || g++-11 '
        '-print-prog-name=cc1plus)"'
    )
    image = (farm.folder(document["run"]) / "image.id").read_text()
    assert client.containers.run(image, ["sh", "-c", place], remove=True).split() == [b"3e", b"00"]
    inside = inspect(Path(document["wheel"]))
    assert [tag.endswith("_aarch64") for tag in inside.tags] == [True]
    assert {
        sm for library in inside.libraries for each in library.fatbins for sm in each.sass
    } == sass
    report = json.loads((farm.folder(document["run"]) / f"smoke-{model}.json").read_text())
    assert (report["outcome"], report["emulated"], report["facts"]["machine"]) == (
        "passed",
        model,
        "aarch64",
    )
    assert {each["status"] for each in report["checks"] if each["group"] == "cuda"} <= {"not_run"}
