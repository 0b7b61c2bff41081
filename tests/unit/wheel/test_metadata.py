import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from farm.base.errors import UsageError, VerificationFailedError
from farm.index import layout
from farm.wheel.archive import Archive
from farm.wheel.metadata import (
    normal_requirement,
    normal_version,
    parse_wheel_name,
    read_dist_info,
    same_version,
    with_build,
    with_description,
    with_requirements,
    with_tags,
    with_version,
)
from farm.wheel.tags import platform_machine


def test_file_names():
    name = parse_wheel_name("Torch_Canary-1.0+cu118.sm35-2-cp311-cp311-linux_x86_64.whl")
    assert (name.name, name.version) == ("torch-canary", "1.0+cu118.sm35")
    assert name.tags == {"cp311-cp311-linux_x86_64"}
    assert (
        name.renamed(
            version="1.0+cu118.sm35.avx",
            platforms=("manylinux_2_17_x86_64", "manylinux2014_x86_64"),
        )
        == "Torch_Canary-1.0+cu118.sm35.avx-2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    )


@pytest.mark.parametrize(
    "bad", ["x.whl", "x-1.zip", "x-y-cp311-cp311-any.whl", "-1-py3-none-any.whl", ""]
)
def test_invalid_wheel_file_names_are_refused(bad):
    with pytest.raises(VerificationFailedError, match="not a wheel's file name"):
        parse_wheel_name(bad)


def test_a_name_as_a_download_left_it_is_to_be_corrected():
    """`curl -O` keeps the address's spelling, and a browser counts: "build the wheel again" was the
    advice.
    """
    saved, was = "canary-1.0%2Bcu118-py3-none-any.whl", "canary-1.0+cu118-py3-none-any.whl"
    with pytest.raises(VerificationFailedError, match="not a wheel's file name") as caught:
        parse_wheel_name(saved)
    assert caught.value.hint == f"rename it as it was before its download: {was}"
    for each in (saved, "canary-1.0+cu118-py3-none-any (1).whl"):
        with pytest.raises(ValueError, match=f"; it was {re.escape(was)} before its download$"):
            layout.parse_wheel_name(each)


_PIECES = [
    "torch",
    "a.b",
    "_",
    "__",
    "1.0",
    "1!2+cpu",
    "x",
    "",
    "7",
    "cp39.cp310",
    "py3",
    "abi3",
    "none",
    "Any",
    "\u00e9",
]


@given(
    st.lists(st.sampled_from(_PIECES), min_size=3, max_size=7),
    st.sampled_from([".whl", ".zip", ".whl\n", ""]),
)
@example(["torch", "1.0", "7", "cp39.cp310", "none", "Any"], ".whl")
@example(["a.b", "1.0", "x", "py3", "none", "Any"], ".whl")
@example(["torch", "1.0", "cp39.", "none", "Any"], ".whl")
@example(["torch", "1.0", "3.9", "none", "Any"], ".whl")
def test_file_names_are_read_as_packaging_reads_them(pieces, ending):
    filename = "-".join(pieces) + ending
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        with pytest.raises(VerificationFailedError):
            parse_wheel_name(filename)
    else:
        found = parse_wheel_name(filename)
        assert (found.name, found.version, found.tags) == (name, str(version), set(map(str, tags)))


def test_dist_info(tmp_path, make_wheel):
    metadata = (
        b"Metadata-Version: 2.1\nName: Canary\nVersion: 1.0\nRequires-Dist: "
        b"numpy<2\nRequires-Dist: sympy\n\nName: no\n"
    )
    path = make_wheel(tmp_path, {}, metadata=metadata, wheel_tags=["cp311.cp312-abi3-linux_x86_64"])
    with Archive(path) as archive:
        info = read_dist_info(archive)
    assert (info.name, info.version, info.requires_python) == ("Canary", "1.0", None)
    assert info.requires_dist == ("numpy<2", "sympy")
    assert info.tags == {"cp311-abi3-linux_x86_64", "cp312-abi3-linux_x86_64"}
    assert info.record == "canary-1.0.dist-info/RECORD"


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"metadata": b"Name: canary\n"}, "0 Version headers"),
        ({"metadata": b"Name: canary\nName: other\nVersion: 1\n"}, "2 Name headers"),
        ({"metadata": b"Name: \xff\n"}, "not UTF-8"),
        (
            {
                "wheel_tags": [
                    ".".join("abcdefghijk")
                    + "-"
                    + ".".join("abcdefghijk")
                    + "-"
                    + ".".join("abcdefghijk")
                ]
            },
            "more",
        ),
    ],
)
def test_malformed_dist_info_is_refused(tmp_path, make_wheel, kwargs, why):
    with (
        Archive(make_wheel(tmp_path, {}, **kwargs)) as archive,
        pytest.raises(VerificationFailedError, match=why),
    ):
        read_dist_info(archive)


def test_two_dist_infos_are_refused(tmp_path, make_wheel):
    path = make_wheel(tmp_path, {"other-1.dist-info/METADATA": b""})
    with Archive(path) as archive, pytest.raises(VerificationFailedError, match=r"2 \.dist-info"):
        read_dist_info(archive)


def test_requirements_are_added_behind_the_headers():
    before = b"Name: x\r\nVersion: 1.0\r\n\r\nRequires-Dist: in the text\r\n"
    after = (
        b"Name: x\r\nVersion: 1.0\r\nRequires-Dist: numpy<2\r\n\r\nRequires-Dist: in the text\r\n"
    )
    assert with_requirements(before, ["numpy<2"]) == after
    assert with_requirements(b"Name: x\nVersion: 1\n", ["a", "b>1"]) == (
        b"Name: x\nVersion: 1\nRequires-Dist: a\nRequires-Dist: b>1\n"
    )
    assert with_requirements(b"Name: x", ["a"]) == b"Name: x\nRequires-Dist: a\n"
    for text in (before, b"Name: x", b"Name: x\n"):
        assert with_requirements(text, []) == text


def test_a_paragraph_is_added_to_the_description_once():
    before = b"Name: x\r\nVersion: 1.0\r\n\r\nAbout it.\r\n"
    after = b"Name: x\r\nVersion: 1.0\r\n\r\nAbout it.\n\nWithout: y (no z).\n"
    assert with_description(before, "Without: y (no z).") == after
    assert with_description(after, "Without: y (no z).") == after
    assert with_description(before, "") == before


@pytest.mark.parametrize(
    "text", ["", "numpy<<2", "a\nRequires-Dist: b", "x" * 20_000, "(" * 900, "numpy<2\r"]
)
def test_text_that_is_not_a_requirement_is_refused(text):
    with pytest.raises(UsageError, match="not a requirement"):
        normal_requirement(text)
    assert normal_requirement("Numpy < 2,>=1.20") == "Numpy<2,>=1.20"


def test_the_version_alone_is_changed():
    before = b"Name: x\r\nversion: 1.0\r\nSummary: y\r\n\r\nVersion: in the text\r\n"
    after = b"Name: x\r\nversion: 1.0+cu118\r\nSummary: y\r\n\r\nVersion: in the text\r\n"
    assert with_version(before, "1.0+cu118") == after
    with pytest.raises(VerificationFailedError, match="0 Version headers"):
        with_version(b"Name: x\n\nVersion: 1\n", "2")


def test_tags_are_replaced():
    before = (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\nBuild: 1\n\n"
    )
    after = (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nBuild: 1\n"
        b"Tag: cp311-cp311-manylinux_2_17_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n"
    )
    tags = ["cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"]
    assert with_tags(before, tags) == after
    # usd_core 26.5 says it twice, openturns 1.22 has a Tag without a value.
    twice = before.replace(b"false\n", b"false\nRoot-Is-Purelib: true\nTag:\n")
    assert with_tags(twice, tags) == after


def test_machines_and_versions():
    assert (
        platform_machine(frozenset({"a-b-manylinux_2_17_aarch64", "a-b-manylinux2014_aarch64"}))
        == "aarch64"
    )
    assert platform_machine(frozenset({"a-b-linux_x86_64", "a-b-linux_aarch64"})) is None
    assert platform_machine(frozenset({"py3-none-any"})) is None
    assert platform_machine(frozenset({"a-b-win_amd64"})) is None
    assert same_version("1.0", "1.0.0")
    assert not same_version("1.0", "1.0+cu118")
    assert not same_version("x", "x")
    assert normal_version("1.0+CU118-SM35") == "1.0+cu118.sm35"
    with pytest.raises(UsageError, match="'one'"):
        normal_version("one")


@pytest.mark.parametrize(
    ("wheel", "build", "wanted"),
    [
        (
            b"Wheel-Version: 1.0\nTag: a\nTag: b\n",
            "1",
            b"Wheel-Version: 1.0\nBuild: 1\nTag: a\nTag: b\n",
        ),
        (
            b"Wheel-Version: 1.0\r\nTag: a\r\n\r\n",
            "2",
            b"Wheel-Version: 1.0\r\nBuild: 2\r\nTag: a\r\n\r\n",
        ),
        (b"build: 1\nTag: a\n", "1_2", b"Build: 1_2\nTag: a\n"),
        (b"Wheel-Version: 1.0\nBuild: 1\nTag: a", "", b"Wheel-Version: 1.0\nTag: a"),
    ],
)
def test_a_build_number(wheel, build, wanted):
    assert with_build(wheel, build) == wanted
