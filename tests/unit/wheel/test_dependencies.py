"""A wheel that leaves CUDA's libraries to other wheels, as PyTorch's for Linux do with NVIDIA's."""

import pytest

from farm.base.errors import UsageError
from farm.policy.rules import Policy
from farm.wheel.verify import verify

TAG = "cp311-cp311-manylinux_2_17_x86_64"
THEIRS = "nvidia_cublas_cu11-11.11.3.6-py3-none-manylinux_2_17_x86_64.whl"


@pytest.fixture
def thin(tmp_path, make_wheel, make_elf, make_container, make_entry):
    """(verify a wheel that needs libcublas with some RUNPATH, the folder of its dependencies)."""
    folder = tmp_path / "dependencies"

    def blas(*sms, soname="libcublas.so.11"):
        fatbin = b"".join(make_container(make_entry("sass", sm)) for sm in sms)
        elf = make_elf(soname=soname, needed=["libc.so.6"], fatbin=fatbin)
        return make_wheel(
            folder,
            {f"nvidia/cublas/lib/{soname}": elf},
            name="nvidia_cublas_cu11",
            version="11.11.3.6",
            tag="py3-none-manylinux_2_17_x86_64",
        )

    def run(
        runpath="$ORIGIN/../nvidia/cublas/lib",
        requires=("nvidia-cublas-cu11==11.11.3.6",),
        given=None,
        **kwargs,
    ):
        code = make_container(make_entry("sass", 35))
        module = make_elf(needed=["libcublas.so.11", "libc.so.6"], runpath=runpath, fatbin=code)
        path = make_wheel(
            tmp_path / "in", {"canary/_C.so": module}, tag=TAG, requires=list(requires)
        )
        policy = Policy(
            name="canary",
            version="1.0",
            python="cp311",
            platform="linux_x86_64",
            sass=[35],
            **kwargs,
        )
        return verify(path, policy, dependencies=[folder] if given is None else given)

    folder.mkdir()
    return run, blas, folder


def texts(report):
    return [finding.what for finding in report.findings]


def test_imports_are_followed_into_the_wheels_that_are_required(thin):
    run, blas, _ = thin
    wheel = blas(35, 80)
    report = run()
    assert report.passed, texts(report)
    assert [(each.wheel, len(each.sha256)) for each in report.dependencies] == [(wheel.name, 64)]
    assert "1 from dependencies" in next(
        check.note for check in report.checks if check.id == "imports"
    )
    assert run(given=[wheel]).passed


def test_a_dependency_that_is_not_given_answers_nothing(thin):
    run, _, _ = thin
    assert texts(run()) == [
        "needs libcublas.so.11 of another wheel: by its Requires-Dist nvidia-cublas-cu11==11.11.3.6"
    ]


def test_a_dependency_that_runpath_does_not_lead_to_is_unreachable_even_if_it_is_excluded(thin):
    run, blas, _ = thin
    blas(35)
    [text] = texts(run(runpath="$ORIGIN", exclude=["libcublas*"]))
    assert (
        "where its RUNPATH does not lead" in text
        or "is at nvidia/cublas/lib/libcublas.so.11" in text
    )


def test_a_dependency_must_run_on_the_promised_gpus(thin):
    run, blas, _ = thin
    blas(50, 80)
    [text] = texts(run())
    assert text == "no fat binary in it holds code that runs on sm_35; they hold sm_50, sm_80"


def test_cudnn_of_a_dependency_must_run_on_the_lowest_gpu(thin):
    run, blas, _ = thin
    blas(50, soname="libcudnn_cnn_infer.so.8")
    assert any("cuDNN without code for sm_35" in text for text in texts(run()))


@pytest.mark.parametrize("name", [THEIRS, "none.whl", "folder"])
def test_a_dependency_that_does_not_exist_is_the_users_mistake(thin, tmp_path, name):
    run, _, _ = thin
    with pytest.raises(UsageError, match="no such file or folder"):
        run(given=[tmp_path / name])


def test_what_is_not_required_is_refused_when_it_is_named_and_passed_over_in_a_folder(thin):
    run, blas, _ = thin
    wheel = blas(35)
    for requires in ((), ("nvidia-cublas-cu11==11.10.0.0",), ("nvidia-cudnn-cu11",)):
        assert not run(requires=requires).passed
        with pytest.raises(UsageError, match="is not a dependency of canary"):
            run(requires=requires, given=[wheel])
