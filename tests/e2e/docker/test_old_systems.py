"""An image of Debian 11 whose linker finds what manylinux_2_28 allows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from farm import catalog
from farm.engines.base_images import base_image
from tests.e2e.conftest import ROOT

NAME = "debian-bullseye"
RELEASE = catalog.debian_releases()[NAME]
SCRIPT = f"""
set -eu
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends g++-10 python3 >/dev/null
cat > /tmp/one.cpp <<'END'
#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <unistd.h>
int main(int count, char **words) {{
    std::stringstream text;
    text << std::exp(count) << std::pow(count, count);
    std::cout << (environ[0] ? "it ran" : "no environment") << std::endl;
    return std::filesystem::exists(text.str());
}}
END
build() {{
    g++-10 -std=c++17 -O2 /tmp/one.cpp -o /tmp/one
    /tmp/one || exit 1
    readelf --version-info --wide /tmp/one | sed "s/^/$1 /"
}}
build before
python3 /farm/limit_symbols.py {" ".join(f"{key}={value}" for key, value in RELEASE.limits.items())}
build after
"""


def needs(output: str, when: str) -> set[str]:
    lines = "\n".join(line for line in output.splitlines() if line.startswith(f"{when} "))
    return set(re.findall(r"Name: (\S+)", lines))


@pytest.fixture(scope="module")
def output(client: docker.DockerClient) -> str:
    image = base_image(client, NAME, RELEASE, pull_timeout_s=20, mirror=None, line=print)
    script = ROOT / "dockerfiles/scripts/limit_symbols.py"
    return client.containers.run(
        image,
        ["sh", "-c", SCRIPT],
        remove=True,
        volumes={str(script): {"bind": "/farm/limit_symbols.py", "mode": "ro"}},
    ).decode()


def test_what_is_linked_needs_no_newer_glibc_and_libstdcxx_and_runs(output):
    assert output.count("\nit ran\n") + output.startswith("it ran\n") == 2
    before = needs(output, "before")
    assert {"GLIBC_2.29", "GLIBCXX_3.4.26"} <= before
    after = needs(output, "after")
    assert {"GLIBC_2.2.5", "GLIBCXX_3.4"} <= after
    newest = {"GLIBC_2.29", "GLIBC_2.30", "GLIBCXX_3.4.25", "GLIBCXX_3.4.26", "GLIBCXX_3.4.28"}
    assert not newest & after


BORROWED = catalog.debian_releases()["debian-bullseye-gcc12"].borrowed_gcc
LENDER = catalog.debian_releases()[BORROWED.release].suite
CPP20 = f"""
set -eu
apt-get update -q >/dev/null
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \\
    g++-{BORROWED.beside} python3 patchelf libpng-dev >/dev/null
python3 /farm/install_gcc.py {LENDER} {BORROWED.version} >/dev/null
python3 /farm/limit_symbols.py {" ".join(f"{key}={value}" for key, value in RELEASE.limits.items())}
cat > /tmp/new.cpp <<'END'
#include <charconv>
#include <cmath>
#include <concepts>
#include <filesystem>
#include <iostream>
#include <latch>
#include <memory>
#include <png.h>
#include <ranges>
#include <source_location>
#include <thread>
static_assert(__cplusplus >= 202002L);
template <std::integral T> T twice(T value) {{ return value * 2; }}
int main(int count, char **) {{
    std::latch done(1);
    std::jthread worker([&] {{ done.count_down(); }});
    done.wait();
    char text[32];
    auto end = std::to_chars(text, text + 32, std::pow(count + 1.5, 2)).ptr;
    auto shared = std::make_shared<std::string>(text, end);
    auto *reader = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_set_gamma(reader, 2.2, 0.45455);
    std::cout << "it ran " << twice(count) << " " << *shared << " "
              << std::filesystem::exists("/") << std::endl;
}}
END
g++-{BORROWED.version} -std=c++20 -O2 -pthread /tmp/new.cpp -o /built/new -lpng
cp /usr/lib/x86_64-linux-gnu/libpng16.so.16 /built/
/built/new
readelf --version-info --wide /built/new /built/libpng16.so.16
"""


def test_newer_cpp_is_compiled_there_and_runs_where_none_of_it_is_installed(client, tmp_path):
    image = base_image(client, NAME, RELEASE, pull_timeout_s=20, mirror=None, line=print)
    scripts = ROOT / "dockerfiles/scripts"
    volumes = {
        str(scripts / name): {"bind": f"/farm/{name}", "mode": "ro"}
        for name in ("install_gcc.py", "install_debian_cuda.py", "limit_symbols.py")
    }
    volumes[str(tmp_path)] = {"bind": "/built", "mode": "rw"}
    run = client.containers.run
    said = run(image, ["sh", "-c", CPP20], remove=True, volumes=volumes).decode()
    assert "it ran 2 6.25 1" in said
    needed = set(re.findall(r"Name: (\S+)", said))
    assert "GLIBC_2.2.5" in needed
    newest = {"GLIBC_2.29", "GLIBC_2.30", "GLIBC_2.32", "GLIBC_2.34", "GLIBCXX_3.4.26"}
    assert not newest & needed
    script = (
        "set -eu\napt-get update -q >/dev/null\n"
        "apt-get install -y -q --no-install-recommends libstdc++6 zlib1g >/dev/null\n"
        "LD_LIBRARY_PATH=/built /built/new\n"
    )
    built = {str(tmp_path): {"bind": "/built", "mode": "ro"}}
    said = run(image, ["sh", "-c", script], remove=True, volumes=built).decode()
    assert "it ran 2 6.25 1" in said


INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends"
BUILD = f"""
set -eu
apt-get update -q >/dev/null
{INSTALL} g++-10 cmake ninja-build python3-dev python3-pip >/dev/null
python3 /farm/limit_symbols.py {" ".join(f"{key}={value}" for key, value in RELEASE.limits.items())}
python3 -m pip install -q --no-index --no-deps --find-links /wheels setuptools wheel
cp -r /canary /tmp/canary
export CC=gcc-10 CXX=g++-10 CXXFLAGS=-mavx USE_CUDA=0
python3 -m pip wheel -q --no-index --no-deps --no-build-isolation -w /built /tmp/canary
"""
IMPORT = f"""
set -eu
apt-get update -q >/dev/null
{INSTALL} python3 python3-pip >/dev/null
python3 -m pip install -q --no-index /repaired/*.whl
cd /tmp
python3 -c "import canary; print('imported', canary.__version__)"
"""


def test_a_wheel_that_is_linked_there_is_repaired_installed_and_imported_there(
    client, tmp_path, require
):
    """The canary without CUDA, by that image's own Python 3.9.

    A build by `farm submit` takes a standalone Python from GitHub, and PyTorch takes hours: both
    were run by hand (docs/evidence/standalone-python.md).
    """
    folders = {name: tmp_path / name for name in ("wheels", "built", "repaired")}
    for folder in folders.values():
        folder.mkdir()
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    tools = ["setuptools==72.1.0", "wheel==0.43.0"]
    fetched = subprocess.run(
        [*pip, "--python-version", "3.9", "-d", str(folders["wheels"]), *tools],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode:
        require("setuptools for Python 3.9", fetched.stderr)
    image = base_image(client, NAME, RELEASE, pull_timeout_s=20, mirror=None, line=print)

    def run(script: str, *sources: tuple[Path, str]) -> str:
        volumes = {str(path): {"bind": place, "mode": "ro"} for path, place in sources}
        volumes |= {str(path): {"bind": f"/{name}", "mode": "rw"} for name, path in folders.items()}
        command = ["sh", "-c", script]
        return client.containers.run(image, command, remove=True, volumes=volumes).decode()

    run(
        BUILD,
        (ROOT / "farm/recipes/canary/src", "/canary"),
        (ROOT / "dockerfiles/scripts/limit_symbols.py", "/farm/limit_symbols.py"),
    )
    [built] = folders["built"].iterdir()
    farm = [sys.executable, "-m", "farm.cli.main"]
    repair = [*farm, "repair", str(built), "--into", "canary/lib", "-o", str(folders["repaired"])]
    subprocess.run(repair, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    [repaired] = folders["repaired"].glob("*.whl")
    level = re.search(r"manylinux_2_(\d+)_x86_64", repaired.name)
    assert level
    assert int(level[1]) <= int(RELEASE.glibc.removeprefix("2.")) < 31  # Debian 11's own
    assert "imported 0.1.0" in run(IMPORT)
