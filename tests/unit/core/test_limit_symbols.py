"""What an image's linker finds where its wheels are for older systems than its own."""

import importlib.util
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm import catalog
from farm.plan.render import render
from farm.wheel.tags import levels
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script(monkeypatch):
    path = ROOT / "dockerfiles/scripts/limit_symbols.py"
    spec = importlib.util.spec_from_file_location("limit_symbols", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "limit_symbols", module)
    spec.loader.exec_module(module)
    return module


def test_the_limits_of_a_base_are_what_the_manylinux_level_of_its_glibc_allows():
    limited = {name: r for name, r in catalog.debian_releases().items() if r.limits}
    assert "debian-bullseye" in limited
    for release in limited.values():
        assert release.limits["GLIBC"] == release.glibc
        [level] = [one for one in levels() if one.name == f"manylinux_2_{release.glibc[2:]}"]
        for family, newest in release.limits.items():
            allowed = level.versions["x86_64"][family]
            assert newest in allowed
            assert not [
                one for one in allowed if one.replace(".", "").isdigit() and _new(one, newest)
            ]


def _new(version, limit):
    return [*map(int, version.split("."))] > [*map(int, limit.split("."))]


def test_a_wheel_of_such_a_base_runs_from_rhel_8_on():
    assert catalog.reach("debian-bullseye")[:3] == ["RHEL 8", "Debian 11", "Ubuntu 20.04"]


def test_a_base_with_a_borrowed_gcc_installs_it_beside_its_own():
    plan = plan_of("sm61-avx2-py312", "torch", channel="legacy-2.14.1")
    assert (plan.base, plan.env["CXX"]) == ("debian-bullseye-gcc12", "g++-12")
    assert {"g++-10", "gcc-10", "patchelf"} <= set(plan.apt)
    assert "g++-12" not in plan.apt
    image = render(ROOT, plan).image
    lines = image["Dockerfile"].splitlines()
    installs = next(n for n, line in enumerate(lines) if "install_gcc.py bookworm 12" in line)
    limits = next(n for n, line in enumerate(lines) if "limit_symbols.py" in line)
    assert installs < limits
    assert {"scripts/install_gcc.py", "scripts/install_debian_cuda.py"} <= set(image)
    own = catalog.debian_releases()["debian-bullseye"]
    assert (
        catalog.debian_releases()[plan.base].limits,
        catalog.reach(plan.base),
    ) == (own.limits, catalog.reach("debian-bullseye"))


def test_only_such_an_image_limits_its_linker():
    for base, limited in (("debian-bullseye", True), ("debian-bookworm", False)):
        plan = plan_of("sm35-avx-py311", "canary").model_copy(update={"base": base})
        image = render(ROOT, plan).image
        assert ("limit_symbols.py GLIBC=2.28 GLIBCXX=3.4.24" in image["Dockerfile"]) == limited
        assert ("scripts/limit_symbols.py" in image) == limited


def test_a_toolkit_of_another_release_is_taken_from_its_packages():
    plan = plan_of("sm35-avx-py311", "canary").model_copy(update={"base": "debian-bullseye"})
    assert '"suite": "bookworm"' in render(ROOT, plan).image["scripts/toolkit.json"]
    own = plan_of("sm35-avx-py311", "canary")
    assert "suite" not in render(ROOT, own).image["scripts/toolkit.json"]
    old, new = (catalog.debian_releases()[f"debian-{name}"] for name in ("bullseye", "bookworm"))
    assert (old.cuda, old.components) == (new.cuda, new.components)


LIMITS = {"GLIBC": (2, 28)}


@pytest.mark.parametrize(
    ("versions", "default"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.29*"], "GLIBC_2.2.5"),  # exp
        (["GLIBC_2.2.5", "GLIBC_2.14*"], "GLIBC_2.14"),  # memcpy
        (["GLIBC_2.9", "GLIBC_2.28*"], "GLIBC_2.28"),  # the limit itself; 2.9 is older than 2.28
        (["GLIBC_2.30*"], None),  # gettid
        (["GLIBC_2.2.5"], None),  # gets no default where it had none
        (["GLIBC_PRIVATE*"], None),
        (["CXXABI_FLOAT128*"], "CXXABI_FLOAT128"),  # nothing limits it
    ],
)
def test_a_program_gets_the_newest_version_that_old_systems_have(script, versions, default):
    every = [
        script.Symbol("name", each.rstrip("*"), each.endswith("*"), "FUNC", 1, "0", False)
        for each in versions
    ]
    stubbed = script.limited(every, LIMITS)
    # Every version stays: libraries of the system need those of one another.
    assert [one.version for one in stubbed] == [each.rstrip("*") for each in versions]
    assert [one.version for one in stubbed if one.default] == ([default] if default else [])


NEW = """\
#include <math.h>
#include <string.h>
double new(double x) { return exp(x) + log(x) + pow(x, x) + strlen("four"); }
"""


def test_a_library_of_the_system_is_changed_to_need_what_old_systems_have(script, tmp_path):
    """Debian's libpng needs pow@GLIBC_2.29, and each wheel with it needed that."""
    if shutil.which("gcc") is None or not (script.SYSTEM / "libm.so.6").exists():
        pytest.skip("needs gcc and glibc for x86-64")
    source = tmp_path / "new.c"
    source.write_text(NEW)
    library = tmp_path / "libnew.so"
    command = ["gcc", "-O0", "-fno-builtin", "-shared", "-fPIC", str(source), "-lm"]
    subprocess.run([*command, "-o", str(library)], check=True)
    assert {"GLIBC_2.29", "GLIBC_2.2.5"} <= needs(library)
    script.age(library, LIMITS)
    assert needs(library) == {"GLIBC_2.2.5"}
    call = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).new; f.restype = ctypes.c_double;"
    call += "print(f(ctypes.c_double(2.0)))"
    command = [sys.executable, "-c", call, str(library)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert float(said) == pytest.approx(math.exp(2) + math.log(2) + 4 + 4)
    before = library.read_bytes()
    script.age(library, LIMITS)  # nothing is left to change
    assert library.read_bytes() == before


def test_a_library_that_calls_what_old_systems_lack_stays_as_it_is(script, tmp_path):
    if shutil.which("gcc") is None or not (script.SYSTEM / "libm.so.6").exists():
        pytest.skip("needs gcc and glibc for x86-64")
    source = tmp_path / "new.c"
    source.write_text("int gettid(void);\nint new(void) { return gettid(); }\n")
    library = tmp_path / "libnew.so"
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    before = library.read_bytes()
    script.age(library, LIMITS)
    assert library.read_bytes() == before
    assert "GLIBC_2.30" in needs(library)


def needs(library):
    """The versions of glibc that a library needs."""
    command = ["readelf", "--version-info", "--wide", str(library)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"Name: (GLIBC_[0-9.]+)", text))
