"""farm doctor: every finding of a fit machine, and each thing that may be wrong with what to do."""

import json
import sys
from pathlib import Path

import pytest

from farm.base.errors import NoRunnerError
from farm.cli.main import main
from farm.machine.doctor import BuildMachine
from tests.plans import plan_of

MSVC = r"C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools\VC\Tools\MSVC"


def test_a_suitable_machine_has_no_findings(k40, findings):
    found = findings(k40)
    assert {check: state for check, (state, _, _) in found.items() if state != "ok"} == {}
    assert set(found) == {
        "torch.compile: cl.exe", "torch.compile: English", "torch.compile: triton", "memory", "jobs", "page file", "disk", "Python",
        "Git", "Git long paths", "GPU driver",
    }  # fmt: skip
    assert found["jobs"][1] == "15 compilers at once: 32 cores, 2.2 GB each"


def test_memory_is_not_cut_to_32_bits(k40, findings):
    """The log that asked for this: 33,378,976 KB were taken for too little."""
    assert findings(k40)["memory"] == ("ok", "34.2 GB", "")
    k40.total = 4 << 30
    state, seen, todo = findings(k40)["memory"]
    assert (state, seen, "8 GB" in todo) == ("missing", "4.3 GB", True)


@pytest.mark.parametrize(
    ("change", "check", "state", "seen", "todo"),
    [
        (lambda m: m.variables.pop("LIB"), "torch.compile: cl.exe", "warning", "LIB is not set", "Native Tools Command Prompt"),
        (lambda m: m.paths.remove(rf"{MSVC}\14.29.30133\bin\Hostx64\x64\1033\clui.dll"), "torch.compile: English", "missing", "1033", "Language packs"),
        (lambda m: m.commands.update({"git config --get core.longpaths": (1, "")}), "Git long paths", "warning", "not set", "core.longpaths true"),
        (lambda m: m.commands.pop("git --version"), "Git", "missing", "not on PATH", "Git for Windows"),
        (lambda m: setattr(m, "disk", 10**10), "disk", "missing", "10 GB free", "mklink /J"),
        (lambda m: setattr(m, "commit", 16 << 30), "page file", "warning", "17.2 GB", "enlarge the page file"),
        (lambda m: m.programs.clear(), "torch.compile: cl.exe", "warning", "not on PATH", "Native Tools Command Prompt"),
        (lambda m: setattr(m, "driver", "522.06"), "GPU driver", "missing", "newer than 470", "branch 470"),
        (lambda m: setattr(m, "driver", "391.35"), "GPU driver", "missing", "391.35", "newer driver"),
    ],
)  # fmt: skip
def test_every_problem_comes_with_advice(k40, findings, change, check, state, seen, todo):
    change(k40)
    finding = findings(k40)[check]
    assert finding[0] == state, finding
    assert seen in finding[1]
    assert todo in finding[2]


def test_git_is_found_where_build_cmd_finds_it_and_asked_for_where_it_is_needed(k40, findings):
    k40.commands.pop("git --version")
    plan = plan_of("sm35-avx-py311", "canary", platform="windows")
    assert findings(k40, plan)["Git"] == ("ok", "not on PATH; canary needs none", "")
    k40.paths.add(r"C:\Program Files\Git\cmd\git.exe")
    assert findings(k40)["Git"] == ("ok", r"C:\Program Files\Git\cmd\git.exe", "")


@pytest.mark.parametrize(
    ("torch", "triton", "state", "todo"),
    [
        ("2.7.1+cu128", None, "warning", 'pip install "triton-windows<3.4"'),
        ("2.7.1", "3.4.0.post20", "missing", 'pip install "triton-windows<3.4"'),
        ("2.7.1", "3.3.1.post19", "ok", ""),
        ("2.10.0", "3.6.0.post24", "ok", ""),
        ("2.3.1", None, "warning", "do without"),
        (None, None, "ok", ""),
    ],
)
def test_triton_fits_torch(k40, findings, torch, triton, state, todo):
    k40.gpu = ("NVIDIA GeForce RTX 5070", "12.0", 12227)
    k40.packages |= {
        name: version for name, version in (("torch", torch), ("triton-windows", triton)) if version
    }
    finding = findings(k40, None)["torch.compile: triton"]
    assert (finding[0], finding[2]) == (state, todo)


def test_kepler_compiles_for_the_cpu_alone(k40, findings):
    k40.packages["torch"] = "2.0.1+cu114.sm35.avx"
    assert findings(k40)["torch.compile: triton"][:2] == (
        "warning",
        "Triton starts at sm_75, this machine has sm_35",
    )


def test_linux_and_macos_say_what_applies_there(machine, findings):
    linux = machine("linux", gpu=None)
    linux.docker = ("linux", "20.10.24", "x86_64")
    linux.programs["g++"] = "/usr/bin/g++"
    found = findings(linux, None)
    assert (found["Docker"][0], found["torch.compile: C++ compiler"][0]) == ("ok", "ok")
    assert not {"page file", "torch.compile: cl.exe"} & set(found)
    assert "470 branch" in found["GPU"][2]
    mac = machine("macos", gpu=None)
    found = findings(mac, None)
    assert found["memory"][0] == "ok"
    assert not {"Docker", "GPU", "GPU driver"} & set(found)


def test_disk_and_swap_on_linux_are_what_the_plan_says(machine, findings):
    """80 GB and a page file of 32 are Visual Studio's; the plan and the K40 page said 20 GB."""
    linux = machine("linux", gpu=None)
    linux.disk, linux.total, linux.commit = 25 * 10**9, 25 * 10**9, 25 * 10**9
    plan = plan_of("sm35-avx-py311", project=Path.cwd())
    found = findings(linux, plan)
    assert (found["disk"][0], found["swap"][0]) == ("ok", "ok")
    linux.disk = 23 * 10**9
    assert findings(linux, plan)["disk"] == (
        "missing",
        "23 GB free on .",
        "24 GB are needed for a build of torch: make room",
    )


def test_an_engine_that_does_not_answer_is_named_with_its_reason(machine, findings):
    linux = machine("linux", gpu=None)
    assert findings(linux, None)["Docker"] == (
        "missing",
        "no Docker engine answers",
        "set DOCKER_HOST",
    )
    linux.docker = ("windows", "28", "x86_64")
    state, seen, todo = findings(linux, None)["Docker"]
    assert (state, "windows containers" in seen, "Linux containers" in todo) == (
        "missing",
        True,
        True,
    )


def test_the_engine_is_asked_as_builds_ask_it(tmp_path, monkeypatch):
    """With Podman's service, and an engine that DOCKER_HOST names, there need be no command
    `docker`.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/gone.sock")
    with pytest.raises(
        NoRunnerError,
        match=rf"no Docker engine answers at unix://{tmp_path}/gone.sock \(DOCKER_HOST\)",
    ):
        BuildMachine().engine()


def test_a_python_that_only_the_container_has_leaves_the_wheel_untested(machine, findings):
    linux = machine("linux", gpu=None)
    plan = plan_of("cpu-avx-py313", "canary", project=Path(__file__).parents[3])
    state, seen, todo = findings(linux, plan)["Python"]
    assert (state, "no py313" in seen, "not tested" in seen) == ("warning", True, True)
    assert "uv python install 3.13" in todo


def test_this_machine_is_read_correctly(tmp_path):
    site = BuildMachine()
    total, commit = site.memory()
    meminfo = {
        line.split(":")[0]: int(line.split()[1]) << 10
        for line in site.read("/proc/meminfo").splitlines()[:20]
    }
    assert abs(total - meminfo["MemTotal"]) < 4096 * 16
    assert commit == total + meminfo["SwapTotal"]
    assert site.which("sh")
    assert site.exists(sys.executable)
    assert site.free(".") > 0
    assert site.free(str(tmp_path / "not/there")) > 0
    assert site.package("pytest")
    assert site.package("no-such-package") is None


def test_the_command_prints_one_json_document_and_its_exit_code_counts(capsys):
    code = main(["doctor", "--variant", "sm35-avx-py311", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["build"]["variant"] == "sm35-avx-py311"
    assert {"memory", "disk", "jobs", "Git"} <= {
        finding["check"] for finding in document["findings"]
    }
    assert code == (
        4 if any(finding["state"] == "missing" for finding in document["findings"]) else 0
    )
