"""A loader's message, explained by the files of a wheel or an installed package."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import yaml

from farm.base.errors import UsageError
from farm.cli.main import main
from farm.wheel.explain.explanation import explain
from farm.wheel.explain.tables import source_of, tables

WINDOWS = "cp311-cp311-win_amd64"
LINUX = "cp311-cp311-manylinux_2_17_x86_64"


@pytest.fixture
def package(tmp_path, make_wheel):
    """(wheel, folder of the installed package) with these files."""

    def make(files, tag=LINUX):
        wheel = make_wheel(
            tmp_path / "in", {"torch/__init__.py": b"", **files}, name="torch", tag=tag
        )
        site = tmp_path / "site-packages"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        return wheel, site / "torch"

    return make


def both(places, message):
    """The explanation, which must be the same for the wheel and the installed package."""
    [first], [second] = (explain(place, message) for place in places)
    assert first == second
    return first


@pytest.mark.parametrize(
    "message",
    [
        "OSError: [WinError 126] The specified module could not be found. Error loading fbgemm.dll",
        "ImportError: DLL load failed while importing _C: The specified module could not be found.",
        "LoadLibrary failed with error 126",
    ],
)
def test_error_126(package, make_pe, message):
    found = both(
        package({"torch/lib/fbgemm.dll": make_pe(needed=["libomp140.x86_64.dll"])}, WINDOWS),
        message,
    )
    assert found.message == "winerror 126"
    assert found.culprits == ("libomp140.x86_64.dll, needed by torch/lib/fbgemm.dll",)
    assert "torch 2.4.1 or newer" in found.cure


def test_error_126_of_a_dll_with_two_openmp_runtimes(package, make_pe):
    """The missing one is not to be had: the DLL computes wrong numbers with it
    (pytorch/pytorch#193784).
    """
    torch = make_pe(needed=["VCOMP140.DLL", "libomp140.x86_64.dll"])
    found = both(package({"torch/lib/torch_cpu.dll": torch}, WINDOWS), "[WinError 126]")
    assert "libomp140.x86_64.dll, needed by torch/lib/torch_cpu.dll" in found.culprits
    assert "build again with one OpenMP runtime" in found.cure


def test_error_126_of_a_wheel_without_dlls(package, make_elf):
    """Not the advice for Windows wheels: nothing was looked into."""
    found = both(package({"torch/_C.abi3.so": make_elf()}), "WinError 126")
    assert "there is none among these files" in found.cause
    assert "Redistributable" not in found.cure


def test_error_126_names_the_dll_of_the_message(package, make_pe):
    """Not the first one whose chain is broken, which another order of loading would have named."""
    files = {f"torch/lib/{name}.dll": make_pe(needed=["gone.dll"]) for name in ("aaa", "torch_cpu")}
    message = (
        'OSError: [WinError 126] … Error loading "C:\\x\\torch\\lib\\torch_cpu.dll" or one of '
        "its dependencies."
    )
    assert (
        "; torch_cpu.dll, which the message names, is there"
        in both(package(files, WINDOWS), message).cause
    )


def test_error_126_of_a_dll_that_is_not_there_at_all(package, make_pe):
    """ctypes' words; these files' own needs are there, or are not."""
    message = (
        r"FileNotFoundError: Could not find module 'C:\x\torch\lib\gone.dll' (or one of its "
        r"dependencies). Try …"
    )
    whole = both(package({"torch/lib/a.dll": make_pe(needed=["KERNEL32.dll"])}, WINDOWS), message)
    assert whole.cause == "gone.dll, which the message names, is not among these files"
    lacks, _ = package({"torch/lib/a.dll": make_pe(needed=["other.dll"])}, WINDOWS)
    assert (
        "; gone.dll, which the message names, is not among these files"
        in explain(lacks, message)[0].cause
    )


def test_error_127_between_dlls_of_the_wheel(package, make_pe):
    files = {
        "torch/lib/a.dll": make_pe(needed=["b.dll"], takes={"b.dll": "gone"}),
        "torch/lib/b.dll": make_pe(exports=["given"]),
    }
    found = both(
        package(files, WINDOWS), "[WinError 127] The specified procedure could not be found"
    )
    assert found.culprits == ("torch/lib/a.dll takes gone from b.dll, which does not export it",)


def test_error_127_by_another_copy(package, make_pe):
    found = both(
        package({"torch/lib/a.dll": make_pe(needed=["MSVCP140.dll"])}, WINDOWS), "WinError 127"
    )
    assert found.culprits == ()
    assert "msvcp140.dll" in found.cure


@pytest.mark.parametrize("message", ["OSError: [WinError 193] %1 is not a valid Win32 application"])
def test_error_193(package, make_pe, message):
    files = {f"torch/lib/{name}.dll": make_pe() for name in "ab"} | {
        "torch/lib/c.dll": make_pe(machine=0x14C)
    }
    found = both(package(files, WINDOWS), message)
    assert found.culprits == ("torch/lib/c.dll: for win32",)


def test_error_193_of_a_file_that_was_cut_off(package, make_pe):
    files = {"torch/lib/a.dll": make_pe(), "torch/lib/b.dll": make_pe()[:600]}
    [culprit] = both(package(files, WINDOWS), "WinError 193").culprits
    assert culprit.startswith("torch/lib/b.dll: damaged PE file")


def test_error_193_of_the_wrong_python(package, make_pe):
    found = both(package({"torch/lib/a.dll": make_pe()}, WINDOWS), "WinError 193")
    assert found.culprits == ()
    assert "Python" in found.cure


@pytest.mark.parametrize("words", ["invalid ELF header", "file too short"])
def test_a_library_that_is_a_text(package, make_elf, words):
    files = {"torch/lib/a.so": make_elf(), "torch/lib/libfoo.so.1": b"libfoo.so.1.2"}
    found = both(package(files), f"ImportError: /x/torch/lib/libfoo.so.1: {words}")
    assert found.culprits == ("torch/lib/libfoo.so.1: not a library, in spite of its name",)
    assert "torch/lib/a.so" not in str(found)
    assert (
        "install the package anew"
        in explain(package({"torch/lib/a.so": make_elf()})[0], f"/x/a.so: {words}")[0].cure
    )
    [found] = explain(package(files)[0], f"ImportError: /x/libother.so.1: {words}")
    assert found.cause == "libother.so.1, which the message names, is not among these files"


def test_a_module_is_looked_up_in_the_files(package, make_elf):
    """One of another Python's suffix, one that a folder of the same name hides, one that is not
    there.
    """
    files = {"torch/_ext.cpython-312-x86_64-linux-gnu.so": make_elf(), "torch/there.py": b""}
    places = package(files)
    found = both(places, "ModuleNotFoundError: No module named 'torch._ext'")
    assert ".cpython-312-x86_64-linux-gnu.so" in found.cause
    assert found.culprits == ("torch/_ext.cpython-312-x86_64-linux-gnu.so",)
    assert "PYTHONPATH" in both(places, "No module named 'torch.there'").cure
    assert (
        both(places, "No module named 'torch.gone'").cause == "torch.gone is not among these files"
    )
    [other] = explain(places[0], "No module named 'numpy.gone'")
    assert other.cause.startswith("numpy.gone, which torch or its test imports, is not installed")


def test_a_file_for_another_machine_that_cannot_be_opened(package, make_elf):
    files = {f"torch/{name}.so": make_elf() for name in "ab"} | {"torch/c.so": make_elf(machine=0)}
    found = both(
        package(files),
        "ImportError: /x/torch/c.so: cannot open shared object file: No such file or directory",
    )
    assert found.culprits == ("torch/c.so: for em0",)


def test_a_compiled_part_that_is_missing(package, make_elf):
    text = (
        "ImportError: cannot import name '%s' from partially initialized module 'torch' (most "
        "likely …)"
    )
    places = package({"torch/_here.so": make_elf()})
    assert both(places, text % "_gone").cause == "torch._gone is not among these files"
    assert both(places, text % "_here").culprits == ("torch/_here.so",)


def test_a_module_without_its_entry(package, make_elf):
    files = {
        "torch/_a.so": make_elf(),
        "torch/_b.so": make_elf(symbols={"PyInit__b": 0}, text=b"\xc3"),
    }
    text = "ImportError: dynamic module does not define module export function (PyInit__%s)"
    places = package(files)
    assert both(places, text % "a").culprits == ("torch/_a.so has no PyInit__a",)
    assert both(places, text % "b").culprits == ()


def test_error_127_names_no_library_that_is_no_dll(package, make_elf, make_pe):
    message = "[WinError 127] The specified procedure could not be found"
    linux = package({"torch/lib/a.so": make_elf(needed=["libc.so.6"])})
    assert both(linux, message).cure == "update the Visual C++ Redistributable and the driver"
    wheel, _ = package({"torch/lib/a.dll": make_pe(needed=["KERNEL32.dll"])}, WINDOWS)
    assert explain(wheel, message)[0].cure == "update the Visual C++ Redistributable and the driver"


def test_error_1114(package, make_pe):
    files = {
        "torch/lib/c10.dll": make_pe(needed=["MSVCP140.dll"], linker=(14, 40)),
        "torch/lib/b.dll": make_pe(),
    }
    found = both(package(files, WINDOWS), r"[WinError 1114] … Error loading C:\x\torch\lib\c10.dll")
    assert found.culprits == ("torch/lib/c10.dll: linked by Visual C++ 14.40",)
    assert "version 14.40 or newer" in found.cure


def test_error_998(package, make_pe):
    files = {
        "torch/lib/c10.dll": make_pe(needed=["MSVCP140.dll"], linker=(14, 40)),
        "torch/lib/b.dll": make_pe(),
    }
    found = both(
        package(files, WINDOWS), "Process finished with exit code -1073741819 (0xC0000005)"
    )
    assert found.culprits == ("torch/lib/c10.dll: linked by Visual C++ 14.40",)
    assert "version 14.40 or newer" in found.cure


def test_error_14001(package, make_pe):
    files = {
        "torch/lib/a.dll": make_pe(needed=["MSVCR90.dll"]),
        "torch/lib/b.dll": make_pe(needed=["MSVCP140.dll"]),
    }
    found = both(package(files, WINDOWS), "[WinError 14001] …")
    assert found.culprits == ("torch/lib/a.dll needs MSVCR90.dll",)


@pytest.mark.parametrize(
    ("symbol", "owner", "cure"),
    [
        ("iJIT_NotifyEvent", "MKL", "mkl<2024.1"),
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", "PyTorch", "torch version"),
        ("PyObject_GetOptionalAttr", "Python", "tag"),
        ("__nvJitLinkAddData_12_1", "libnvJitLink", "LD_LIBRARY_PATH"),
        ("nobody_knows", "a library", "METADATA"),
    ],
)
def test_undefined_symbol(package, make_elf, symbol, owner, cure):
    found = both(
        package({"torch/lib/a.so": make_elf(needed=["libc.so.6"])}),
        f"ImportError: /x/libtorch_cpu.so: undefined symbol: {symbol}",
    )
    assert owner in found.cause
    assert cure in found.cure


def test_undefined_symbol_that_the_wheel_gives(package, make_pe):
    files = {"torch/lib/a.dll": make_pe(exports=["here"])}
    files |= {"torch/lib/b.dll": make_pe(needed=["a.dll"], takes={"a.dll": "here"})}
    found = both(package(files, WINDOWS), "undefined symbol: here")
    assert "torch/lib/a.dll" in found.cause
    assert found.culprits == ("torch/lib/b.dll takes it from a.dll",)
    assert "LD_LIBRARY_PATH" in found.cure


def test_glibc(package, make_elf):
    library = make_elf(needed=["libc.so.6"], versions={"libc.so.6": ["GLIBC_2.34"]})
    message = (
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by "
        "torch/lib/a.so)"
    )
    found = both(package({"torch/lib/a.so": library}), message)
    assert found.culprits == ("torch/lib/a.so needs it of libc.so.6",)
    assert "Ubuntu 22.04" in found.cause


def test_a_version_that_a_library_of_the_wheel_lacks(tmp_path, make_wheel, make_elf):
    files = {
        "canary/take.so": make_elf(needed=["libz8.so"], versions={"libz8.so": ["V2"]}),
        "canary/libz8.so": make_elf(),
    }
    wheel = make_wheel(tmp_path, files)
    message = "ImportError: /site/canary/libz8.so: version `V2' not found (required by take.so)"
    [explanation] = explain(wheel, message)
    assert explanation.cause.startswith("libz8.so is at canary/libz8.so and was built without V2")
    assert explanation.culprits == ("canary/take.so needs it of libz8.so",)


@pytest.mark.parametrize("message", ["GLIBC_2.34 not found", "version `GLIBCXX_3.4.29' not found"])
def test_versions_in_short(package, make_elf, message):
    assert both(package({"torch/lib/a.so": make_elf()}), message).message == "glibc"


@pytest.mark.parametrize(
    "message",
    ["CMake Error: Python_3 not found", "architecture sm_120 not found", "cudnn_9 not found"],
)
def test_what_else_is_not_found_is_no_version_of_a_library(package, make_elf, message):
    wheel, _ = package({"torch/lib/a.so": make_elf()})
    assert explain(wheel, message) == ()


def test_a_file_that_cannot_be_opened(package, make_elf):
    files = {"torch/lib/a.so": make_elf(needed=["libcudart.so.11.0"])}
    found = both(
        package(files),
        "libcudart.so.11.0: cannot open shared object file: No such file or directory",
    )
    assert found.culprits == ("torch/lib/a.so needs it",)
    assert "nvidia-cuda-runtime-cu11" in found.cure


def test_a_file_where_the_loader_does_not_look(package, make_elf):
    files = {"torch/lib/a.so": make_elf(needed=["libb.so"]), "torch/other/libb.so": make_elf()}
    found = both(
        package(files), "libb.so: cannot open shared object file: No such file or directory"
    )
    assert "torch/other/libb.so" in found.cause


@pytest.mark.parametrize(
    ("message", "culprits"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", 1),
        (
            (
                "Tesla K40c with CUDA capability sm_35 is not compatible with the current PyTorch "
                "installation."
            ),
            1,
        ),
        ("NVIDIA T4 with CUDA capability 7.5: no kernel image is available", 0),
    ],
)
def test_no_kernel_image(package, make_elf, make_container, make_entry, message, culprits):
    files = {"torch/lib/libtorch_cuda.so": make_elf(fatbin=make_container(make_entry("sass", 75)))}
    found = both(package(files), message)
    assert found.culprits == ("torch/lib/libtorch_cuda.so: sm_75",) * culprits


def test_illegal_instruction(package, make_elf):
    vaddps = bytes.fromhex("c5fc58c0c3")
    files = {
        "torch/lib/a.so": make_elf(text=vaddps, init=[0], symbols={"starts": 0}),
        "torch/lib/b.so": make_elf(),
    }
    [culprit] = both(package(files), "Illegal instruction (core dumped)").culprits
    assert culprit.startswith("torch/lib/a.so: 1 instructions that run on loading need AVX")


def test_whole_tracebacks_and_several_errors(package, make_pe):
    wheel, _ = package({"torch/lib/a.dll": make_pe()}, WINDOWS)
    text = (
        "Traceback (most recent call last):\n  …\nOSError: [WinError 193] …\nOSError: "
        "[WinError 127] …\n"
    )
    assert [each.message for each in explain(wheel, text)] == ["not a library", "winerror 127"]


def test_what_is_no_message(package, make_elf, tmp_path):
    wheel, _ = package({"torch/lib/a.so": make_elf()})
    assert explain(wheel, "it does not work") == ()
    with pytest.raises(UsageError, match="no such file"):
        explain(tmp_path / "nothing", "WinError 126")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no library"):
        explain(tmp_path / "empty", "WinError 193")


def test_command(package, make_elf, capsys, monkeypatch):
    wheel, folder = package({"torch/lib/a.so": make_elf(needed=["libcuda.so.1"])})
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("libcuda.so.1: cannot open shared object file: No such file\n")
    )
    assert main(["inspect", str(folder), "--explain", "-"]) == 0
    assert "what to do: libcuda.so.1: the NVIDIA driver" in capsys.readouterr().out
    assert (
        main(["inspect", str(wheel), "--explain", "undefined symbol: cudnnCreate", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)[0]["message"] == "undefined symbol"
    assert main(["inspect", str(wheel), "--explain", " "]) == 2
    # What no loader says is looked up among the causes of failed smoke tests.
    assert main(["inspect", str(folder), "--explain", "RuntimeError: Numpy is not available"]) == 0
    output = capsys.readouterr().out
    assert 'what was built with numpy 1 take no other: pip install "numpy<2"' in output
    assert 'a recipe says so by requires: ["numpy<2"]' in output
    assert main(["inspect", str(folder), "--explain", "it does not work"]) == 2
    assert "no known error in the message" in capsys.readouterr().err


REPORTS = yaml.safe_load(
    Path(__file__).with_name("loader_reports.yaml").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def small(tmp_path_factory, make_wheel, make_pe, make_elf, make_container, make_entry):
    """A wheel of each system, without what reports are about: the words come from the message and
    the tables.
    """
    folder = tmp_path_factory.mktemp("small")
    gpu = make_elf(needed=["libc.so.6"], fatbin=make_container(make_entry("sass", 70)))
    return {
        WINDOWS: make_wheel(folder, {"a/lib/a.dll": make_pe(needed=["KERNEL32.dll"])}, tag=WINDOWS),
        LINUX: make_wheel(folder, {"a/lib/a.so": gpu}, tag=LINUX),
    }


@pytest.mark.parametrize(
    "report", REPORTS, ids=[f"{number}-{each['is'][0]}" for number, each in enumerate(REPORTS)]
)
def test_messages_of_public_reports(small, report):
    for wheel in small.values():
        found = explain(wheel, report["text"])
        assert [each.message for each in found] == report["is"]
        words = " ".join(text for each in found for text in (each.cause, *each.culprits, each.cure))
        assert [name for name in report["names"] if name not in words] == []


def test_every_row_has_a_public_report():
    """The words of users, of each row that says nothing else; some have tests of their own."""
    reported = {name for each in REPORTS if "from" in each for name in each["is"]}
    rows = [
        row for row in tables().messages if row.patterns and "no public report" not in row.source
    ]
    own = {"not installed", "source folder", "dependency missing"}
    assert {row.id.replace("-", " ") for row in rows} - reported <= own


def test_every_row_has_a_source():
    assert all(row.source for row in tables().messages)
    assert all(row["source"] for row in tables().glibc)


def test_sources_are_known_by_pattern():
    assert "mkl 2021.4.0" in source_of("MKL_core.1.dll")
    assert "extras/CUPTI" in source_of("cupti64_2024.1.0.dll")
    assert "debug" in source_of("MSVCP140D.dll")
    assert source_of("unheard-of.dll") == ""


def test_error_126_on_a_machine_without_microsofts_runtime(package, make_pe):
    """The commonest cause on a fresh machine: the wheel has all else."""
    dll = make_pe(needed=["MSVCP140.dll", "KERNEL32.dll"])
    files = {f"torch/lib/{name}.dll": dll for name in ("c10", "torch_cpu")}
    explanation = both(package(files, WINDOWS), "OSError: [WinError 126]")
    assert "Microsoft's runtime, such as MSVCP140.dll" in explanation.cause
    assert "Visual C++ Redistributable" in explanation.cure
