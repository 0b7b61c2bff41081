"""A Python that the base image has not: where a plan takes it from, what the image makes of it,
what is refused.
"""

import hashlib
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from farm import catalog
from farm.base.errors import NotBuildableError
from farm.engines.images import Toolchain
from farm.plan.file import Plan
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request
from farm.plan.variant import PYTHONS, Variant
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "dockerfiles" / "scripts" / "install_python.py"


# --- plans ---


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("cpu", ["avx2", "armv9"])
def test_every_python_is_there_with_cuda_13(python, cpu):
    plan = plan_of(f"sm121-{cpu}-{python}" if cpu == "armv9" else f"sm120-{cpu}-{python}", "canary")
    base = catalog.debian_releases()[plan.base]
    assert (plan.python is None) == (base.python == python and not base.outdated)


def test_a_free_threaded_python_comes_by_hash_and_brings_what_the_build_imports(tmp_path):
    plan = plan_of("sm61-avx2-py314t", torch="2.14.1", cuda="12.6")
    pinned = catalog.standalone_pythons()["py314t"]
    assert (plan.python.version, plan.python.sha256) == (
        pinned.version,
        pinned.files["x86_64"].sha256,
    )
    assert "freethreaded" in plan.python.url
    assert plan.verify.python == "cp314t"
    names = {wheel.package for wheel in plan.build_requires}
    assert names >= {"build", "setuptools", "wheel", "numpy", "pyyaml", "typing-extensions"}
    files = [str(wheel.file) for wheel in plan.build_requires if "none-any" not in str(wheel.file)]
    own = [name for name in files if not name.startswith("cmake-")]
    assert own
    assert all("-cp314-cp314t-" in name and name.endswith("x86_64.whl") for name in own)
    assert {"cmake", "ninja-build", "python3"} <= set(plan.apt)
    assert not {name for name in plan.apt if name.startswith("python3-")}
    assert plan.origins["python"] == "standalone: debian-bullseye-gcc12 has an outdated py39"
    dockerfile = render(ROOT, plan).image["Dockerfile"]
    assert (
        f'install_python.py "{plan.python.url}" {plan.python.sha256} {plan.python.version}t'
        in dockerfile
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert Plan.read(tmp_path / "plan.json").digest == plan.digest


@pytest.mark.parametrize(
    ("variant", "channel", "brings"),
    [
        ("sm61-avx2-py312", "legacy-2.14.1", True),  # Debian 11 has 3.18, and torch needs 3.27
        ("sm35-avx-py312", "debian-2.6.0", False),  # built with that of Debian 11
    ],
)
def test_a_wheel_of_cmake_replaces_one_that_is_too_old(variant, channel, brings):
    plan = plan_of(variant, channel=channel)
    files = [str(wheel.file) for wheel in plan.build_requires if wheel.package == "cmake"]
    assert bool(files) == brings
    assert all(name.endswith("x86_64.whl") for name in files)
    assert 'PATH="$FARM_ROOT/needs/site/bin:$PATH"' in render(ROOT, plan).job["build.sh"]


def test_numpy_is_one_that_the_release_can_use():
    plan = plan_of("sm35-avx-py39", channel="kepler-2.0.1")
    numpy = next(str(wheel.file) for wheel in plan.build_requires if wheel.package == "numpy")
    assert numpy.startswith("numpy-1.26.4-cp39-cp39-")
    newer = catalog.standalone_wheel("numpy", "py39", "x86_64", 2)
    assert newer.file.startswith("numpy-2.")


def test_the_base_image_that_a_channel_pins_stays_whatever_the_python(tmp_path):
    """So a channel chooses the oldest glibc of its wheels: Debian 11, the oldest that Debian's
    mirrors have.
    """
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "matrix.yaml").write_text(
        "channels:\n  old:\n    summary: x\n    platforms: [linux]\n    packages: [torch]\n    "
        "base: debian-bullseye\n"
        "    toolkit: nvidia\n    cuda: '11.8'\n    torch: '2.6.0'\n    cudnn: '8.7.0'\n    gpus: "
        "[sm61]\n"
        "    cpus: [avx2]\n    pythons: [py39, py312, py313]\n"
    )
    # Also 3.9, which Debian 11 has: beside packages too old to build with.
    for python, version in (("py39", "3.9."), ("py312", "3.12."), ("py313", "3.13.")):
        plan = plan_of(f"sm61-avx2-{python}", project=tmp_path)
        assert plan.base == "debian-bullseye"
        assert plan.python.version.startswith(version)
        assert plan.origins["python"] == "standalone: debian-bullseye has an outdated py39"


@pytest.mark.parametrize(
    ("variant", "options", "word"),
    [
        (
            "sm61-avx2-py313t",
            {"torch": "2.8.0", "cuda": "12.6"},
            "no wheel of pyyaml for py313t is pinned",
        ),
        ("sm35-avx-py312", {"channel": "debian-1.13.1"}, "debian-bookworm has py311, not py312"),
    ],
)
def test_impossible_pythons_are_refused_with_a_reason(variant, options, word):
    with pytest.raises(NotBuildableError, match=word):
        plan_of(variant, **options)


def test_a_missing_wheel_names_the_pythons_that_have_one():
    judged = check_request(ROOT, BuildRequest(Variant.parse("cpu-avx2-py313t")))
    fact = next(reason.fact for reason in judged.rules if reason.rule == "python-packages")
    assert "py314, py314t, none for py313t" in fact  # PyYAML 6.0.3 on the index: cp314t, no cp313t
    assert check_request(ROOT, BuildRequest(Variant.parse("cpu-avx2-py314t"))).complete


def test_windows_has_no_free_threaded_one():
    judged = check_request(
        ROOT, BuildRequest(Variant.parse("sm75-avx2-py314t"), "torch", "windows")
    )
    assert "free-threaded" in {reason.rule for reason in judged.rules}


def test_the_catalogue_has_every_python_for_both_machines():
    known = catalog.standalone_pythons()
    assert set(known) == set(PYTHONS)
    for name, python in known.items():
        assert re.fullmatch(rf"3\.{name[3:].rstrip('t')}\.\d+", python.version)
        assert set(python.files) == {"x86_64", "aarch64"}
        for machine, archive in python.files.items():
            assert f"cpython-{python.version}%2B" in archive.url
            assert machine in archive.url
            assert ("freethreaded" in archive.url) == name.endswith("t")


@pytest.mark.parametrize(
    ("variant", "options", "asks"),
    [
        ("cpu-avx-py313", {}, True),
        ("sm61-avx2-py312", {"cuda": "12.6", "toolkit": "nvidia"}, True),
        ("cpu-avx-py311", {}, False),
    ],
)
def test_an_image_that_downloads_archives_asks_a_server_of_the_users_own_first(
    variant, options, asks
):
    dockerfile = render(ROOT, plan_of(variant, "canary", **options)).image["Dockerfile"]
    before, declared, after = dockerfile.partition("\nARG FARM_ARCHIVES\n")
    assert bool(declared) == asks
    assert "RUN python3 /farm/scripts/install_" not in (before if asks else dockerfile)
    assert not asks or "RUN python3 /farm/scripts/install_" in after


@pytest.mark.parametrize(
    ("variant", "base", "compilers"),
    [
        ("cpu-armv8_2-py311", "debian-bookworm", True),
        ("cpu-armv9-py313", "debian-trixie", True),
        ("cpu-armv8_2-py312", "ubuntu-noble", False),
        ("cpu-avx-py311", "debian-bookworm", False),
    ],
)
def test_an_emulated_image_for_arm_gets_compilers_of_the_engines_machine(variant, base, compilers):
    plan = plan_of(variant, "canary")
    image = render(ROOT, plan.model_copy(update={"base": base})).image
    assert ("scripts/native_compilers.sh" in image) == compilers
    made = {
        emulated: Toolchain("x", image, "0", "y", {}, emulated=emulated).arguments
        for emulated in (False, True)
    }
    assert made == {
        False: {"BASE": "y"},
        True: {"BASE": "y"} | ({"FARM_EMULATED": "1"} if compilers else {}),
    }


# --- the script that installs it ---

SYSCONFIG = """build_time_vars = {
 'AR': '/tools/llvm/bin/llvm-ar', 'CC': '/tools/llvm/bin/clang -pthread', 'CXX': 'clang++ -pthread',
 'LDSHARED': '/usr/bin/aarch64-linux-gnu-gcc -shared', 'CFLAGS': '-O3 -fdebug-default-version=4 -fPIC',
 'INCLUDEPY': '/install/include/python3.11', 'prefix': '/install', 'other': '/usr/install/x',
}
"""


@pytest.fixture
def archives(tmp_path):
    """A folder with an archive of the layout of python-build-standalone, whose program is this
    Python.
    """
    root = tmp_path / "layout" / "python"
    (root / "bin").mkdir(parents=True)
    (root / "lib" / "python3.11").mkdir(parents=True)
    (root / "lib" / "python3.11" / "_sysconfigdata__linux_x86_64-linux-gnu.py").write_text(
        SYSCONFIG
    )
    program = root / "bin" / "python3.11"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    (root / "bin" / "python3").symlink_to("python3.11")
    folder = tmp_path / "archives"
    folder.mkdir()
    with tarfile.open(folder / "cpython-3.11+1.tar.gz", "w:gz") as tar:
        tar.add(root, "python")
    return folder


URL = "https://archives.invalid/1/cpython-3.11%2B1.tar.gz"
FREE = "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def install(archives, prefix, sha256=None, version=None):
    data = (archives / "cpython-3.11+1.tar.gz").read_bytes()
    words = [
        URL,
        sha256 or hashlib.sha256(data).hexdigest(),
        version or platform.python_version() + FREE,
        str(prefix),
    ]
    env = {"PATH": "/usr/bin:/bin", "FARM_ARCHIVES": str(archives), "no_proxy": "*"}
    return subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, text=True, env=env, check=False
    )


def test_an_archive_becomes_a_python_that_uses_this_systems_compilers(archives, tmp_path):
    prefix = tmp_path / "opt" / "python"
    done = install(archives, prefix)
    assert done.returncode == 0, done.stderr
    assert subprocess.check_output([prefix / "bin/python3", "-c", "print(6*7)"]) == b"42\n"
    found: dict = {}
    exec((prefix / "lib/python3.11/_sysconfigdata__linux_x86_64-linux-gnu.py").read_text(), found)
    assert found["build_time_vars"] == {
        "AR": "ar",
        "CC": "cc -pthread",
        "CXX": "c++ -pthread",
        "LDSHARED": "cc -shared",
        "CFLAGS": "-O3 -fPIC",
        "INCLUDEPY": f"{prefix}/include/python3.11",
        "prefix": str(prefix),
        "other": "/usr/install/x",
    }


def test_another_archive_than_the_pinned_one_is_not_used(archives, tmp_path):
    done = install(archives, tmp_path / "python", sha256="0" * 64)
    assert done.returncode == 9  # the folder's is refused by its hash, and the network has none
    assert "another sha256 than the pinned" in done.stdout
    assert not (tmp_path / "python").exists()


def test_another_python_than_the_plan_names_is_refused(archives, tmp_path):
    done = install(archives, tmp_path / "python", version="3.99.1")
    assert (done.returncode, "no Python 3.99.1" in done.stderr) == (6, True)


def test_an_archive_without_a_python_is_refused(archives, tmp_path):
    with tarfile.open(archives / "cpython-3.11+1.tar.gz", "w:gz"):
        pass
    done = install(archives, tmp_path / "python")
    assert (done.returncode, "no python/bin/python3 in it" in done.stderr) == (6, True)
