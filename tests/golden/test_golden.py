"""Rendered files of four builds, to be read by a person when they change, and the matrix in
numbers.

`pytest tests/golden --update-golden` writes them anew. Scripts that are copied as they are stay
out.
"""

import difflib
import hashlib
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from farm.base.text import json_lines
from farm.plan.channel import Build
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.platforms.linux import COMMON_SCRIPTS, PYTHON_SCRIPTS, TOOLKIT_SCRIPTS
from farm.plan.platforms.linux import JOB_SCRIPTS as LINUX_JOB_SCRIPTS
from farm.plan.platforms.windows import JOB_SCRIPTS, SCRIPTS
from farm.plan.platforms.windows import TOOLKIT_SCRIPTS as WINDOWS_TOOLKIT
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOOLKITS = {name for names in TOOLKIT_SCRIPTS.values() for name in names}
WINDOWS_SCRIPTS = (*SCRIPTS, *WINDOWS_TOOLKIT)
COPIED = {
    f"scripts/{name}" for name in (*COMMON_SCRIPTS, *PYTHON_SCRIPTS, *TOOLKITS, *WINDOWS_SCRIPTS)
}
MODULES = {"causes.py", "text.py"}  # of farm.base
COPIED_IMAGE = COPIED | {f"scripts/{name}" for name in MODULES}
COPIED_JOB = {*WINDOWS_SCRIPTS, *JOB_SCRIPTS, *LINUX_JOB_SCRIPTS, *MODULES, "causes.json"}
BRANCHES = {
    "torch-sm120-avx512": ("main", "pytorch-python313-cuda12_8-sm120-avx512"),
    "torch-sm121-armv9": ("pytorch-2.10-python313", "pytorch-python313-cuda13_0-sm121-armv9"),
    "torch-cpu-avx2": ("pytorch-2.8-python312", "pytorch-python312-cpu-avx2"),
    "torch-mps": ("main", "pytorch-python313-darwin-mps"),
    "torch-sm70-avx": ("pytorch-2.9-python311", "pytorch-python311-cuda12_9-sm70-avx"),
    "torchvision-sm61-avx": ("main", "torchvision-python313-cuda12_8-sm61-avx"),
}
SHOWN = ("FBGEMM", "MKLDNN", "NNPACK", "FLASH_ATTENTION", "MEM_EFF_ATTENTION", "MPS")


def selectors(build: Build) -> BuildRequest:
    options = {"cuda": (build.cuda, "--cuda")} if build.cuda else {}
    return BuildRequest(build.variant, build.package, build.platform, build.channel, options)


def by_alias(channel: str, alias: str) -> BuildRequest:
    return next(
        selectors(build) for build in load_matrix(ROOT).builds(channel) if build.alias == alias
    )


def windows(variant: str, channel: str, package: str = "torch") -> BuildRequest:
    return BuildRequest(Variant.parse(variant), package, "windows", channel)


CASES = {
    "canary-sm35-avx": BuildRequest(Variant.parse("sm35-avx-py311"), "canary"),
    "canary-cpu-avx": BuildRequest(Variant.parse("cpu-avx-py311"), "canary"),
    "canary-py314t": BuildRequest(
        Variant.parse("sm120-avx2-py314t"), "canary", channel="cuda13-wheels"
    ),
    "canary-windows": windows("sm35-avx-py311", "kepler-2.0.1", "canary"),
    "torch-sm35-avx": BuildRequest(
        Variant.parse("sm35-avx-py311"), "torch", channel="kepler-2.0.1"
    ),
    "canary-sm120-wheels": BuildRequest(
        Variant.parse("sm120-avx2-py311"), "canary", channel="cuda13-wheels"
    ),
    "torch-debian": BuildRequest(Variant.parse("sm35-avx-py311"), "torch", channel="debian-1.13.1"),
    "torch-debian-cu124": BuildRequest(
        Variant.parse("sm90-avx512-py313"), "torch", channel="debian-2.6.0-cu124"
    ),
    "torchvision-debian": BuildRequest(
        Variant.parse("sm35-avx-py311"), "torchvision", channel="debian-2.6.0"
    ),
    "torchaudio-debian": BuildRequest(
        Variant.parse("sm35-avx-py311"), "torchaudio", channel="debian-2.6.0"
    ),
    "torch-windows-2.0.1": windows("sm35-avx-py311", "kepler-2.0.1"),
    "torch-windows-2.7.1": windows("sm35-avx-py311", "kepler-2.7.1"),
    "torch-windows-compat": windows("legacy-sse41-py310", "kepler-compat"),
    "torch-windows-rtx50": windows("sm120-avx2-py311", "rtx50-windows"),
    "torch-windows-cuda13": windows("sm120-avx2-py313", "windows-2.10.0"),
    "torchaudio-windows": windows("sm35-avx-py39", "kepler-2.0.1", "torchaudio"),
} | {case: by_alias(*names) for case, names in BRANCHES.items()}


MAIN = "torch"
GOLDEN = {
    MAIN: BuildRequest(Variant.parse("sm35-avx-py311"), "torch", channel="debian-2.6.0"),
    "canary": CASES["canary-sm35-avx"],
    "torch-windows": CASES["torch-windows-2.0.1"],
    "torchvision": CASES["torchvision-debian"],
}
SAMPLE = 20


def rendered(case: str) -> tuple[Plan, dict[str, str]]:
    plan = resolve(ROOT, CASES[case])
    return plan, written(plan)


def written(plan: Plan) -> dict[str, str]:
    """The files of a plan's image and job that are not copied as they are."""
    texts = render(ROOT, plan)
    image = {
        f"image/{name}": text for name, text in texts.image.items() if name not in COPIED_IMAGE
    }
    job = {
        name: text
        for name, text in texts.job.items()
        if name not in COPIED_JOB and not name.startswith("source/")
    }
    return image | {f"job/{name}": text for name, text in job.items()}


def golden_files() -> dict[str, str]:
    """The golden files as they should be, by path. Digests are left out: they change with what they
    are of.
    """
    found, first = {"builds.txt": listing()}, dict[str, str]()
    for case, chosen in GOLDEN.items():
        plan = resolve(ROOT, chosen)
        files = written(plan)
        same = {
            name
            for name in files
            if files.get("image/scripts/" + name.removeprefix("job/")) == files[name]
        }
        # A toolkit's manifest is what the catalogue has for the plan's components: one of each
        # provider is shown.
        if plan.toolkit and first.setdefault(plan.toolkit.provider, case) != case:
            files.pop("image/scripts/toolkit.json")
        files["job/plan.json"] = json_lines(alone_in_the_plan(plan))
        for name in files.keys() - {name for name in same if name.startswith("job/")}:
            text = files[name].replace(plan.digest, "DIGEST").replace(plan.digest[:12], "DIGEST")
            text = re.sub(r"farm/toolchain:[0-9a-f]{16}", "farm/toolchain:DIGEST", text)
            found[f"{case}/{name}"] = re.sub(r"\b[0-9a-f]{64}\b", "SHA256", text)
    return found


def alone_in_the_plan(plan: Plan) -> dict[str, object]:
    """What of a plan no other golden file shows: scripts have its variables and packages, the first
    plan its own.
    """
    elsewhere = {"env", "apt", "toolkit", "windows", "origins"}
    data, shown = json.loads(plan.to_json()), json.loads(resolve(ROOT, GOLDEN[MAIN]).to_json())
    repeated = {name for name in data if plan.package != "torch" and shown.get(name) == data[name]}
    origins = {name: text for name, text in data["origins"].items() if not name.startswith("env.")}
    own = {name: value for name, value in data.items() if name not in elsewhere | repeated} | {
        "origins": origins
    }
    return filled(own)


def filled(value: Any) -> Any:
    """The value without keys that hold nothing."""
    if isinstance(value, list):
        return [filled(each) for each in value]
    if isinstance(value, dict):
        return {name: filled(each) for name, each in value.items() if each not in (None, [], {})}
    return value


def listing() -> str:
    """How many builds each channel has of each package, and a sample of those of the released
    stacks.
    """
    matrix, lines, released = load_matrix(ROOT), [], {}
    for channel in matrix.channels:
        builds = list(matrix.builds(channel))
        counts = Counter(f"{build.package} {build.platform}" for build in builds)
        lines += [f"{channel}: {name}: {count}" for name, count in sorted(counts.items())]
        released |= (
            {}
            if channel.startswith("kepler")
            else {(channel, build.alias): build for build in builds}
        )
    # By a hash of their names: builds that are added or go leave the others in their places.
    sample = sorted(released, key=lambda name: hashlib.sha256(" ".join(name).encode()).digest())[
        :SAMPLE
    ]
    return "\n".join([*lines, *(described(released[name]) for name in sorted(sample))]) + "\n"


def described(build: Build) -> str:
    """A build's line: where it is built, for what, and with which switches."""
    plan = resolve(ROOT, selectors(build))
    on = [name.lower() for name in SHOWN if plan.env.get(f"USE_{name}") == "1"]
    words = [
        build.channel,
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
    return "  ".join(words)


def test_rendered_text_is_the_golden_text(request):
    now = golden_files()
    if request.config.getoption("--update-golden", default=False):
        for case in GOLDEN:
            shutil.rmtree(HERE / case, ignore_errors=True)
        for name, text in now.items():
            (HERE / name).parent.mkdir(parents=True, exist_ok=True)
            (HERE / name).write_bytes(text.encode())
        pytest.skip(f"{len(now)} golden files written: read what changed before you commit it")
    golden = {
        path.relative_to(HERE).as_posix(): path.read_bytes().decode()
        for path in (
            HERE / "builds.txt",
            *(path for case in GOLDEN for path in (HERE / case).rglob("*")),
        )
        if path.is_file()
    }
    assert sorted(now) == sorted(golden)
    different = [
        line
        for name in sorted(now)
        for line in difflib.unified_diff(
            golden[name].splitlines(), now[name].splitlines(), f"golden/{name}", "now", n=1
        )
    ]
    assert not different, "if this is wanted: pytest tests/golden --update-golden\n" + "\n".join(
        different
    )
    assert now == golden


@pytest.mark.parametrize("case", CASES)
def test_copied_scripts_are_those_of_the_project(case):
    plan, _ = rendered(case)
    texts = render(ROOT, plan)
    image, copied = (
        texts.image,
        {name: text for name, text in texts.job.items() if name in LINUX_JOB_SCRIPTS},
    )
    scripts = {name for name in image if name in COPIED}
    if plan.platform == "macos":
        assert not image
        return
    expected = SCRIPTS if plan.platform == "windows" else COMMON_SCRIPTS
    assert {f"scripts/{name}" for name in expected} <= scripts
    copied |= {name.removeprefix("scripts/"): image[name] for name in scripts}
    assert ("run_build.py" in copied) == (plan.platform == "linux")
    for name, text in copied.items():
        assert text.encode() == (ROOT / "dockerfiles/scripts" / name).read_bytes()
    for name in MODULES & {*texts.job}:
        assert texts.job[name].encode() == (ROOT / "farm/base" / name).read_bytes()
    assert "text.py" in texts.job


@pytest.mark.parametrize("case", CASES)
def test_the_same_plan_gives_the_same_bytes(case, tmp_path):
    plan, _ = rendered(case)
    files = [render(ROOT, plan).write(tmp_path / name) for name in ("one", "two")]
    assert [p.read_bytes() for p in files[0]] == [p.read_bytes() for p in files[1]]
    for path in files[0]:
        text = path.read_bytes()
        ends = (
            text.count(b"\n") if path.suffix == ".cmd" else 0
        )  # cmd misses labels in files without CRLF
        assert (text.count(b"\r\n"), text.count(b"\r")) == (ends, ends), path


@pytest.mark.parametrize("case", CASES)
def test_shells_read_the_scripts(case, tmp_path):
    """`-n`: parsed, not run."""
    plan, _ = rendered(case)
    if plan.platform == "windows":
        return  # cmd cannot parse alone: tests/e2e/wine/test_windows_build.py runs them
    render(ROOT, plan).write(tmp_path)
    scripts = [
        ("bash", tmp_path / "job/build.sh"),
        *(("sh", path) for path in tmp_path.glob("image/scripts/*.sh")),
    ]
    for shell, path in scripts:
        answer = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("case", [case for case in CASES if "windows" in case])
def test_a_windows_dockerfile_begins_with_its_escape_character(case):
    """Docker reads the directive on the first line alone; a comment before it makes the backslash
    the escape.
    """
    _, texts = rendered(case)
    assert texts["image/Dockerfile"].startswith("# escape=`\n")
    instructions = [
        line for line in texts["image/Dockerfile"].splitlines() if line and not line.startswith("#")
    ]
    assert not [
        line
        for line in instructions
        if line.startswith(("ENV", "ADD")) or "--mount" in line or "<<" in line
    ]
    assert not [line for line in instructions if line.endswith("`")], "each RUN is one line"


@pytest.mark.parametrize("case", [case for case in CASES if "windows" in case])
def test_every_download_of_a_windows_build_is_pinned(case):
    plan, texts = rendered(case)
    install = texts["image/scripts/visual_studio.cmd"] + texts["image/scripts/install.cmd"]
    assert install.count('set "FARM_URL=https://') == install.count('set "FARM_SHA256=') == 3
    for line in texts["job/requirements.txt"].splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+ --hash=sha256:[0-9a-f]{64}", line)
    names = {
        line.split("==")[0]: line.split("==")[1].split()[0]
        for line in texts["job/requirements.txt"].splitlines()
    }
    assert int(names["setuptools"].split(".")[0]) < 74
    assert int(names.get("cmake", "3").split(".")[0]) < 4
    assert {"mkl-static", "mkl-include"} <= set(names) or plan.options["blas"] != "mkl"
    assert not {"mkl", "mkl-devel"} & set(names), (
        "they hold the import libraries that FindMKL would prefer"
    )
