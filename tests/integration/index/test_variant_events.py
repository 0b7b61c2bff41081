"""A copy in `whl/variant/` is offered as its wheel is: yank, removal and reconcile reach it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.index.check import check
from farm.index.store_urls import open_store
from farm.index.variants import ROOT
from tests.indexes.clients import clean
from tests.integration.index.test_variants import whole_wheel

OLD = "canary-1.0+cu118.sm61.avx2-py3-none-any.whl"
NEW = "canary-2.0+cu118.sm61.avx2-py3-none-any.whl"
OLD_COPY, NEW_COPY = "canary-1.0-py3-none-any-sm61_v3.whl", "canary-2.0-py3-none-any-sm61_v3.whl"
PAGE = f"{ROOT}simple/canary/index.html"


def index_of(folder, *names):
    """A folder index with wheels and their copies, made by the commands."""
    index = ["--index", str(folder / "index")]
    for name in names:
        wheel = str(whole_wheel(folder, name, f"name = {name!r}\n"))
        assert main(["publish", wheel, "--to", "sm61-avx2", *index]) == 0
        assert main(["index", "variant", wheel, "--variant", "sm61-avx2-py311", *index]) == 0
    return folder / "index"


def test_a_wheel_that_is_given_by_its_name_alone_is_asked_for_as_a_file(
    tmp_path, monkeypatch, capsys
):
    index = index_of(tmp_path, OLD)
    monkeypatch.chdir(index)
    capsys.readouterr()
    assert (
        main(["index", "variant", OLD, "--variant", "sm61-avx2-py311", "--index", str(index)]) == 2
    )
    assert capsys.readouterr().err.startswith(
        f"farm: cannot read {OLD}: No such file or directory\n  next: give the path"
    )


COMMANDS = {
    "yank": ["yank", NEW, "--reason", "slow"],
    "remove": ["remove", NEW, "--reason", "secret"],
}


@pytest.mark.parametrize("what", COMMANDS)
def test_uv_gets_no_copy_of_a_wheel_that_is_withdrawn(tmp_path, monkeypatch, what):
    """And pip, which does not know variants, gets none at all."""
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2, so uv takes none of the wheels")
    monkeypatch.chdir(tmp_path)
    index = index_of(tmp_path, OLD, NEW)
    forced = {"SM_ARCH": "6.1", "CUDA_DRIVER_VERSION": "12.8"}
    environment = clean(tmp_path, UV_PREVIEW_FEATURES="wheel-variants") | {
        f"NV_VARIANT_PROVIDER_FORCE_{name}": value for name, value in forced.items()
    }
    uv = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--no-cache",
        "--python",
        sys.executable,
    ]
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    root = (index / f"{ROOT}simple").as_uri()

    def installed(client, *requirements):
        target = tmp_path / "target"
        shutil.rmtree(target, ignore_errors=True)
        command = [*client, "--target", target, "--index-url", root, *requirements]
        subprocess.run(command, env=environment, check=False, capture_output=True, timeout=120)
        found = [path.name for path in target.glob("*.dist-info")] if target.exists() else []
        return found[0].split("-")[1].removesuffix(".dist") if found else None

    assert installed(uv, "canary") == "2.0"
    assert main(["index", *COMMANDS[what], "--index", str(index)]) == 0
    assert installed(uv, "canary") == "1.0"
    assert installed(pip, "canary") is None
    # A yanked wheel is there for whoever asks for its very version (PEP 592).
    assert installed(uv, "canary==2.0") == ("2.0" if what == "yank" else None)
    left = {OLD_COPY} if what == "remove" else {OLD_COPY, NEW_COPY}
    assert {path.name for path in (index / f"{ROOT}files").glob("canary-*.whl")} == left
    assert check(open_store(str(index))) == []


def test_a_copy_needs_its_wheel_in_the_index(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    index = index_of(tmp_path, OLD)
    variant = ["--variant", "sm61-avx2-py311", "--index", str(index)]
    wheel = whole_wheel(tmp_path, NEW, "x = 1\n")
    assert main(["index", "variant", str(wheel), *variant]) == 2
    assert "is not in the index" in capsys.readouterr().err
    assert (
        main(
            ["index", "variant", str(whole_wheel(tmp_path / "other", OLD, "other = 1\n")), *variant]
        )
        == 7
    )
    assert "is not the wheel that the index has" in capsys.readouterr().err
    assert main(["index", "remove", OLD, "--reason", "secret", "--index", str(index)]) == 0
    assert main(["index", "variant", str(tmp_path / OLD), *variant]) == 2
    assert "was removed: secret" in capsys.readouterr().err


def test_changed_files_of_the_tree_are_named_and_repaired(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = index_of(tmp_path, OLD, NEW)
    command = ["index", "check", "--index", str(index)]
    assert main(command) == 0
    for path, old in (
        (index / PAGE, OLD_COPY),
        ((index / PAGE).with_name("canary-2.0-variants.json"), "sm61_v3"),
    ):
        path.write_text(path.read_text().replace(old, "evil"))
        assert main(command) == 6
        assert main(["index", "reconcile", *command[2:]]) == 0


def test_the_copy_of_a_rebuild_replaces_that_of_a_removed_wheel(tmp_path, monkeypatch):
    """Its name stays taken, so the rebuild's has a build number."""
    monkeypatch.chdir(tmp_path)
    index = index_of(tmp_path, OLD)
    rebuild = OLD.replace(".avx2-", ".avx2.1-")
    assert main(["index", "remove", OLD, "--reason", "secret", "--index", str(index)]) == 0
    index_of(tmp_path, rebuild)
    wanted = "canary-1.0-1-py3-none-any-sm61_v3.whl"
    page = (index / PAGE).read_text()
    assert f">{wanted}</a>" in page
    assert OLD_COPY not in page
    with zipfile.ZipFile(index / f"{ROOT}files" / wanted) as archive:
        assert (
            "Build: 1\nTag: py3-none-any\n" in archive.read("canary-1.0.dist-info/WHEEL").decode()
        )
