"""What the tools of a machine say, made into readings."""

import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farm.machine.host import MAX_TEXT, Machine, NoReadingError
from farm.machine.readings import (
    Readings,
    collect,
    parse_cpuinfo,
    parse_launcher,
    parse_os_release,
)

CASES = yaml.safe_load(Path(__file__).with_name("obstacles.yaml").read_text(encoding="utf-8"))

NAMES = sorted(path.stem for path in (Path(__file__).parent / "readings").glob("*.json"))


def reasons(found: Readings) -> dict[str, str]:
    return {item.what: item.why for item in found.missing}


@pytest.mark.parametrize("name", NAMES)
def test_readings_survive_json(readings, name):
    found = readings(name)
    assert Readings.model_validate_json(found.to_json()) == found


def test_cards_are_those_that_the_driver_names(readings):
    found = readings("k80-haswell")
    assert [(gpu.name, gpu.capability, gpu.source) for gpu in found.gpus] == [
        ("Tesla K80", "3.7", "nvml")
    ] * 2
    assert (found.driver, found.missing) == ("470.256.02", ())


def test_a_gpu_that_shares_the_memory_of_the_machine_has_none_of_its_own(readings):
    gpu = readings("dgx-spark").gpus[0]
    assert (gpu.name, gpu.capability, gpu.memory_mb) == ("NVIDIA GB10", "12.1", None)


def test_linux_cpu_and_system(readings):
    found = readings("h100-zen4")
    assert (found.cpu.name, found.cpu.microarchitecture, found.cpu.machine) == (
        "AMD EPYC 9354 32-Core Processor",
        "zen4",
        "x86_64",
    )
    assert {"avx512_bf16", "avx512_vnni"} <= set(found.cpu.features)
    assert (found.os.system, found.os.name, found.os.version, found.os.libc) == (
        "linux",
        "Ubuntu",
        "22.04",
        "glibc 2.35",
    )


def test_windows_cpu_and_pythons(readings):
    found = readings("rtx5070-windows")
    assert (found.os.system, found.os.version, found.os.libc) == (
        "windows",
        "11 (10.0.26100)",
        None,
    )
    assert (found.cpu.machine, found.cpu.name) == ("x86_64", "Intel(R) Core(TM) i9-14900F")
    assert "avx2" in found.cpu.features
    assert "avx512f" not in found.cpu.features
    # The PATH comes before the launcher, and the launcher's 32-bit Python 3.9 is left out.
    assert [(python.name, python.path) for python in found.pythons] == [
        ("py311", r"C:\dev\pytorch-build\Scripts\python.exe"),
        ("py313", r"C:\Users\Desiree\AppData\Local\Programs\Python\Python313\python.exe"),
    ]


def test_readings_of_macos(readings):
    found = readings("m3-macbook")
    assert (found.os.system, found.os.name, found.os.version) == ("macos", "macOS", "15.1")
    assert (found.cpu.machine, found.cpu.name) == ("arm64", "Apple M3 Pro")
    assert (found.gpus, found.translated, found.missing) == ((), False, ())


def test_rosetta_hides_neither_the_machine_nor_itself(record, replay):
    data = record("m3-macbook")
    data["uname"][3] = "x86_64"
    data["commands"]["sysctl -n sysctl.proc_translated"] = [0, "1\n"]
    found = replay(data)
    assert (found.cpu.machine, found.translated) == ("arm64", True)


def test_a_card_without_a_driver_is_counted(readings):
    assert (
        readings("k40-no-driver").unclaimed_gpus == 1
    )  # the Matrox display device beside it is none
    assert readings("laptop-sandybridge").unclaimed_gpus == 0


def test_a_jetson_is_known_by_its_board(readings):
    found = readings("jetson-orin-nano")
    assert [(gpu.name, gpu.source) for gpu in found.gpus] == [
        ("NVIDIA Jetson Orin Nano Developer Kit", "device tree")
    ]


def test_everything_absent_has_a_reason(record, replay):
    data = record("laptop-sandybridge")
    data.update(
        libc={"error": "the C library is not glibc"},
        files={},
        cpuid={"error": "archspec: no"},
        pythons={},
    )
    data["pci"] = {"error": "/sys/bus/pci/devices is not there"}
    found = replay(data)
    assert (found.cpu.name, found.cpu.features, found.pythons) == (None, (), ())
    absent = {
        "GPUs",
        "CPU",
        "microarchitecture",
        "distribution",
        "C library",
        "Pythons",
        "PCI devices",
    }
    assert absent == set(reasons(found))
    assert all(reasons(found).values())


def test_text_from_outside_is_bounded_and_plain(record, replay):
    data = record("k80-haswell")
    data["nvml"]["devices"] = [["Tesla\x1b[31m\u202e K80\nx" + "y" * 5000, "3.7\n", 1]] * 500
    data["files"]["/proc/cpuinfo"] = (
        "model name: " + "z" * 100_000 + "\nflags: " + "f" * 50_000 + " avx" * 9000
    )
    found = replay(data)
    name = found.gpus[0].name
    assert len(found.gpus) == 64
    assert name.startswith("Tesla K80 xyyy")
    assert len(name) <= 300
    assert found.gpus[0].capability is None  # "3.7\n" is not a compute capability
    assert len(found.cpu.name) == 300
    assert len(found.cpu.features) == 2000


def test_cpus_that_differ_have_what_all_of_them_have():
    text = "processor: 0\nFeatures: fp atomics sve sve2\n\nprocessor: 1\nFeatures: fp atomics\n"
    assert parse_cpuinfo(text) == (None, ("fp", "atomics"))


def test_old_and_new_launchers():
    new = (
        " -V:3.13 *        C:\\Program Files\\Python313\\python.exe\r\n -V:3.13t         "
        "C:\\t.exe\r\n"
    )
    old = (
        "Installed Pythons found by py Launcher\n -3.11-64\tC:\\P 311\\python.exe *\n "
        "-3.9-32\tC:\\39\\python.exe\n"
    )
    assert parse_launcher(new) == {"py313": r"C:\Program Files\Python313\python.exe"}
    assert parse_launcher(old) == {"py311": r"C:\P 311\python.exe"}


def test_os_release():
    assert parse_os_release("# c\nNAME='A B'\nID=a\nVERSION_ID=\"1.2\"\nbad line\n") == {
        "NAME": "A B",
        "ID": "a",
        "VERSION_ID": "1.2",
    }


@given(st.text(max_size=300))
def test_parsers_accept_any_text(text):
    parse_cpuinfo(text)
    parse_launcher(text)
    parse_os_release(text)


def test_this_machine_gives_readings():
    found = collect(Machine())
    running = f"py{sys.version_info[0]}{sys.version_info[1]}"
    assert found.running_python == running
    assert running in {python.name for python in found.pythons}
    assert found.os.system in {"linux", "windows", "macos"}
    assert found.gpus or found.os.system == "macos" or reasons(found)["GPUs"]


def test_programs_are_bounded():
    endless = "while True: print('x' * 4096)"
    machine = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("farm.machine.host.TIMEOUT_S", 0.5)
        with pytest.raises(NoReadingError, match="did not answer"):
            machine.run(sys.executable, "-c", endless)
    many = f"import sys; sys.stdout.write('x' * {MAX_TEXT + 1000})"
    assert len(machine.run(sys.executable, "-c", many).text) == MAX_TEXT
    assert machine.run(sys.executable, "-c", "print('a'); raise SystemExit(3)") == (3, "a\n")
    with pytest.raises(NoReadingError, match="not on the PATH"):
        machine.run("no-such-program-here")


def test_a_file_without_end_is_bounded():
    if not Path("/dev/zero").exists():
        pytest.skip("no /dev/zero")
    assert len(Machine().read("/dev/zero")) == MAX_TEXT


@pytest.mark.parametrize(
    ("name", "variant", "says"), CASES["what_stands_between_a_system_and_its_card"]
)
def test_obstacles_between_a_system_and_its_card_are_named(recommend, name, variant, says):
    found = recommend(name)
    assert variant is None or found.variant == variant
    assert says is None or any(says in text for text in found.warnings), found.warnings
    assert not (
        name.startswith("container")
        and any("install the driver" in text for text in found.warnings)
    )
