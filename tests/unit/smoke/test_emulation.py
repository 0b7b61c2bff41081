"""Which CPU is emulated by which model, and is the emulator fit for it."""

import re

import pytest

from farm.base.errors import InfrastructureError
from farm.smoke.emulation import find_emulator, model_for


@pytest.mark.parametrize(
    ("cpu", "model"),
    [
        ("sse41", "Penryn"),
        ("avx", "SandyBridge"),
        ("avx2", "Haswell"),
        ("armv8_2", "neoverse-n1"),
        ("armv9", "max"),
    ],
)
def test_models(cpu, model):
    assert model_for(cpu).name == model


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        ("avx512", "qemu's emulation has no AVX-512"),
        ("arm64", "qemu runs no macOS programs"),
        ("mips", "no emulated CPU is known for 'mips'"),
    ],
)
def test_what_cannot_be_emulated_has_a_reason(cpu, reason):
    found = model_for(cpu)
    assert (found.name, found.reason) == (None, reason)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo qemu-x86_64 version 5.2.0", "is 5.2: too old"),
        ("echo hello", "answered 'hello"),
        ("exit 1", "--version failed"),
    ],
)
def test_an_unsuitable_emulator_is_refused(tmp_path, monkeypatch, script, reason):
    program = tmp_path / "qemu-x86_64"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match=re.escape(reason)) as caught:
        find_emulator()
    assert "qemu-user" in caught.value.hint


@pytest.mark.parametrize("version", ["7.2.0 (Debian 1:7.2+dfsg-7)", "10.0.1"])
def test_a_suitable_emulator_is_accepted(tmp_path, monkeypatch, version):
    program = tmp_path / "qemu-x86_64"
    program.write_text(f"#!/bin/sh\necho 'qemu-x86_64 version {version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_emulator() == str(program)
