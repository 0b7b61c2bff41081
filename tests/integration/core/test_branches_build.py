"""Every build of the eight branches has a plan and renders; what its place of building must have is
in them.
"""

import json
import subprocess
from collections import Counter
from types import SimpleNamespace

import pytest

from farm import catalog
from farm.base.errors import NoRunnerError, UsageError
from farm.engines.emulators import emulates
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request, resolve
from farm.plan.settings import load_settings
from farm.plan.variant import Variant
from farm.run.run import submit
from farm.run.workspace import Watcher, Workspace

BASES = {"py311": "debian-bookworm", "py312": "ubuntu-noble", "py313": "debian-trixie"}


def plan_of(root, build) -> Plan:
    options = {"cuda": (build.cuda, "--cuda")} if build.cuda else {}
    return resolve(
        root, BuildRequest(build.variant, build.package, build.platform, build.channel, options)
    )


@pytest.fixture(scope="module")
def every(root):
    matrix = load_matrix(root)
    branches = [
        name
        for name in matrix.channels
        if not name.startswith(("kepler", "debian", "legacy", "rtx50", "cuda13", "windows"))
    ]
    builds = [build for name in branches for build in matrix.builds(name)]
    return [(build, plan_of(root, build)) for build in builds]


def named(every, channel, alias) -> Plan:
    return next(plan for build, plan in every if (build.channel, build.alias) == (channel, alias))


def test_all_699_have_a_plan_that_renders(root, every):
    assert len(every) == 699
    for build, plan in every:
        rendered = render(root, plan)
        assert bool(rendered.image) == (build.platform == "linux")
        program = 'run_build.py" --wheel' if build.platform == "linux" else "-m build --wheel"
        assert program in rendered.job["build.sh"]
        assert json.loads(rendered.job["plan.json"])["digest"] == plan.digest
    assert (
        len({(plan.channel, plan.package, plan.version, plan.variant) for _, plan in every}) == 699
    )


def test_base_and_compiler_fit_python_cuda_and_cpu(every):
    for build, plan in every:
        if build.platform != "linux":
            assert (plan.base, plan.env["CC"], plan.apt) == (None, "clang", [])
            continue
        assert plan.base == BASES[build.variant.python]
        gcc = int(plan.env["CC"].removeprefix("gcc-"))
        assert gcc in catalog.debian_releases()[plan.base].gccs
        assert build.cuda is None or gcc <= catalog.toolkits()[build.cuda].gcc_max
        assert f"g++-{gcc}" in plan.apt
        if build.variant.cpu == "armv9":
            assert gcc >= 12


def test_machines_and_their_archives(every):
    assert Counter(plan.machine for _, plan in every)["arm64"] == 8
    for build, plan in every:
        urls = [archive.url for archive in plan.toolkit.archives] if plan.toolkit else []
        assert bool(urls) == bool(build.cuda)
        ours, other = (
            ("linux-sbsa", "linux-x86_64")
            if plan.machine == "aarch64"
            else ("linux-x86_64", "linux-sbsa")
        )
        assert all(ours in url and other not in url for url in urls)
        if plan.toolkit and plan.toolkit.cuda == "13.0":
            assert {"cuda_nvcc", "cuda_crt", "libnvvm"} <= {
                a.component for a in plan.toolkit.archives
            }


def test_switches_follow_cpu_gpu_and_machine(every):
    def on(channel, alias):
        plan = named(every, channel, alias)
        names = [name for name in catalog.switches() if name in plan.env]
        assert all(plan.origins[f"env.{name}"] for name in names)
        return {name.removeprefix("USE_") for name in names if plan.env[name] == "1"}

    everywhere = {"DISTRIBUTED", "GLOO", "TENSORPIPE", "KINETO", "XNNPACK", "PYTORCH_QNNPACK"}
    linux = everywhere | {"MKLDNN"}
    card = linux | {"ITT", "NCCL", "MEM_EFF_ATTENTION"}
    assert on("main", "pytorch-python313-cuda12_8-sm61-avx") == card
    assert on("main", "pytorch-python313-cuda12_8-sm75-avx2") == card | {"FBGEMM", "NNPACK"}
    assert on("main", "pytorch-python313-cuda12_8-sm80-avx2") == card | {
        "FBGEMM",
        "NNPACK",
        "FLASH_ATTENTION",
    }
    assert on("main", "pytorch-python313-cpu-armv9") == linux | {"NNPACK"}
    assert on("main", "pytorch-python313-darwin-mps") == everywhere | {"NNPACK"}


def test_cudnn_is_off_where_the_channel_says(every):
    plan = named(every, "pytorch-2.9-python311", "pytorch-python311-cuda12_9-sm70-avx")
    assert (plan.env["USE_CUDNN"], plan.options["cudnn"]) == ("0", None)
    assert "cudnn" not in {archive.component for archive in plan.toolkit.archives}


def test_companions_name_the_torch_of_their_variant(root, every):
    torch = named(every, "main", "pytorch-python313-cuda12_8-sm61-avx")
    for package, version in (("torchvision", "0.23.0"), ("torchaudio", "2.8.0")):
        plan = named(every, "main", f"{package}-python313-cuda12_8-sm61-avx")
        assert plan.version == f"{version}+cu128.sm61.avx"
        assert plan.source.tag == f"v{version}"
        assert plan.needs == [f"torch=={torch.version}"]
        assert f"torch=={torch.version}" in plan.requires
        assert (
            f'/needs/site" torch=={torch.version} nvidia-nccl-cu12==2.27.5\n'
            in render(root, plan).job["build.sh"]
        )


def test_a_companion_without_a_known_commit_is_refused(root, monkeypatch):
    release = catalog.torch_releases()["2.6.0"].model_copy(update={"vision_commit": None})
    monkeypatch.setitem(catalog.torch_releases(), "2.6.0", release)
    request = BuildRequest(
        Variant.parse("sm61-avx-py311"),
        "torchvision",
        channel="pytorch-2.8-python311",
        options={"torch": ("2.6.0", "")},
    )
    found = check_request(root, request)
    assert [reason.rule for reason in found.offer] == ["source"]
    assert not found.buildable


def test_kepler_keeps_gcc_11_and_onednn(root):
    for channel, package in (("kepler-debian", "canary"), ("kepler-2.0.1", "torch")):
        plan = resolve(
            root, BuildRequest(Variant.parse("sm35-avx-py311"), package, channel=channel)
        )
        assert (plan.base, plan.env["CC"]) == ("debian-bookworm", "gcc-11")
    assert plan.env["USE_MKLDNN"] == "1"
    assert plan.origins["env.USE_MKLDNN"] == "rules: nothing against it"


@pytest.mark.parametrize(
    ("alias", "error", "text"),
    [
        (
            "torchvision-python313-cuda12_8-sm61-avx",
            UsageError,
            r"built against torch==2\.8\.0\+cu128\.sm61\.avx, and the index has no such wheel",
        ),
        ("pytorch-python313-darwin-mps", NoRunnerError, "the docker engine cannot run macos jobs"),
    ],
)
def test_submit_refuses_what_it_cannot_do(project, every, alias, error, text):
    workspace = Workspace(project, load_settings(project), Watcher())
    with pytest.raises(error, match=text):
        submit(workspace, named(every, "main", alias))


@pytest.mark.parametrize(("spelling", "machine"), [("x86_64", "x86_64"), ("arm64", "aarch64")])
def test_an_engine_of_the_same_machine_emulates_nothing(spelling, machine):
    assert not emulates(SimpleNamespace(info=lambda: {"Architecture": spelling}), machine)


SOURCES = """\
Types: deb
Components: main universe restricted multiverse
"""


@pytest.mark.parametrize(
    ("system", "expected"),
    [("ubuntu", "main universe restricted multiverse"), ("debian", "main contrib non-free")],
)
def test_only_debian_gets_debians_sections(root, tmp_path, system, expected):
    (tmp_path / "os-release").write_text(f"ID={system}\n")
    (tmp_path / "sources.list.d").mkdir()
    sources = tmp_path / "sources.list.d" / "x.sources"
    sources.write_text(SOURCES)
    text = (root / "dockerfiles" / "scripts" / "apt_sections.sh").read_text()
    here = text.replace("/etc/os-release", "./os-release").replace("/etc/apt", ".")
    subprocess.run(["sh", "-c", here], check=True, cwd=tmp_path)
    assert f"Components: {expected}\n" in sources.read_text()


@pytest.mark.parametrize(
    ("channel", "branch"),
    [
        ("windows-2.8.0", "main"),
        ("windows-2.9.1", "pytorch-2.9-python313"),
        ("windows-2.10.0", "pytorch-2.10-python313"),
    ],
)
def test_a_branch_on_windows_is_the_branch_by_one_rule(root, channel, branch):
    """Its release, CUDA and GPUs; the CPU levels that MSVC has a switch for; three Pythons, Visual
    Studio 2022.
    """

    def offered(name):
        builds = load_matrix(root).builds(name)
        return [
            build
            for build in builds
            if build.package == "torch" and build.variant.machine == "x86_64"
        ]

    theirs = {(build.variant.gpu, build.variant.cpu, build.cuda) for build in offered(branch)}
    theirs = {
        key for key in theirs if key[0] != "sm121" and key[1] in ("avx", "avx2", "avx512")
    }  # sm121: beside Arm
    ours = offered(channel)
    assert {(build.variant.gpu, build.variant.cpu, build.cuda) for build in ours} == theirs
    assert {build.variant.python for build in ours} == {"py311", "py312", "py313"}
    for build in ours:
        plan = plan_of(root, build)
        assert (plan.windows.visual_studio, plan.windows.toolset, plan.options["blas"]) == (
            "2022",
            "14.42",
            "mkl",
        )
        assert "-m build --wheel" in render(root, plan).job["build.cmd"]
