"""What METADATA may hold before a wheel is published."""

from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.version import Version

from farm.base.errors import PublishRefusedError
from farm.index.admission import PYPI_RULES, Admission, check_metadata, check_name

CASES = yaml.safe_load(Path(__file__).with_name("admission.yaml").read_text(encoding="utf-8"))


def check(version):
    text = (
        f"Metadata-Version: {version}\nName: torch\nVersion: 2.6.0\nRequires-Python: "
        ">=3.9\nLicense-File: LICENSE\n"
    )
    return check_metadata(
        "torch-2.6.0-py3-none-any.whl", "torch", Version("2.6.0"), text.encode(), PYPI_RULES
    )


@pytest.mark.parametrize("version", ["2.1", "2.2", "2.3", "2.4"])
def test_a_license_file_as_setuptools_writes_it_is_taken(version):
    assert check(version) == ">=3.9"


def test_older_metadata_is_still_read_strictly():
    with pytest.raises(PublishRefusedError, match="bad License-File"):
        check("1.2")


NAME = "torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"
VERSION = Version("2.0.1+cu118.sm35.avx")


def judge(
    lines, *, metadata="2.4", name="torch", version="2.0.1+cu118.sm35.avx", policy=PYPI_RULES
):
    text = f"Metadata-Version: {metadata}\nName: {name}\nVersion: {version}\n{lines}"
    data = text if isinstance(text, bytes) else text.encode("latin-1")
    return check_metadata(NAME, "torch", VERSION, data, policy)


@pytest.mark.parametrize("field", ["Requires-Dist", "Provides-Dist", "Obsoletes-Dist"])
def test_deeply_nested_metadata_is_refused(field):
    """`packaging` ends with a RecursionError."""
    with pytest.raises(PublishRefusedError, match=f"bad {field} in its METADATA"):
        judge(f"{field}: numpy; {'(' * 3000}\n")


@pytest.mark.parametrize("lines", CASES["what_packaging_refuses_is_refused"])
def test_metadata_that_packaging_refuses_is_refused(lines):
    """The judge is `packaging.metadata` itself, which PyPI asks too."""
    text = f"Metadata-Version: 2.4\nName: torch\nVersion: 2.0.1\n{lines}"
    with pytest.raises(ExceptionGroup):
        Metadata.from_email(text.encode("latin-1"))
    with pytest.raises(PublishRefusedError, match="bad "):
        judge(lines)


@pytest.mark.parametrize(
    "lines",
    [
        f"Summary: {'x' * 513}\n",
        "Author-email: nobody\n",
        "Maintainer-email: A <a@localhost>\n",
        "Home-page: javascript:alert(1)\n",
        "Home-page: http:///x\n",
        "Download-URL: file:///etc/passwd\n",
        "Project-URL: docs, javascript:alert(1)\n",
        f"Project-URL: {'x' * 33}, https://a.example\n",
        "Project-URL: docs\n",
        "Provides-Dist: other @ https://a.example/x.whl\n",
        "Obsoletes-Dist: other @ https://a.example/x.whl\n",
        "Provides-Dist: not a requirement !\n",
        "License-Expression: MIT\nClassifier: License :: OSI Approved :: MIT License\n",
    ],
)
def test_metadata_that_only_pypi_refuses_is_refused(lines):
    """The rules of pypi/warehouse, warehouse/forklift/metadata.py: `packaging` alone takes
    these.
    """
    with pytest.raises(PublishRefusedError, match="bad "):
        judge(lines)


@pytest.mark.parametrize("need", CASES["a_direct_url_is_refused_unless_it_is_allowed"])
def test_a_direct_url_is_refused_unless_it_is_allowed(need):
    with pytest.raises(PublishRefusedError, match=r"direct URL|bad Requires-Dist") as caught:
        judge(f"Requires-Dist: {need}\n")
    if "../" not in need:
        assert "--allow direct-urls" in caught.value.hint
        assert judge(f"Requires-Dist: {need}\n", policy=Admission(direct_urls=True)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "torchvision"},
        {"name": "t0rch"},
        {"name": ""},
        {"name": "torch "},
        {"name": "\n torch"},
        {"version": "2.0.1"},
        {"version": "2.0.1+cu118.sm37.avx"},
        {"version": "2.0.1+cu118.sm35.avx.1"},
        {"version": "2.0.1.post1+cu118.sm35.avx"},
        {"version": "1!2.0.1+cu118.sm35.avx"},
        {"version": "latest"},
        {"version": "1" * 5000},
        {"metadata": "99.9"},
        {"metadata": "1.9"},
    ],
)
def test_another_wheels_metadata_is_refused(changes):
    with pytest.raises(PublishRefusedError):
        judge("", **changes)


@pytest.mark.parametrize(("lines", "changes"), CASES["sound_metadata_is_taken"])
def test_valid_metadata_is_accepted(lines, changes):
    assert judge(lines, **changes) is None


@pytest.mark.parametrize(
    ("new", "present"),
    [
        ("t0rch", "torch"),
        ("tor-ch", "torch"),
        ("numpi", "nump1"),
        ("pi11ow", "pillow"),
        ("sympv", None),
        ("json", "-"),
    ],
)
def test_confusable_names_are_refused(new, present):
    if present is None:
        check_name(new, {"sympy"}, PYPI_RULES)
        return
    with pytest.raises(PublishRefusedError, match=r"mistaken|module of Python"):
        check_name(new, {present}, PYPI_RULES)
    check_name(new, {present}, Admission(similar_names=True))
    check_name(new, {present, new}, PYPI_RULES)
