"""The check of torch.compile: what is missing is named; a wrong result fails. Torch is a
stand-in.
"""

import importlib.util
import shutil
from types import SimpleNamespace

import pytest

from farm.smoke.probe import features, main
from farm.smoke.probe.recorder import FailedError, NotRunError, Recorder


class Torch:
    """As much of torch as the check takes. `answer` is what a compiled model does."""

    def __init__(self, answer=lambda model: model, capability=(8, 9)):
        self.compile = answer
        self.cuda = SimpleNamespace(get_device_capability=lambda: capability)
        layers = {"Linear": lambda *_: None, "ReLU": lambda: None, "Sequential": lambda *_: self}
        self.nn = SimpleNamespace(**layers)
        self.manual_seed = lambda _: None
        self.ones = lambda *_, device: [1.0]  # noqa: ARG005 torch's names
        self.allclose = lambda a, b, rtol, atol: a == b  # noqa: ARG005 torch's names
        self.no_grad = Quiet

    def to(self, _device):
        return self

    def __call__(self, given):
        return given


class Quiet:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


@pytest.fixture
def prompt(monkeypatch):
    """The prompt of Visual Studio."""
    monkeypatch.setattr(features.sys, "platform", "win32")
    monkeypatch.setattr(shutil, "which", lambda name: "C:/vc/cl.exe" if name == "cl" else None)
    monkeypatch.setenv("INCLUDE", "C:/vc/include")
    monkeypatch.setenv("LIB", "C:/vc/lib")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    return monkeypatch


def refuses(text):
    def compiling(_model):
        def run(_given):
            raise RuntimeError(text)

        return run

    return compiling


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_compile_check_passes_with_all_tools(prompt, device):
    assert features.check_compile(Torch(), device) == "two layers compiled; the same result"


def test_a_missing_tool_of_the_compile_check_is_named(prompt):
    def reason(torch, device="cpu"):
        with pytest.raises(NotRunError) as caught:
            features.check_compile(torch, device)
        return str(caught.value)

    assert "2.0 was the first" in reason(SimpleNamespace())
    windows = "Windows not yet supported for torch.compile"
    assert reason(Torch(refuses(windows))) == windows
    assert reason(Torch(capability=(3, 5)), "cuda") == "Triton starts at sm_75, this card is sm_35"
    prompt.setattr(importlib.util, "find_spec", lambda _: None)
    assert "triton is not installed" in reason(Torch(), "cuda")
    prompt.delenv("LIB")
    assert "without INCLUDE and LIB" in reason(Torch())
    prompt.setattr(shutil, "which", lambda _: None)
    assert "cl.exe is not on PATH" in reason(Torch())


def test_a_wrong_result_and_any_other_error_fail(prompt):
    with pytest.raises(FailedError, match="another result"):
        features.check_compile(Torch(lambda _: lambda _given: [2.0]), "cpu")
    with pytest.raises(RuntimeError, match="C1083"):
        features.check_compile(Torch(refuses("CppCompileError: fatal error C1083")), "cpu")


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """A machine with a compiler, Python's headers and triton."""
    monkeypatch.setattr(features.sys, "platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(features.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    (tmp_path / "Python.h").touch()
    return monkeypatch


def test_on_a_card_under_linux_it_needs_triton_a_compiler_and_a_header(linux, tmp_path):
    def reason(torch):
        with pytest.raises(NotRunError) as caught:
            features.check_compile(torch, "cuda")
        return str(caught.value)

    for capability in ((7, 0), (9, 0)):
        assert (
            features.check_compile(Torch(capability=capability), "cuda")
            == "two layers compiled; the same result"
        )
    assert reason(Torch(capability=(3, 5))) == "Triton starts at sm_70, this card is sm_35"
    (tmp_path / "Python.h").unlink()
    assert "python3-dev" in reason(Torch())
    linux.setattr(shutil, "which", lambda _: None)
    assert "a C compiler" in reason(Torch())
    linux.setenv("CC", "my-cc")
    assert "python3-dev" in reason(Torch())
    linux.setattr(importlib.util, "find_spec", lambda _: None)
    assert "triton is not installed" in reason(Torch())
    linux.setattr(importlib.util, "find_spec", lambda _: object())
    (tmp_path / "Python.h").touch()
    with pytest.raises(FailedError, match="another result"):
        features.check_compile(Torch(lambda _: lambda _given: [2.0]), "cuda")


@pytest.mark.parametrize(("system", "on_cpu"), [("win32", True), ("linux", False)])
def test_the_compile_check_runs_on_windows_and_with_every_card(
    monkeypatch, tmp_path, system, on_cpu
):
    monkeypatch.setattr(main.sys, "platform", system)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    recorder = Recorder(str(tmp_path / "report.json"), {})
    options = SimpleNamespace(expect_quantized=None, expect_feature=[])
    main.check_cpu(recorder, Torch(), options)
    found = {
        check["name"]: check["status"] for check in recorder.checks if "compile" in check["name"]
    }
    assert found == ({"torch.compile on cpu": "not_run"} if on_cpu else {})
    assert "torch.compile on cuda" in main.card_checks(Torch())
