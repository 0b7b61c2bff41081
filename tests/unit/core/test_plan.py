"""Plans: resolved, with the origin of every value, content-addressed, read back, and safe to
render.
"""

import json
import os
import subprocess
from dataclasses import replace

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version

from farm import catalog
from farm.base.errors import NotBuildableError, UsageError
from farm.base.hashes import tree_digest
from farm.plan.build_variables import wheel_version
from farm.plan.file import MAX_PLAN_BYTES, Plan
from farm.plan.options import Choice, from_environment
from farm.plan.recipe import names
from farm.plan.render import render
from farm.plan.request import BuildRequest, changed
from farm.plan.resolve import check_request, resolve
from farm.plan.variant import PYTHONS, Variant, cpu_words, gpu_words
from tests.plans import plan_of


def select(variant, package="canary", channel=None, options=None, **overrides):
    options = {name: (value, f"--{name}") for name, value in overrides.items()} | (options or {})
    return BuildRequest(
        variant=Variant.parse(variant), package=package, channel=channel, options=options
    )


WORDS = st.sampled_from(["", "x", "11.8", "12.8", "1\n2", "$(x)", "{version}", "☃", "9" * 50])
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "cuda": st.sampled_from([*catalog.toolkits()]) | WORDS,
        "toolkit": st.sampled_from(["debian", "nvidia", "wheels"]) | WORDS,
        "torch": st.sampled_from([*catalog.torch_releases()]) | WORDS,
        "cudnn": st.sampled_from([*catalog.cudnn_releases()]) | WORDS,
        "blas": st.sampled_from(["mkl", "openblas"]) | WORDS,
        "ptx": st.booleans() | WORDS,
        "rebuild": st.integers() | WORDS | st.booleans(),
    },
)


@given(
    gpu=st.sampled_from(gpu_words()),
    cpu=st.sampled_from(cpu_words()),
    python=st.sampled_from(PYTHONS) | st.just("py311"),
    package=st.sampled_from(names()),
    platform=st.sampled_from(["linux", "linux", "linux", "windows", "macos"]),
    channel=st.sampled_from([None, "kepler-debian", "kepler-2.0.1", "no-such"]),
    overrides=OVERRIDES,
)
@example(
    gpu="cpu",
    cpu="sse41",
    python="py311",
    package="torch",
    platform="linux",
    channel=None,
    overrides={},
)
def test_every_combination_gives_a_plan_that_renders_or_says_why_not(
    root, gpu, cpu, python, package, platform, channel, overrides
):
    options = {name: (value, f"--{name}") for name, value in overrides.items()}
    selectors = BuildRequest(Variant(gpu, cpu, python), package, platform, channel, options)
    try:
        plan = resolve(root, selectors)
    except NotBuildableError as error:
        judged = check_request(root, selectors)
        assert not judged.complete
        for reason in judged.reasons_with_nearest():
            assert reason.text
            assert reason.fact
            assert reason.source
            mention = reason.text in str(error)
            assert mention == (reason.severity != "warning")
        return
    except UsageError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
        return
    assert check_request(root, selectors).buildable
    rendered = render(root, plan)
    recipes_own = {name for name in rendered.job if name.startswith("recipe/")}
    own = {
        "build.sh",
        "plan.json",
        "run_build.py",
        "steps.py",
        "text.py",
        "tiers.cmake",
    } | recipes_own
    assert (
        set(rendered.job) >= {"build.cmd", "plan.json"}
        if platform == "windows"
        else set(rendered.job) == own
    )
    assert bool(recipes_own) == (root / "farm/recipes" / plan.recipe / "job").is_dir()
    assert Version(plan.version).local
    assert set(plan.origins) == {
        "channel",
        *plan.options,
        *(f"env.{key}" for key in plan.env),
        *["python"] * bool(plan.python),
    }


# --- origins ---


def test_every_source_of_an_option_is_recorded_as_its_origin(project, farm):
    config = project / "ci" / "farm.yaml"
    raw = yaml.safe_load(config.read_text())
    raw["options"] = {"cuda": "11.8", "cudnn": "8.7.0", "blas": "mkl"}
    config.write_text(yaml.safe_dump(raw))
    line = config.read_text().splitlines().index("  cuda: '11.8'") + 1
    answer = farm(
        "--project", project, "plan", "--variant", "sm35-avx-py311", "--channel", "kepler-2.0.1",
        "--blas", "openblas", "--json",
        env={"FARM_CUDNN": "8.7.0", "FARM_BLAS": "mkl"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    plan = json.loads(answer.stdout)
    options = {name: (plan["options"][name], plan["origins"][name]) for name in plan["options"]}
    assert options == {
        "torch": ("2.0.1", "channel kepler-2.0.1"),
        "toolkit": ("nvidia", "channel kepler-2.0.1"),
        "cuda": ("11.8", f"ci/farm.yaml:{line}"),
        "cudnn": ("8.7.0", "environment FARM_CUDNN"),
        "blas": ("openblas", "--blas"),
    }
    assert plan["origins"]["channel"] == "--channel"
    assert plan["origins"]["env.CFLAGS"] == "variant: avx"
    assert plan["origins"]["env.BLAS"] == "recipe torch"
    answer = farm("plan", "--variant", "sm35-avx-py311", env={"FARM_CUDA": "12"})
    assert (
        "sm35-avx-py311 with cuda 12.9 (from environment FARM_CUDA) cannot be built"
        in answer.stderr
    )


def test_what_does_not_concern_a_package_is_left_out_of_its_plan(root):
    given = {
        name: Choice(value, "ci/farm.yaml")
        for name, value in (("torch", "2.0.1"), ("cudnn", "8.9.7"))
    }
    result = resolve(
        root,
        replace(select("sm35-avx-py311"), options={**given, "blas": Choice("mkl", "ci/farm.yaml")}),
    )
    plain = resolve(root, select("sm35-avx-py311"))
    assert result.version == "0.1.0+cu118.sm35.avx"
    assert result.digest == plain.digest
    assert {result.origins[name] for name in ("torch", "cudnn", "blas")} == {"recipe canary"}
    of_file = {
        "cuda": Choice("11.4", "ci/farm.yaml"),
        "ptx": Choice(value=True, origin="ci/farm.yaml"),
    }
    without = resolve(root, replace(select("cpu-avx-py311"), options=of_file))
    assert (without.options["cuda"], without.options["ptx"], without.toolkit) == (None, False, None)
    assert {without.origins[name] for name in ("cuda", "toolkit", "cudnn", "ptx")} == {
        "variant cpu-avx-py311"
    }


def test_a_request_takes_the_options_that_a_refusal_names():
    request = changed(select("sm35-avx-py311"), "--cuda-libraries vendor --no-ptx --cuda 11.8")
    assert request.options == {
        "cuda_libraries": Choice("vendor", "--cuda-libraries"),
        "ptx": Choice(False, "--no-ptx"),
        "cuda": Choice("11.8", "--cuda"),
    }


def test_options_from_the_environment():
    found = from_environment(
        {"FARM_CUDA": " 11.7 ", "FARM_PTX": "1", "FARM_REBUILD": "3", "FARM_BLAS": "", "CUDA": "1"}
    )
    assert found == {
        "cuda": ("11.7", "environment FARM_CUDA"),
        "ptx": (True, "environment FARM_PTX"),
        "rebuild": (3, "environment FARM_REBUILD"),
    }


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FARM_PTX", "yes"),
        ("FARM_REBUILD", "-1"),
        ("FARM_REBUILD", "٣"),
        ("FARM_REBUILD", "9" * 5000),
    ],
)
def test_a_wrong_value_in_the_environment_names_the_variable(variable, value):
    with pytest.raises(UsageError, match=variable):
        from_environment({variable: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cuda": 12}, "cuda = 12 (from --cuda): expected text in quotes"),
        ({"ptx": "yes"}, "ptx = 'yes' (from --ptx): expected true or false"),
        ({"rebuild": True}, "rebuild = True (from --rebuild): expected a whole number"),
        ({"rebuild": -1}, "rebuild = -1 (from --rebuild): expected 0 to 9999"),
        ({"rebuild": 10**6}, "rebuild = 1000000 (from --rebuild): expected 0 to 9999"),
    ],
)
def test_a_value_of_the_wrong_kind_is_a_usage_error(root, options, message):
    with pytest.raises(UsageError) as caught:
        resolve(root, select("sm35-avx-py311", **options))
    assert str(caught.value) == message


# --- versions and arch lists ---


@pytest.mark.parametrize(
    ("cuda", "variant", "rebuild", "version"),
    [
        ("11.8", "sm35-avx-py311", 0, "0.1.0+cu118.sm35.avx"),
        ("11.8", "sm35-avx-py311", 2, "0.1.0+cu118.sm35.avx.2"),
        (None, "cpu-avx-py311", 0, "0.1.0+cpu.avx"),
        (None, "mps-arm64-py311", 0, "0.1.0+mps.arm64"),
        ("12.8", "legacy-avx512bf16-py311", 0, "0.1.0+cu128.legacy.avx512bf16"),
        (None, "cpu-armv8_2-py311", 1, "0.1.0+cpu.armv8.2.1"),
    ],
)
def test_wheel_versions(cuda, variant, rebuild, version):
    assert wheel_version("0.1.0", cuda, Variant.parse(variant), rebuild) == version
    assert str(Version(version)) == version  # PEP 440, and already in its normal form


def test_what_the_wheel_promises(root):
    plan = resolve(root, select("kepler-avx-py311", "torch", channel="kepler-2.0.1", ptx=True))
    assert (plan.verify.sass, plan.verify.ptx, plan.verify.cpu) == ((35, 37), (37,), "avx")
    assert plan.verify.python == "cp311"
    assert plan.env["TORCH_CUDA_ARCH_LIST"] == "3.5;3.7+PTX"
    assert plan.env["PYTORCH_BUILD_VERSION"] == "2.0.1+cu117.kepler.avx"
    assert plan.env["CFLAGS"] == plan.env["CXXFLAGS"] == "-mavx"
    assert plan.tiers_off == ["AVX2", "AVX512"]
    assert (plan.source.kind, plan.source.tag) == ("git", "v2.0.1")


# --- digest, file ---


def test_a_rule_of_verify_does_not_orphan_what_was_built(root):
    plan = resolve(root, select("sm35-avx-py311"))
    held = plan.verify.model_copy(update={"direct_urls": True, "numpy": "<9"})
    assert plan.model_copy(update={"verify": held}).digest == plan.digest
    assert plan.model_copy(update={"env": {**plan.env, "NEW": "1"}}).digest != plan.digest


def test_the_digest_follows_the_content_and_not_the_origins(root):
    by_default = resolve(root, select("sm35-avx-py311"))
    by_option = resolve(
        root, select("sm35-avx-py311", channel="kepler-debian", cuda="11.8", ptx=False)
    )
    assert by_default.origins != by_option.origins
    assert by_default.digest == by_option.digest
    others = [
        resolve(root, select("sm37-avx-py311")),
        resolve(root, select("sm35-avx2-py311")),
        resolve(root, select("sm35-avx-py311", ptx=True)),
        resolve(root, select("sm35-avx-py311", rebuild=1)),
        resolve(root, select("sm35-avx-py311", channel="kepler-2.0.1")),
        by_default.model_copy(update={"timeout_minutes": 16}),
        by_default.model_copy(update={"env": {**by_default.env, "X": "1"}}),
    ]
    assert len({by_default.digest, *(plan.digest for plan in others)}) == 8


def test_the_image_is_shared_by_variants_of_one_toolkit(root):
    def image(*args, **kwargs):
        return render(root, resolve(root, select(*args, **kwargs))).image_digest

    assert (
        image("sm35-avx-py311")
        == image("sm75-avx512-py311")
        == image("legacy-sse41-py311", rebuild=1)
    )
    different = {
        image("sm35-avx-py311"),
        image("cpu-avx-py311"),
        image("sm35-avx-py311", channel="kepler-2.0.1"),
        image("sm35-avx-py311", "torch"),
    }
    assert len(different) == 4


@pytest.fixture
def plan(root):
    return resolve(root, select("sm35-avx-py311"))


def test_a_plan_is_read_back(root, tmp_path):
    for package in ("canary", "torch"):
        made = resolve(root, select("sm35-avx-py311", package))
        path = tmp_path / f"{package}.json"
        path.write_text(made.to_json())
        assert Plan.read(path).to_json() == made.to_json()


def test_a_changed_plan_is_refused(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json().replace('"-mavx"', '"-mavx2"'))
    with pytest.raises(UsageError, match=r"plan\.json: its content and its digest differ"):
        Plan.read(path)
    data = json.loads(plan.to_json())
    del data["digest"]
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="digest differ"):
        Plan.read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'"x"',
        b"1",
        b"null",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"schema": 2}',
        b" " * (MAX_PLAN_BYTES + 1),
    ],
    ids=["empty", "list", "text", "number", "null", "object", "bytes", "deep", "schema", "large"],
)
def test_a_file_that_is_not_a_plan_is_refused(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"plan\.json: (not a plan|larger than)"):
        Plan.read(path)
    with pytest.raises(UsageError, match="cannot be read"):
        Plan.read(tmp_path / "absent.json")


def test_a_plan_of_another_version_of_the_farm_says_what_to_do(root, tmp_path):
    selectors = BuildRequest(Variant.parse("sm35-avx-py311"), "torch", "windows", "kepler-2.0.1")
    older = json.loads(resolve(root, selectors).to_json())
    del older["windows"]["openmp"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(older))
    with pytest.raises(UsageError, match=r"windows\.openmp: this key is missing") as caught:
        Plan.read(path)
    assert "make it again" in caught.value.hint


LINE = "x\nRUN touch /owned"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["apt"].append("cmake; touch /owned"),
        lambda d: d["apt"].append("-oAPT::Update::Pre-Invoke::=sh"),
        lambda d: d["apt"].append("Cmake"),
        lambda d: d["env"].update({"A\nB": "1"}),
        lambda d: d["env"].update({"A; touch /owned": "1"}),
        lambda d: d["env"].update({"A": LINE}),
        lambda d: d["env"].update({"A": "x\0y"}),
        lambda d: d.update(variant=f"sm35-avx-py311{LINE}"),
        lambda d: d.update(version="1.0$(x)"),
        lambda d: d.update(package="../x"),
        lambda d: d.update(base=LINE),
        lambda d: d.update(tiers_off=["AVX)\nexecute_process(x"]),
        lambda d: d.update(memory_per_job_gb=0),
        lambda d: d.update(memory_per_job_gb=float("nan")),
        lambda d: d.update(timeout_minutes=-1),
        lambda d: d["toolkit"].update(cuda=LINE),
        lambda d: d["toolkit"].update(archives=[{"component": "x"}]),
        lambda d: d.update(source={"kind": "git"}),
        lambda d: d.update(
            source={"kind": "git", "url": "ext::sh -c x", "tag": "v1", "commit": "0" * 40}
        ),
        lambda d: d.update(
            source={
                "kind": "git",
                "url": "https://h/x",
                "tag": "--upload-pack=x",
                "commit": "0" * 40,
            }
        ),
        lambda d: d.update(unknown=1),
    ],
)
def test_a_hostile_plan_is_refused_by_its_shape(plan, tmp_path, change):
    data = json.loads(plan.to_json())
    change(data)
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"not a plan: [a-z]+"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": "windows-95"}, "the catalogue has no 'windows-95'"),
        ({"platform": "windows"}, "no repository to build from on Windows"),
    ],
)
def test_a_plan_of_another_farm_is_refused_when_it_is_rendered(root, plan, change, message):
    with pytest.raises(UsageError, match=message):
        render(root, plan.model_copy(update=change))
    unknown = plan.toolkit.model_copy(update={"cuda": "77.7"})
    with pytest.raises(UsageError, match=r"the catalogue has no '77\.7'"):
        render(root, plan.model_copy(update={"toolkit": unknown}))


def exported(script):
    """The environment after the script's own export lines, by a real shell."""
    lines = [
        line for line in script.split("\n") if line.startswith("export ")
    ]  # a shell ends a line there alone
    assert len(lines) > 3
    out = subprocess.run(
        ["sh", "-c", "\n".join(lines) + "\nexec env -0"],
        env={
            "PATH": os.environ["PATH"],
            "FARM_ROOT": "/farm",
        },  # which the script sets first: paths below it follow
        capture_output=True,
        check=True,
    ).stdout
    return dict(item.split("=", 1) for item in out.decode().split("\0") if item)


TEXT = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc"])
    | st.sampled_from("'\"$`\\;&|<>(){}* #!~"),
    max_size=30,
)


@given(
    values=st.dictionaries(st.from_regex(r"\AA[A-Za-z0-9_]{0,8}\Z"), TEXT, min_size=1, max_size=8)
)
@example(values={"A": "\u2028"})
@example(values={"A": "[masked]"})
@example(values={"A": "/farm/"})
def test_hostile_values_are_only_assigned_by_the_script(root, values):
    made = resolve(root, select("sm35-avx-py311"))
    data = json.loads(made.to_json())
    data["env"] |= values
    del data["digest"]
    plan = Plan.model_validate(data)
    seen = exported(render(root, plan).job["build.sh"])
    assert {key: seen[key] for key in plan.env} == plan.env
    assert set(seen) - set(plan.env) <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "MAX_JOBS", "SOURCE_DATE_EPOCH", "PYTHONDONTWRITEBYTECODE", "FARM_ROOT", "CCACHE_DIR", "CCACHE_NOHASHDIR", "CCACHE_COMPILERCHECK", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS"}  # fmt: skip
    assert seen["MAX_JOBS"] == seen["CMAKE_BUILD_PARALLEL_LEVEL"] == seen["CARGO_BUILD_JOBS"] == "1"


# --- source trees ---


def test_the_digest_of_a_tree_depends_on_names_and_bytes_only(tmp_path):
    def tree(name, files):
        for path, content in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return tree_digest(tmp_path / name)

    one = tree("one", {"a/b": "1", "c": "2"})
    assert one == tree("same", {"c": "2", "a/b": "1", "__pycache__/x.pyc": "junk"})
    others = {"x": {"a/b": "1", "c": "3"}, "y": {"a/c": "1", "c": "2"}, "z": {"a": "b1", "c": "2"}}
    assert len({one, *(tree(name, files) for name, files in others.items())}) == 4


@pytest.mark.parametrize(
    ("variant", "nearest"),
    [
        ("sm120-avx2-py311", "--channel pytorch-2.9-python311, or --platform windows"),
        ("sm35-avx-py311", "--channel debian-2.6.0"),  # rtx50-windows has nothing for it at all
    ],
)
def test_a_channel_of_another_platform_is_advised_with_what_can_be_planned(root, variant, nearest):
    selectors = BuildRequest(Variant.parse(variant), "torch", "linux", "rtx50-windows")
    with pytest.raises(
        NotBuildableError, match="torch in rtx50-windows is not built for linux"
    ) as caught:
        resolve(root, selectors)
    assert caught.value.hint == f"nearest that can: {nearest}"


def test_without_a_channel_the_first_that_offers_the_variant_is_taken(project):
    path = project / "ci" / "matrix.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["channels"]["kepler-debian"]["cpus"] = ["avx2"]
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    chosen = {
        name: resolve(project, select(f"sm35-{name}-py311")).channel
        for name in ("avx", "avx2", "avx512vnni")
    }
    assert chosen == {"avx": "kepler-2.0.1", "avx2": "kepler-debian", "avx512vnni": "kepler-debian"}
    assert (
        plan_of("sm35-avx-py311", "canary", platform="windows", project=project).channel
        == "kepler-2.0.1"
    )
    with pytest.raises(NotBuildableError, match="canary in kepler-debian is not built for windows"):
        plan_of("sm35-avx2-py311", "canary", "kepler-debian", "windows", project=project)


@pytest.mark.parametrize(
    ("channel", "variant", "platform"),
    [
        ("debian-1.13.1", "cpu-sse41-py311", "linux"),
        ("debian-2.6.0", "sm35-avx-py311", "linux"),
        ("kepler-2.0.1", "sm35-avx-py311", "linux"),
        ("main", "sm90-armv9-py313", "linux"),
        ("kepler-compat", "sm35-sse41-py311", "windows"),
        ("windows-2.8.0", "sm120-avx2-py313", "windows"),
    ],
)
def test_with_openblas_complex_products_go_through_cblas(root, channel, variant, platform):
    """Upstream's CMake does not ask how a named BLAS returns complex numbers: `torch.dot` of them
    was 0.
    """
    selectors = BuildRequest(
        variant=Variant.parse(variant), package="torch", channel=channel, platform=platform
    )
    plan = resolve(root, selectors)
    job = render(root, plan).job
    first = next(
        plan.env[key]
        for key in ("CMAKE_PROJECT_Torch_INCLUDE", "CMAKE_PROJECT_INCLUDE")
        if key in plan.env
    )
    name = first.partition("/job/")[2]
    included = job[name] + (job["tiers.cmake"] if "tiers.cmake)" in job[name] else "")
    assert included.count("set(BLAS_USE_CBLAS_DOT TRUE)") == (plan.env["BLAS"] == "OpenBLAS")
    # Of another build, then: the wheel with the fault must not be taken for what a repeated submit
    # asks for.
    assert (plan.digest != plan.model_copy(update={"cmake": {}}).digest) == (
        plan.env["BLAS"] == "OpenBLAS"
    )


@pytest.mark.parametrize(
    ("channel", "variant", "thin"),
    [
        ("kepler-2.7.1", "sm35-avx-py311", False),
        ("pytorch-2.10-python313", "sm120-avx2-py313", True),
    ],
)
def test_a_torch_from_git_is_packed_as_that_of_debian(channel, variant, thin):
    """Debian's OpenBLAS has no RUNPATH to its libgfortran; what is opened by name keeps its
    name.
    """
    made = plan_of(variant, channel=channel)
    proved = plan_of("sm35-avx-py311", channel="debian-2.6.0")
    for plan in (made, proved):
        assert (plan.repair, plan.opens, plan.exclude) == ("tools", proved.opens, ["libcuda.so.1"])
    assert ("nvidia-cublas" in {wheel.package for wheel in made.library_wheels}) == thin
    assert {"torch.libs/libopenblas*", "torch.libs/libcublasLt*"} <= set(made.verify.dispatching)
    assert "ccache" in made.apt


@pytest.mark.parametrize("package", ["torchvision", "torchaudio"])
def test_companions_from_git_leave_torchs_libraries_to_torch(package):
    made = plan_of("sm35-avx-py311", package, "kepler-2.7.1")
    assert (made.repair, made.exclude) == ("tools", ["libc10*.so", "libtorch*.so"])
    wheels = [wheel.package for wheel in made.build_requires]
    assert wheels == [
        "nvidia-nccl-cu11",
        "typing-extensions",
    ]  # Debian 12's typing-extensions is 4.4
    assert "ccache" in made.apt
    newer = plan_of("sm61-avx-py313", package, "main")
    assert [wheel.package for wheel in newer.build_requires] == [
        "nvidia-nccl-cu12"
    ]  # Debian 13 has 4.13
    windows = plan_of("sm61-avx-py313", package, "windows-2.8.0", "windows")
    assert windows.repair == {"torchvision": "tools", "torchaudio": "beside"}[package]


@pytest.mark.parametrize(
    ("channel", "variant", "below"),
    [
        (
            "kepler-2.7.1",
            "sm35-avx-py311",
            "<2",
        ),  # Debian 12's numpy 1.24, though the release takes numpy 2
        (
            "debian-2.6.0",
            "sm35-avx-py311",
            "<3",
        ),  # the recipe brings numpy 2's headers to the same base
        ("debian-2.6.0", "cpu-sse41-py311", "<2.4"),
        ("pytorch-2.10-python313", "sm120-avx2-py313", "<3"),  # Debian 13's numpy 2
        ("windows-2.8.0", "sm120-avx2-py313", "<3"),  # a pinned wheel of numpy 2
    ],
)
def test_a_wheel_needs_the_numpy_whose_headers_it_was_built_with(channel, variant, below):
    platform = "windows" if channel.startswith("windows") else "linux"
    plan = plan_of(variant, channel=channel, platform=platform)
    assert (plan.requires[0], plan.verify.numpy) == (f"numpy{below}", below)
