"""What is rendered, byte for byte: one folder a case, to be read by a person when it changes.

`pytest tests/golden --update-golden` writes them anew. Scripts that are copied as they are stay out.
"""

import difflib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.plan.build import resolve
from farm.plan.file import Plan
from farm.plan.matrix import Build, load_matrix
from farm.plan.render import render
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from farm.platforms.linux import COMMON_SCRIPTS, PYTHON_SCRIPTS, TOOLKIT_SCRIPTS
from farm.platforms.windows.render import JOB_SCRIPTS, SCRIPTS
from farm.platforms.windows.render import TOOLKIT_SCRIPTS as WINDOWS_TOOLKIT

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOOLKITS = {name for names in TOOLKIT_SCRIPTS.values() for name in names}
WINDOWS_SCRIPTS = (*SCRIPTS, *WINDOWS_TOOLKIT)
COPIED = {f"scripts/{name}" for name in (*COMMON_SCRIPTS, *PYTHON_SCRIPTS, *TOOLKITS, *WINDOWS_SCRIPTS)}
COPIED_JOB = {*WINDOWS_SCRIPTS, *JOB_SCRIPTS, "patches.py", "patches.json"}
BRANCHES = {
    "torch-sm120-avx512": ("main", "pytorch-python313-cuda12_8-sm120-avx512"),
    "torch-sm121-armv9": ("pytorch-2.10-python313", "pytorch-python313-cuda13_0-sm121-armv9"),
    "torch-cpu-avx2": ("pytorch-2.8-python312", "pytorch-python312-cpu-avx2"),
    "torch-mps": ("main", "pytorch-python313-darwin-mps"),
    "torch-sm70-avx": ("pytorch-2.9-python311", "pytorch-python311-cuda12_9-sm70-avx"),
    "torchvision-sm61-avx": ("main", "torchvision-python313-cuda12_8-sm61-avx"),
}
SHOWN = ("FBGEMM", "MKLDNN", "NNPACK", "FLASH_ATTENTION", "MEM_EFF_ATTENTION", "MPS")


def selectors(build: Build) -> Selectors:
    options = {"cuda": (build.cuda, "--cuda")} if build.cuda else {}
    return Selectors(build.variant, build.package, build.platform, build.channel, options)


def by_alias(channel: str, alias: str) -> Selectors:
    return next(selectors(build) for build in load_matrix(ROOT).builds(channel) if build.alias == alias)


def windows(variant: str, channel: str, package: str = "torch") -> Selectors:
    return Selectors(Variant.parse(variant), package, "windows", channel)


CASES = {
    "canary-sm35-avx": Selectors(Variant.parse("sm35-avx-py311"), "canary"),
    "canary-cpu-avx": Selectors(Variant.parse("cpu-avx-py311"), "canary"),
    "canary-py314t": Selectors(Variant.parse("sm120-avx2-py314t"), "canary", channel="cuda13-wheels"),
    "canary-windows": windows("sm35-avx-py311", "kepler-2.0.1", "canary"),
    "torch-sm35-avx": Selectors(Variant.parse("sm35-avx-py311"), "torch", channel="kepler-2.0.1"),
    "canary-sm120-wheels": Selectors(Variant.parse("sm120-avx2-py311"), "canary", channel="cuda13-wheels"),
    "torch-debian": Selectors(Variant.parse("sm35-avx-py311"), "torch", channel="debian-1.13.1"),
    "torch-debian-cu124": Selectors(Variant.parse("sm90-avx512-py313"), "torch", channel="debian-2.6.0-cu124"),
    "torchvision-debian": Selectors(Variant.parse("sm35-avx-py311"), "torchvision", channel="debian-2.6.0"),
    "torchaudio-debian": Selectors(Variant.parse("sm35-avx-py311"), "torchaudio", channel="debian-2.6.0"),
    "torch-windows-2.0.1": windows("sm35-avx-py311", "kepler-2.0.1"),
    "torch-windows-2.7.1": windows("sm35-avx-py311", "kepler-2.7.1"),
    "torch-windows-compat": windows("legacy-sse41-py310", "kepler-compat"),
    "torch-windows-rtx50": windows("sm120-avx2-py311", "rtx50-windows"),
    "torch-windows-cuda13": windows("sm120-avx2-py313", "windows-2.10.0"),
    "torchaudio-windows": windows("sm35-avx-py39", "kepler-2.0.1", "torchaudio"),
} | {case: by_alias(*names) for case, names in BRANCHES.items()}


@pytest.fixture(autouse=True)
def one_digest_for_every_source(monkeypatch):
    """The canary's source changes often and is no rendered text; its digest must not make every case differ."""
    monkeypatch.setattr("farm.plan.inputs.tree_digest", lambda _folder: "0" * 64)


def rendered(case: str) -> tuple[Plan, dict[str, str]]:
    plan = resolve(ROOT, CASES[case])
    texts = render(ROOT, plan)
    image = {f"image/{name}": text for name, text in texts.image.items() if name not in COPIED}
    return plan, image | {f"job/{name}": text for name, text in texts.job.items() if not copied(name)}


def copied(name: str) -> bool:
    """Whether a file of the job is copied as it is."""
    return name in COPIED_JOB or name.startswith("source/")


@pytest.mark.parametrize("case", CASES)
def test_rendered_text_is_the_golden_text(case, request):
    _, now = rendered(case)
    folder = HERE / case
    if request.config.getoption("--update-golden", default=False):
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in now.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        pytest.skip(f"{len(now)} golden files of {case} written: read them before you commit them")
    golden = {p.relative_to(folder).as_posix(): p.read_bytes().decode() for p in folder.rglob("*") if p.is_file()}
    assert sorted(now) == sorted(golden)
    different = [
        line
        for name in sorted(now)
        for line in difflib.unified_diff(
            golden[name].splitlines(keepends=True), now[name].splitlines(keepends=True), f"golden/{case}/{name}", "now"
        )
    ]
    assert not different, "if this is wanted: pytest tests/golden --update-golden\n" + "".join(different)
    assert now == golden


def listing() -> str:
    """Every build of the eight branches, a line each: where it is built, for what, and with which switches."""
    lines = []
    for channel in load_matrix(ROOT).channels:
        if channel.startswith("kepler"):
            continue
        lines += ["", f"# {channel}"]
        for build in load_matrix(ROOT).builds(channel):
            plan = resolve(ROOT, selectors(build))
            on = [name.lower() for name in SHOWN if plan.env.get(f"USE_{name}") == "1"]
            words = [
                build.alias,
                plan.version,
                f"{plan.base or 'host'}/{plan.machine}",
                plan.env["CC"],
                f"cuda={plan.options['cuda'] or '-'}",
                f"cudnn={plan.options['cudnn'] or '-'}",
                f"arch={plan.env.get('TORCH_CUDA_ARCH_LIST', '-')}",
                f"on={','.join(on) or '-'}",
                *(f"needs={need}" for need in plan.needs),
            ]
            lines.append("  ".join(words))
    return "\n".join(lines).strip() + "\n"


def test_every_build_of_the_branches_is_what_the_list_says(request):
    path, now = HERE / "builds.txt", listing()
    if request.config.getoption("--update-golden", default=False):
        path.write_bytes(now.encode())
        pytest.skip("builds.txt written: read what changed before you commit it")
    different = list(difflib.unified_diff(path.read_text().splitlines(), now.splitlines(), "builds.txt", "now", n=0))
    assert not different, "if this is wanted: pytest tests/golden --update-golden\n" + "\n".join(different)


@pytest.mark.parametrize("case", CASES)
def test_copied_scripts_are_those_of_the_project(case):
    plan, _ = rendered(case)
    image = render(ROOT, plan).image
    scripts = {name for name in image if name in COPIED}
    if plan.platform == "macos":
        assert not image
        return
    expected = SCRIPTS if plan.platform == "windows" else COMMON_SCRIPTS
    assert {f"scripts/{name}" for name in expected} <= scripts
    for name in scripts:
        assert image[name].encode() == (ROOT / "dockerfiles" / name).read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_the_same_plan_gives_the_same_bytes(case, tmp_path):
    plan, _ = rendered(case)
    files = [render(ROOT, plan).write(tmp_path / name) for name in ("one", "two")]
    assert [p.read_bytes() for p in files[0]] == [p.read_bytes() for p in files[1]]
    for path in files[0]:
        text = path.read_bytes()
        ends = text.count(b"\n") if path.suffix == ".cmd" else 0  # cmd misses labels in files without CRLF
        assert (text.count(b"\r\n"), text.count(b"\r")) == (ends, ends), path


@pytest.mark.parametrize("case", CASES)
def test_shells_read_the_scripts(case, tmp_path):
    """`-n`: parsed, not run."""
    plan, _ = rendered(case)
    if plan.platform == "windows":
        return  # cmd cannot parse alone: tests/e2e/wine/test_windows_build.py runs them
    render(ROOT, plan).write(tmp_path)
    scripts = [("bash", "job/build.sh")] + ([("sh", "image/scripts/apt_sections.sh")] if plan.base else [])
    for shell, path in scripts:
        answer = subprocess.run([shell, "-n", tmp_path / path], capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("case", [case for case in CASES if "windows" in case])
def test_a_windows_dockerfile_begins_with_its_escape_character(case):
    """Docker reads the directive on the first line alone; a comment before it makes the backslash the escape."""
    _, texts = rendered(case)
    assert texts["image/Dockerfile"].startswith("# escape=`\n")
    instructions = [line for line in texts["image/Dockerfile"].splitlines() if line and not line.startswith("#")]
    assert not [line for line in instructions if line.startswith(("ENV", "ADD")) or "--mount" in line or "<<" in line]
    assert not [line for line in instructions if line.endswith("`")], "each RUN is one line"


@pytest.mark.parametrize("case", [case for case in CASES if "windows" in case])
def test_every_download_of_a_windows_build_is_pinned(case):
    plan, texts = rendered(case)
    install = texts["image/scripts/visual_studio.cmd"] + texts["image/scripts/install.cmd"]
    assert install.count('set "FARM_URL=https://') == install.count('set "FARM_SHA256=') == 3
    for line in texts["job/requirements.txt"].splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+ --hash=sha256:[0-9a-f]{64}", line)
    names = {line.split("==")[0]: line.split("==")[1].split()[0] for line in texts["job/requirements.txt"].splitlines()}
    assert int(names["setuptools"].split(".")[0]) < 74
    assert int(names.get("cmake", "3").split(".")[0]) < 4
    assert {"mkl-static", "mkl-include"} <= set(names) or plan.options["blas"] != "mkl"
    assert not {"mkl", "mkl-devel"} & set(names), "they hold the import libraries that FindMKL would prefer"
