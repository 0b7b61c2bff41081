"""Pages of links for what wheels need: the versions of `dependencies.yaml`, and those that METADATA pins."""

import zipfile
from datetime import UTC, datetime

import pytest

from farm.index import pages
from farm.index.backends import open_store
from farm.index.dependencies import link_dependencies, stacks
from farm.index.publish import publish

NAME = "torch-2.6.0+cu118.sm35.avx-cp311-cp311-linux_x86_64.whl"
PINNED = 'nvidia-cublas-cu11==11.11.3.6; platform_system == "Linux"'
METADATA = f"""Metadata-Version: 2.1
Name: torch
Version: 2.6.0+cu118.sm35.avx
Requires-Dist: sympy (==1.13.1) ; python_version >= "3.9"
Requires-Dist: {PINNED}
Requires-Dist: optional-thing==3.0 ; extra == "more"
"""


@pytest.fixture
def store(tmp_path):
    store = open_store((tmp_path / "index").as_uri())
    wheel = tmp_path / NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, data in {"METADATA": METADATA, "WHEEL": "", "RECORD": ""}.items():
            archive.writestr(f"torch-2.6.0+cu118.sm35.avx.dist-info/{member}", data)
    publish(
        store,
        wheel,
        group="sm35-avx",
        metadata=METADATA.encode(),
        upload_time=datetime(2026, 11, 22, tzinfo=UTC),
        provenance={"plan": "0" * 64},
    )
    return store


@pytest.fixture
def public(tmp_path):
    """Another index: each project in a high version, sympy in several, NVIDIA's cuBLAS in two."""
    versions = dict.fromkeys({name for stack in stacks() for name in stack.needs}, ("9999.0",))
    versions |= {"sympy": ("1.13.0", "1.13.1", "1.13.3"), "nvidia-cublas-cu11": ("11.10.3.66", "11.11.3.6")}
    versions |= {"mpmath": ("1.3.0",), "setuptools": ("70.0",), "optional-thing": ("3.0",)}
    for project, there in versions.items():
        folder = tmp_path / "public" / project
        folder.mkdir(parents=True)
        file = project.replace("-", "_")
        links = [f'<a href="{file}-{each}-py3-none-any.whl#sha256={"0" * 64}">x</a>' for each in there]
        (folder / "index.html").write_text("\n".join(links))
    return (tmp_path / "public").as_uri()


def versions_of(store, project):
    key = pages.json_key("sm35-avx", project)
    return pages.parse_page(store.get(key).data, key).versions


def test_what_metadata_pins_is_there_beside_the_newest(store, public):
    link_dependencies(store, public)
    assert versions_of(store, "sympy") == ("1.13.1", "1.13.3")
    assert versions_of(store, "nvidia-cublas-cu11") == ("11.11.3.6",)


def test_an_extra_is_not_asked_for(store, public):
    link_dependencies(store, public)
    assert store.get(pages.json_key("sm35-avx", "optional-thing")) is None
