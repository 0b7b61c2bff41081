"""Pages of links for what wheels need: the versions of `dependencies.yaml`, and those that METADATA pins."""

import hashlib
import zipfile
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

from farm.base.errors import UsageError, VerificationFailedError
from farm.index import pages, simple
from farm.index.backends import open_store
from farm.index.dependencies import link_dependencies, stacks
from farm.index.layout import json_key
from farm.index.publish import publish
from farm.run.release import link_missing
from farm.run.workspace import Outcomes, Watcher
from tests.indexes.wheels import build_wheel

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
    publish(
        store,
        build_wheel(tmp_path, NAME, metadata=METADATA).path,
        group="sm35-avx",
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
    key = json_key("sm35-avx", project)
    return pages.parse_page(store.get(key).data, key).versions


def test_what_metadata_pins_is_there_beside_the_newest(store, public):
    link_dependencies(store, public)
    assert versions_of(store, "sympy") == ("1.13.1", "1.13.3")
    assert versions_of(store, "nvidia-cublas-cu11") == ("11.11.3.6",)


def test_an_extra_is_not_asked_for(store, public):
    link_dependencies(store, public)
    assert store.get(json_key("sm35-avx", "optional-thing")) is None


def published(store, tmp_path, name, *requires):
    """A wheel of another package than torch, in a group without torch."""
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    wheel = build_wheel(tmp_path, f"{name}-1.0+cpu.avx-cp311-cp311-linux_x86_64.whl", extra=needs, python=None).path
    publish(
        store,
        wheel,
        group="cpu-avx",
        upload_time=datetime(2026, 11, 22, tzinfo=UTC),
        provenance={"plan": "0" * 64},
    )


def offered(folder, project, version, *requires):
    """A project of the other index whose page says where its METADATA is."""
    (folder / project).mkdir(parents=True)
    file = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\n" + "".join(f"Requires-Dist: {line}\n" for line in requires)
    (folder / project / f"{file}.metadata").write_text(metadata)
    held = hashlib.sha256(metadata.encode()).hexdigest()
    link = f'<a href="{file}#sha256={"0" * 64}" data-core-metadata="sha256={held}">x</a>'
    (folder / project / "index.html").write_text(link)


def test_what_any_package_requires_is_linked_with_what_that_requires(tmp_path):
    store, other = open_store((tmp_path / "index").as_uri()), tmp_path / "other"
    published(store, tmp_path, "mine", "rapidfuzz (<4,>=3)", 'gone; sys_platform == "win32"', 'docs; extra == "docs"')
    published(store, tmp_path, "second", "mine")
    offered(other, "rapidfuzz", "3.9.0", "Deep.Thing>=2", "rapidfuzz[all]")
    offered(other, "deep-thing", "2.1")
    link_dependencies(store, other.as_uri())
    keys = {project: json_key("cpu-avx", project) for project in ("rapidfuzz", "deep-thing")}
    found = {project: pages.parse_page(store.get(key).data, key).versions for project, key in keys.items()}
    assert found == {"rapidfuzz": ("3.9.0",), "deep-thing": ("2.1",)}
    assert store.get(json_key("cpu-avx", "docs")) is None


def bare(folder, project, version, *requires):
    """A project of another index that serves no METADATA beside its wheels, as many mirrors do not."""
    (folder / project).mkdir(parents=True)
    wheel = folder / project / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        archive.writestr(f"{project}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\n{lines}")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / project / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">x</a>')


def test_what_is_required_in_turn_is_read_out_of_wheels_where_no_metadata_is_served(tmp_path):
    store, other = open_store((tmp_path / "index").as_uri()), tmp_path / "other"
    published(store, tmp_path, "mine", "mako")
    bare(other, "mako", "1.3", "MarkupSafe>=2")
    bare(other, "markupsafe", "2.1", "deepest")
    bare(other, "deepest", "1.0")
    (other / "deepest" / "deepest-1.0-py3-none-any.whl").unlink()  # what cannot be had is left to the installer
    link_dependencies(store, other.as_uri())
    assert all(store.get(json_key("cpu-avx", project)) for project in ("mako", "markupsafe", "deepest"))
    (other / "mako" / "mako-1.3-py3-none-any.whl").write_bytes(b"other")
    simple._metadata_inside.cache_clear()
    with pytest.raises(VerificationFailedError, match="other bytes than its page says"):
        link_dependencies(store, other.as_uri())


def test_a_requirement_that_the_other_index_cannot_meet_is_named(tmp_path):
    store, other = open_store((tmp_path / "index").as_uri()), tmp_path / "other"
    published(store, tmp_path, "mine", "rapidfuzz>=4")
    offered(other, "rapidfuzz", "3.9.0")
    with pytest.raises(UsageError, match="no wheel of rapidfuzz that fits >=4"):
        link_dependencies(store, other.as_uri())


@pytest.fixture
def needy(store, tmp_path):
    """A published wheel that needs mpmath, and a function that does the step of a run that publishes it."""
    published(store, tmp_path, "needy", "mpmath")

    def step():
        outcomes = Outcomes()
        workspace = SimpleNamespace(
            index_url=(tmp_path / "index").as_uri(), signer=None, watcher=create_autospec(Watcher, instance=True)
        )
        link_missing(workspace, "cpu-avx", "needy-1.0+cpu.avx-cp311-cp311-linux_x86_64.whl", outcomes)
        return outcomes.steps

    return step


def test_a_run_links_what_its_wheel_needs_once(store, public, needy, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", public)
    (step,) = needy()
    assert (step.outcome, step.result) == ("done", "linked mpmath, and what they need")
    page = store.get(json_key("cpu-avx", "mpmath"))
    assert pages.parse_page(page.data, "mpmath").versions == ("1.3.0",)
    assert needy() == []


def test_a_run_goes_on_where_pips_index_lacks_what_its_wheel_needs(store, needy, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    (step,) = needy()
    assert step.outcome == "not run"
    assert step.result.startswith("not linked: ")
    assert "farm index dependencies --group cpu-avx" in step.result
    assert store.get(json_key("cpu-avx", "mpmath")) is None
