"""The declared changes on real source trees: PyTorch 1.13.1 of Debian 12 and 2.6.0 of Debian 13."""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from farm.plan.patches import Facts, plan_patches, write
from farm.plan.recipe import patches

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TIMEOUT_S = 600
LOW = r"cmake_minimum_required *\( *VERSION +([12]\.|3\.[0-4]([^0-9]|$))"
INTEL = Facts("windows", 80, 4, "icx")
TREES = {
    "1.13.1": ("pytorch_1.13.1+dfsg.orig.tar.xz", "bookworm"),
    "2.6.0": ("pytorch_2.6.0+dfsg.orig.tar.xz", "trixie"),
}
# In 2.6.0 the file has its own fallback for new setuptools; neither Debian tree has third_party/flatbuffers.
STATES = {
    "1.13.1": ["needed", "needed", "skipped", "needed", "needed"],
    "2.6.0": ["done", "needed", "skipped", "needed", "needed"],
}


def need(what):
    if os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail(what)
    pytest.skip(what)


def mirror():
    """Where this machine gets Debian from."""
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        found = re.search(r"https?://\S+/debian(?=/?\s)", path.read_text()) if path.is_file() else None
        if found:
            return found[0]
    return need("no Debian mirror is in apt's sources")


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """A folder with both source archives, fetched by apt with lists of its own; its signatures and sums are apt's."""
    if not (shutil.which("apt-get") and KEYRING.exists()):
        need("apt-get or Debian's keyring is missing: install debian-archive-keyring")
    folder = tmp_path_factory.mktemp("apt")
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    lines = [f"deb-src [signed-by={KEYRING}] {mirror()} {suite} main" for _, suite in TREES.values()]
    (folder / "sources.list").write_text("\n".join(lines) + "\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": "/nonexistent",
        "Dir::State::Lists": folder / "lists", "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    done = subprocess.run([*apt, "update"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        need(f"Debian's source lists cannot be fetched: {done.stderr[-300:]}")
    for name, suite in TREES.values():
        # --tar-only: the packaging beside it may have left the mirror already.
        command = [*apt, "source", "--download-only", "--tar-only", f"pytorch/{suite}"]
        done = subprocess.run(
            command, cwd=folder / "sources", capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        if not (folder / "sources" / name).exists():
            need(f"{name} cannot be fetched: {done.stderr[-300:]}")
    return folder / "sources"


@pytest.fixture(params=list(TREES))
def tree(request, sources, tmp_path):
    with tarfile.open(sources / TREES[request.param][0]) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and newer
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    [top] = tmp_path.iterdir()
    return request.param, top


def digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_the_patches_fit_the_real_tree_once(tree):
    version, folder = tree
    before = digests(folder)
    outcomes = plan_patches(folder, patches("torch"), INTEL)
    assert [outcome.state for outcome in outcomes] == STATES[version]
    assert digests(folder) == before
    write(folder, outcomes)
    changed = {name for name, digest in digests(folder).items() if digest != before.get(name)}
    assert changed == {name for outcome in outcomes for name in outcome.changed}
    own = {name for name in changed if not name.endswith(("CMakeLists.txt", ".cmake"))}
    expected = {"torch/csrc/jit/runtime/static/native_ops.cpp", "functorch/csrc/dim/arena.h"}
    assert own == expected | ({"tools/build_pytorch_libs.py"} if version == "1.13.1" else set())
    again = plan_patches(folder, patches("torch"), INTEL)
    assert not [outcome.name for outcome in again if outcome.changed or outcome.state == "needed"]
    # What CMake 4 refuses is gone: no file asks for less than 3.5, ranges aside.
    asked = subprocess.run(
        ["grep", "-rhiE", "--include=CMakeLists.txt", "--include=*.cmake", LOW, str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [line for line in asked.stdout.splitlines() if "..." not in line] == []


def test_a_build_with_the_pinned_tools_changes_nothing(tree):
    _, folder = tree
    outcomes = plan_patches(folder, patches("torch"), Facts("windows", 72, 3, "cl"))
    assert {outcome.state for outcome in outcomes} == {"skipped"}
    assert all(outcome.why for outcome in outcomes)


def test_the_changed_python_file_compiles_and_finds_the_module(tree):
    version, folder = tree
    write(folder, plan_patches(folder, patches("torch"), INTEL))
    text = (folder / "tools/build_pytorch_libs.py").read_text()
    compile(text, "build_pytorch_libs.py", "exec")
    assert ("distutils_msvccompiler._get_vc_env(vc_arch)" in text) is (version == "1.13.1")
