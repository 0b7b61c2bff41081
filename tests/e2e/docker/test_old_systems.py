"""An image of Debian 11 whose linker finds what manylinux_2_28 allows."""

import re

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
