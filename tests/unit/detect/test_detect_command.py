"""`farm detect` on recorded machines, with the project's own channels."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from farm.cli.main import main, parser
from farm.cli.selection import each_build, selectors_of
from farm.index.publish import publish
from farm.index.reader import KEY, WITHDRAWN
from farm.index.store_urls import open_store
from farm.machine.detect import choose
from farm.machine.published import with_published
from farm.plan.matrix import load_matrix
from farm.plan.resolve import resolve
from farm.plan.settings import load_settings
from farm.site.files import Contents, SiteSource, site_files
from farm.site.smoke_reports import Smoke
from farm.site.wheels import STATES, wheels, with_tests
from tests.indexes.wheels import build_wheel
from tests.schemas import valid

ROOT = Path(__file__).parents[3]


@pytest.fixture
def on(monkeypatch, record, recorded):
    """Put the command on a recorded machine."""
    return lambda name: monkeypatch.setattr(
        "farm.cli.detect.Machine", lambda: recorded(record(name))
    )


MACHINES = yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "expected"), MACHINES["offered"].items())
def test_the_projects_channels(on, capsys, tmp_path, name, expected):
    on(name)
    publish_torch(tmp_path, expected[0])
    assert main(["--project", str(ROOT), "detect", "--json", "--index", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)["recommendation"]
    assert [found["variant"], found["channel"]] == expected
    assert found["pip"].startswith(
        f"pip install 'torch @ {tmp_path.as_uri()}/whl/files/torch-2.0.1"
    )


def test_a_display_card_next_to_a_k40_does_not_change_the_tested_variant(on, capsys):
    on("k40-and-gtx1080ti")
    assert main(["--project", str(ROOT), "detect", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendation"]
    assert (found["variant"], found["channel"]) == ("sm35-avx-py311", "debian-2.6.0")
    assert any(text.endswith("no code for sm_61") for text in found["reasons"])


def test_only_what_is_offered_for_the_platform_counts(on, capsys):
    on("rtx5070-windows")
    assert main(["--project", str(ROOT), "detect", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendation"]
    offered = {
        str(b.variant)
        for b in load_matrix(ROOT).builds()
        if (b.package, b.platform) == ("torch", "windows")
    }
    assert offered
    assert (found["variant"] in offered) == (found["channel"] is not None)


@pytest.mark.parametrize(
    ("name", "system"),
    [("rtx5070-windows", "windows"), ("m3-macbook", "macos"), ("gtx1080ti-haswell", "linux")],
)
def test_the_command_that_builds_the_wheel_builds_it_for_this_system(
    on, capsys, tmp_path, monkeypatch, name, system
):
    """Without --platform a build is for Linux, wherever the command is typed."""
    monkeypatch.chdir(tmp_path)
    on(name)
    assert main(["detect"]) == 0
    (command,) = re.findall(r"it is built by: farm (submit(?: --[a-z]+ \S+)+)", words_of(capsys))
    (args,) = each_build(parser().parse_args(command.split()), ROOT)
    plan = resolve(ROOT, selectors_of(args, ROOT, load_settings(ROOT)))
    assert (plan.platform, plan.channel) == (system, args.channel)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("k40-470-sandybridge", "torch 2.6.0, CUDA 11.8; tested: built and run in part on NVIDIA H200"),
        ("gtx1080ti-haswell", "channel legacy-2.14.1: torch 2.14.1, CUDA 12.6; never built; cost not measured"),
        ("rtx5070-windows", "never built; cost not measured"),
    ],
)  # fmt: skip
def test_a_wheel_that_must_be_built_comes_with_what_was_tested(
    on, capsys, tmp_path, monkeypatch, name, message
):
    """Before hours of compiling, and never more than was seen."""
    monkeypatch.chdir(tmp_path)
    on(name)
    assert main(["detect"]) == 0
    assert message in words_of(capsys)


def test_the_table_names_what_was_found_and_what_was_not(on, capsys):
    on("k40-470-sandybridge")
    assert main(["--project", str(ROOT), "detect"]) == 0
    out = words_of(capsys)
    assert "Tesla K40c, 11441 MiB (nvml)" in out
    assert "470 is the last driver branch for Tesla K40c" in out


def test_detect_works_outside_a_project(on, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on("gtx1080ti-haswell")
    assert main(["detect"]) == 0
    out = words_of(capsys)
    assert "sm61-avx2-py313" in out
    assert (
        "no wheel for sm61-avx2-py313 is published; it is built by: farm submit --variant "
        "sm61-avx2-py313" in out
    )
    assert " @ file:" not in out
    assert list(tmp_path.iterdir()) == []
    publish_torch(tmp_path / "an index", "sm61-avx2-py313")
    assert main(["detect", "--index", str(tmp_path / "an index")]) == 0
    uri = (tmp_path / "an index").as_uri()
    assert f"pip install 'torch @ {uri}/whl/files/torch-2.0.1" in capsys.readouterr().out


def publish_torch(index, variant, *, platform=None, version="2.0.1"):
    """A wheel with nothing in it, by the farm's own publish."""
    group, python = variant.rsplit("-", 1)
    machine = "aarch64" if "armv" in group else "x86_64"
    platform = platform or ("macosx_12_0_arm64" if "mps" in group else f"manylinux_2_17_{machine}")
    index.mkdir(exist_ok=True)
    tag = f"cp{python[2:].removesuffix('t')}-cp{python[2:]}-{platform}"
    wheel = build_wheel(index.parent, f"torch-{version}-{tag}.whl").path
    now = datetime.now(UTC)
    publish(open_store(str(index)), wheel, group=group, upload_time=now, provenance={})
    wheel.unlink()


def test_a_wheel_for_a_newer_glibc_is_not_offered(on, capsys, tmp_path):
    on("gtx1080ti-haswell")
    publish_torch(tmp_path / "index", "sm61-avx2-py313", platform="manylinux_2_99_x86_64")
    assert main(["--project", str(ROOT), "detect", "--index", str(tmp_path / "index")]) == 0
    out = words_of(capsys)
    assert "manylinux_2_99_x86_64.whl needs a newer C library than this machine's glibc 2." in out
    assert " @ file:" not in out
    publish_torch(tmp_path / "index", "sm61-avx2-py313", version="2.0.0")
    assert main(["--project", str(ROOT), "detect", "--index", str(tmp_path / "index")]) == 0
    assert "/whl/files/torch-2.0.0-" in capsys.readouterr().out


def test_a_wheel_for_the_free_threaded_python_is_not_offered_to_the_other(on, capsys, tmp_path):
    on("gtx1080ti-haswell")
    publish_torch(tmp_path / "index", "sm61-avx2-py313t")
    assert main(["--project", str(ROOT), "detect", "--index", str(tmp_path / "index")]) == 0
    out = words_of(capsys)
    assert "no wheel for sm61-avx2-py313 is published" in out
    assert " @ file:" not in out


def test_another_published_variant_that_runs_here_is_offered(on, capsys, tmp_path):
    on("gtx1080ti-haswell")
    publish_torch(tmp_path / "index", "sm61-avx-py313")
    assert main(["--project", str(ROOT), "detect", "--index", str(tmp_path / "index")]) == 0
    out = words_of(capsys)
    assert "no wheel for sm61-avx2-py313 is published" in out
    assert "installs sm61-avx-py313, which is published and runs here too" in out
    assert "/whl/files/torch-2.0.1" in out


def words_of(capsys):
    return " ".join(capsys.readouterr().out.split())


WHEEL = "torch-2.0.1+cu126.sm61.avx2-cp313-cp313-manylinux_2_17_x86_64.whl"


def detect(index):
    assert main(["--project", str(ROOT), "detect", "--index", str(index)]) == 0


def test_what_was_tested_of_the_wheel_is_said_in_the_words_of_the_site(on, capsys, tmp_path):
    on("gtx1080ti-haswell")
    index = tmp_path / "index"
    publish_torch(index, "sm61-avx2-py313", version="2.0.1+cu126.sm61.avx2")
    detect(index)
    assert "the index does not say what was tested" in words_of(capsys)
    outcome = "CPU part passed; GPU part not run: no NVIDIA driver"
    smoke = Smoke("Haswell (emulated)", "2026-11-21", outcome, passed=True)
    store = open_store(str(index))
    (wheel,) = wheels(store)
    there = with_tests([wheel], {wheel.filename: [smoke]})
    words = lambda group, _: ("--index-url", f"https://w.example/whl/{group}/simple/")  # noqa: E731
    source = SiteSource(project=None, root="https://w.example/")
    files = site_files(Contents(("torch",), there, words), source)
    store.create(KEY, files[KEY], content_type="application/json")
    detect(index)
    out = words_of(capsys)
    assert f"wheel {STATES['tested']}" in out
    assert f"tested 2026-11-21, Haswell (emulated): {outcome}" in out
    main(["--project", str(ROOT), "detect", "--index", str(index), "--json"])
    found = json.loads(capsys.readouterr().out)["recommendation"]
    assert found["state"] == "published, CPU part tested; GPU part not run"
    assert found["tests"] == [f"2026-11-21, Haswell (emulated): {outcome}"]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"schema": 1, "wheels": {"torch": 3}}', b"\xff"])
def test_a_damaged_list_of_what_was_tested_costs_no_pip_line(on, capsys, tmp_path, data):
    on("gtx1080ti-haswell")
    publish_torch(tmp_path / "index", "sm61-avx2-py313")
    (tmp_path / "index" / KEY).write_bytes(data)
    detect(tmp_path / "index")
    out = words_of(capsys)
    assert "the index does not say what was tested" in out
    assert "/whl/files/torch-2.0.1-" in out


def test_a_withdrawn_wheel_is_named_with_its_reason_and_what_to_do(on, capsys, tmp_path):
    on("gtx1080ti-haswell")
    index = tmp_path / "index"
    publish_torch(index, "sm61-avx2-py313", version="2.0.1+cu126.sm61.avx2")
    yank = ["index", "yank", WHEEL, "--reason", "crashes at import", "--index", str(index)]
    assert main(["--project", str(ROOT), *yank]) == 0
    detect(index)
    out = words_of(capsys)
    assert (
        f"{WHEEL}: {WITHDRAWN}: yanked: crashes at import; its successor is built by: farm submit"
        in out
    )
    assert "--channel legacy-2.14.1 --rebuild 1" in out
    assert " @ file:" not in out
    publish_torch(index, "sm61-avx2-py313", version="2.0.1+cu126.sm61.avx2.1")
    detect(index)
    assert "/whl/files/torch-2.0.1%2Bcu126.sm61.avx2.1-" in words_of(capsys)


def test_the_successor_of_a_rebuild_is_the_next_one(on, capsys, tmp_path):
    on("gtx1080ti-haswell")
    index = tmp_path / "index"
    publish_torch(index, "sm61-avx2-py313", version="2.0.1+cu126.sm61.avx2.4")
    wheel = WHEEL.replace("avx2-", "avx2.4-")
    assert (
        main(
            [
                "--project",
                str(ROOT),
                "index",
                "yank",
                wheel,
                "--reason",
                "slow",
                "--index",
                str(index),
            ]
        )
        == 0
    )
    detect(index)
    assert "--rebuild 5" in words_of(capsys)


NEWER, OLDER = "2.10.0+cu130.sm75.avx2", "2.9.1+cu128.sm75.avx2"


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ((NEWER, OLDER), OLDER),
        ((NEWER, OLDER, "2.9.1+cu130.sm75.avx2.2"), OLDER),  # the same release, and a newer CUDA
        ((NEWER,), None),
    ],
)
def test_a_wheel_for_a_newer_driver_is_not_offered(readings, tmp_path, published, expected):
    machine = readings("rtx2080ti-zen2")  # driver 550; CUDA 13 needs 580
    for version in published:
        publish_torch(tmp_path / "index", "sm75-avx2-py312", version=version)
    root = (tmp_path / "index").as_uri()
    found = with_published(choose(machine), machine, root, root)
    if expected:
        assert f"{root}/whl/files/torch-{quote(expected)}-" in found.pip
    else:
        assert found.pip is None
    refused = any("driver" in reason and "2.10.0" in reason for reason in found.reasons)
    assert refused == (expected is None)


@pytest.mark.parametrize(("driver", "runs"), [("550.54.14", False), ("580.65.06", True)])
def test_without_a_project_the_wheel_itself_says_which_cuda_it_needs(
    readings, tmp_path, driver, runs
):
    machine = readings("rtx2080ti-zen2").model_copy(update={"driver": driver})
    found = choose(machine)
    publish_torch(tmp_path, found.variant, version=NEWER)
    found = with_published(found, machine, tmp_path.as_uri(), tmp_path.as_uri())
    assert (found.pip is not None) == runs


def test_an_index_that_does_not_answer_gives_no_pip_line(on, capsys):
    on("gtx1080ti-haswell")
    assert main(["--project", str(ROOT), "detect", "--index", "http://127.0.0.1:1/x"]) == 0
    out = words_of(capsys)
    assert "the index cannot be asked, so there is no pip command" in out
    assert " @ file:" not in out


def test_a_machine_without_a_variant_is_exit_code_3(on, capsys):
    on("jetson-nano")
    assert main(["--project", str(ROOT), "detect"]) == 3
    assert "the CPU lacks asimdrdm, atomics" in capsys.readouterr().out


def test_a_wrong_project_or_index_is_a_usage_error(on, capsys, tmp_path):
    on("laptop-haswell")
    assert main(["--project", str(tmp_path / "absent"), "detect"]) == 2
    assert main(["--project", str(ROOT), "detect", "--index", "ftp://w.example"]) == 2
    assert "unknown kind of store 'ftp'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "changes", "sentence", "line", "newer"),
    [
        (
            "gtx1080ti-haswell",
            {"libc": "glibc 2.17"},
            "torch 2.6.0, CUDA 12.4, Python 3.13",
            "pip install torch==2.6.0",
            "torch 2.14.1 with CUDA 12.6 needs glibc 2.28 or newer, not 2.17",
        ),
        (
            "laptop-haswell",
            {"libc": "glibc 2.17"},
            "torch 2.6.0, for CPUs",
            "pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cpu",
            "torch 2.15.0 needs glibc 2.28 or newer, not 2.17",
        ),
        ("m3-macbook", {}, "torch 2.15.0, for CPUs", "pip install torch==2.15.0", None),
        ("k40-no-driver", {}, None, None, None),
        ("laptop-sandybridge", {}, None, None, None),
        ("alpine-t4", {}, None, None, None),
    ],
)
def test_everything_that_was_read_is_part_of_the_question(
    record, recorded, monkeypatch, capsys, name, changes, sentence, line, newer
):
    """The glibc, the Pythons, the CPU and the driver of the machine choose the wheel of PyTorch."""
    monkeypatch.setattr("farm.cli.detect.Machine", lambda: recorded(record(name) | changes))
    main(["--project", str(ROOT), "detect", "--json"])
    document = valid("detect", capsys.readouterr().out)
    text, command = list((document["first"] or {"text": "", "line": ""}).values())
    if sentence is None:
        assert "PyTorch's own wheel runs here" not in text
    else:
        assert sentence in text
        assert command == line
        assert document["newer"] == newer
