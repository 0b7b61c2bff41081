"""What the refresh tool reads of other makers' recipes: small checkouts in the form of the real
ones.

They have the files of conda-forge's feedstock at 74dd3d46 and of Spack's package at 1e8cf059 in
short, with a release to come; the real ones were read once, which printed "nothing new".
"""

import re
import subprocess

import pytest

from farm.plan.compat.other_makers import makers
from tools import other_makers, refresh_catalogue

META = '{% set version = "9.1.0" %}\n'
BUILD_SH = """
if [[ "$OSTYPE" == "darwin"* ]]; then
    export USE_CUDA=0
elif [[ ${cuda_compiler_version} != "None" ]]; then
    PARTS=(
        one
    )
    if [[ "${arm_variant_type}" == "tegra" ]]; then
        export TORCH_CUDA_ARCH_LIST="8.7+PTX"
    else
        case ${cuda_compiler_version} in
            12.[89])
                export TORCH_CUDA_ARCH_LIST="5.0;9.0;12.0+PTX"
                ;;
            13.0)
                if [[ "${target_platform}" == "linux-aarch64" ]]; then
                    export TORCH_CUDA_ARCH_LIST="7.5;8.7;12.0+PTX"
                else
                    export TORCH_CUDA_ARCH_LIST="7.5;12.0+PTX"
                fi
                ;;
            *)
                exit 1
        esac
    fi
else
    export TORCH_CUDA_ARCH_LIST=""
fi
"""
BLD_BAT = """
@REM a comment ( that opens nothing
for /r %%i in (*) do (
    echo %%i
)
if not "%cuda_compiler_version%" == "None" (
    if "%cuda_compiler_version:~0,2%"=="12" (
        set "TORCH_CUDA_ARCH_LIST=5.0;12.0+PTX"
    ) else if "%cuda_compiler_version%" == "13.0" (
        set "TORCH_CUDA_ARCH_LIST=8.0;12.0+PTX"
    ) else (
        exit /b 1
    )
) else (
    set "TORCH_CUDA_ARCH_LIST="
)
"""
BUILDS = [
    ("linux-64", "None", None),
    ("linux-64", "12.9", None),
    ("linux-64", "13.0", None),
    ("linux-aarch64", "12.9", "sbsa"),
    ("linux-aarch64", "12.9", "tegra"),
    ("linux-aarch64", "13.0", "sbsa"),
    ("win-64", "13.0", None),
    ("win-64", "13.3", None),
    ("osx-arm64", "None", None),
]
SPACK = """
class PyTorch(PythonPackage, CudaPackage):
    version("main", branch="main")
    version("9.9.0", tag="v9.9.0", commit="7269437d")
    with default_args(deprecated=True):
        version("9.8.1", tag="v9.8.1")
        version("2.8.0", tag="v2.8.0")
    with default_args(type=("build", "link", "run")):
        depends_on("cuda@12.6:", when="@9.9:+cuda")
        depends_on("cuda@11:", when="@2.4:+cuda")
    depends_on("cudnn@8.5:9", when="@2.8:+cudnn")
"""


@pytest.fixture
def checkout(tmp_path):
    """Makes a git clone of some files; gives its folder."""

    def make(name, files):
        folder = tmp_path / name
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        git = ("git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x@example.org")
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
            subprocess.run([*git, *words], check=True)
        return folder

    return make


@pytest.fixture
def conda(checkout):
    files = {"recipe/meta.yaml": META, "recipe/build.sh": BUILD_SH, "recipe/bld.bat": BLD_BAT}
    for platform, cuda, arm in BUILDS:
        text = f"target_platform:\n- {platform}\ncuda_compiler_version:\n- '{cuda}'\n"
        text += f"arm_variant_type:\n- {arm}\n" if arm else ""
        for blas in ("mkl", "generic"):
            files[f".ci_support/{platform}_{cuda}_{arm}_{blas}.yaml"] = text
    return checkout("conda", files)


@pytest.fixture
def spack(checkout):
    return checkout("spack", {other_makers.SPACK_PACKAGE: SPACK})


def test_the_gpus_of_each_build_come_out_of_its_branch(conda):
    version, builds = other_makers.conda_builds(other_makers.Checkout(conda))
    gpus = {(build.platform, build.cuda, build.tegra): (build.sm, build.ptx) for build in builds}
    assert version == "9.1.0"
    assert gpus == {
        ("linux-x86_64", "12.9", False): ((50, 90, 120), (120,)),
        ("linux-x86_64", "13.0", False): ((75, 120), (120,)),
        ("linux-aarch64", "12.9", False): ((50, 90, 120), (120,)),
        ("linux-aarch64", "12.9", True): ((87,), (87,)),
        ("linux-aarch64", "13.0", False): ((75, 87, 120), (120,)),
        ("windows-x86_64", "13.0", False): ((80, 120), (120,)),
        ("windows-x86_64", "13.3", False): ((), ()),
    }


def test_what_changed_is_a_patch_with_the_commit_and_the_rest_is_left_to_a_person(conda, capsys):
    assert refresh_catalogue.main(["--checkout", f"conda-forge={conda}", "--check"]) == 1
    output = capsys.readouterr()
    commit = other_makers.Checkout(conda).commit
    added = [line for line in output.out.splitlines() if line.startswith("+ ")]
    jetson = next(line for line in added if "conda-forge for Jetson" in line)
    assert 'torch: "9.1.0"' in jetson
    assert "sm: [87], ptx: [87]" in jetson
    assert any("pytorch=9.1.0=cuda129*" in line and f"commit: {commit}" in line for line in added)
    assert (
        "windows-x86_64, CUDA 13.3: sm , ptx []: recipe/bld.bat leaves its GPUs open" in output.err
    )
    assert "conda-forge, windows-x86_64, CUDA 12.8: is no longer built" in output.err
    assert "pytorch=2.5.1" not in "".join(added)


def test_a_feature_that_a_row_lacks_and_the_recipe_builds_is_named(conda, monkeypatch):
    kinds = makers()
    rows = [
        row.model_copy(update={"lacks": "kineto"}) if row.source == "conda_head" else row
        for row in kinds.makers
    ]
    monkeypatch.setattr(other_makers, "makers", lambda: kinds.model_copy(update={"makers": rows}))
    notes = []
    other_makers.refreshed(
        (refresh_catalogue.FOLDER / "makers.yaml").read_text(), {"conda-forge": conda}, notes.append
    )
    assert any("says that it lacks kineto" in note for note in notes)


def test_spacks_newest_version_for_a_cuda(spack, capsys):
    assert refresh_catalogue.main(["--checkout", f"Spack={spack}", "--check"]) == 1
    output = capsys.readouterr()
    assert re.search(r"^\+  - \{maker: Spack, torch: \"9\.8\.1\"", output.out, re.MULTILINE)
    assert "spack install --deprecated py-torch@9.8.1 +cuda" in output.out
    assert "deprecated: mend" not in output.err


@pytest.mark.parametrize(
    ("version", "span", "inside"),
    [
        ("11.8", "11:", True),
        ("11.8", "12:", False),
        ("12.4", "11:12.3", False),
        ("12.3.1", "11:12.3", True),
        ("1.10.2", "1.10", True),
        ("1.11.0", "1.10", False),
        ("1.13.1", "1.11:1", True),
        ("2.0.0", "1.11:1", False),
        ("2.8.0", ":2.11", True),
    ],
)
def test_ranges_of_spack(version, span, inside):
    assert other_makers.within(version, span) == inside


def test_what_is_no_checkout_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert refresh_catalogue.main(["--checkout", f"Spack={tmp_path / 'empty'}"]) == 2
    assert "empty" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        refresh_catalogue.main(["--checkout", "nobody=."])


def test_each_row_of_a_repository_has_its_commit():
    for row in makers().makers:
        from_a_repository = row.maker.startswith(other_makers.MAKERS)
        assert (row.commit is not None) == from_a_repository
