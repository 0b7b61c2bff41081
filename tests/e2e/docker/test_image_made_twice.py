"""Two projects that need the same image at the same time, on an engine that has none yet."""

import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest

from farm import catalog
from farm.engines.base_images import base_image
from farm.engines.images import PROJECT_LABEL, Toolchain, ensure_image

WAIT_S = 600
REPOSITORY = "farm-test/twice"
RELEASE = catalog.debian_releases()["debian-bookworm"]
ABSENT = RELEASE.model_copy(update={"image": "localhost:1/absent:1"})
"""Of a registry that refuses at once."""


def empty_image() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    return packed.getvalue()


def images_of(client: docker.DockerClient, project: str) -> list[str]:
    """The ids of the images that a project made, also of those without a name."""
    return [
        image["Id"]
        for image in client.api.images(filters={"label": f"{PROJECT_LABEL}=test-twice-{project}"})
    ]


def projects_of(client: docker.DockerClient) -> list[str]:
    """Of each image that was made, the project."""
    return [project for project in ("one", "two") for _ in images_of(client, project)]


@pytest.fixture
def base(client: docker.DockerClient) -> Iterator[str]:
    client.api.import_image(empty_image(), repository="farm-test/twice-base", tag="1")
    made = str(client.images.get("farm-test/twice-base:1").id)
    yield made
    for project in ("one", "two"):
        for image in images_of(client, project):
            client.images.remove(image, force=True)
    client.images.remove(made, force=True)


@pytest.fixture
def make(client, base, tmp_path):
    """`make(project, wheels)`: the image, for one of the two projects; `wheels` is called before it
    is built.
    """

    def go(project, wheels=dict, note=lambda _: None):
        wanted = Toolchain(
            repository=REPOSITORY,
            context={"Dockerfile": "ARG BASE\nFROM ${BASE}\nCOPY Dockerfile /\n"},
            digest="2" * 64,
            base=base,
            labels={PROJECT_LABEL: f"test-twice-{project}"},
            wheels=wheels,
        )
        log = tmp_path / project / "image.log"
        return ensure_image(client, wanted, log=log, line=lambda _: None, note=note)

    return go


def test_the_second_waits_for_the_first(client, make, tmp_path):
    second_waits, notes = threading.Event(), []

    def note(text: str) -> None:
        notes.append(text)
        if "waiting" in text:
            second_waits.set()

    with ThreadPoolExecutor() as pool:
        second = []

        def wheels():
            second.append(pool.submit(make, "two", note=note))
            second[0].add_done_callback(lambda _: second_waits.set())
            assert second_waits.wait(WAIT_S)
            return {}

        one = make("one", wheels)
        two = second[0].result(WAIT_S)
    assert (one.reused, two.reused, two.id, two.tag) == (False, True, one.id, one.tag)
    assert projects_of(client) == ["one"]
    log = tmp_path / "one" / "image.log"
    assert (
        notes[0] == f"{one.tag} is being made by process {os.getpid()}, log: {log}: waiting for it"
    )


def test_without_a_common_lock_the_later_image_goes(client, make, tmp_path, monkeypatch):
    """As of two users, or from two machines: the first keeps its name, since its project may have
    begun a build.
    """
    others = []

    def wheels():
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-user"))
        others.append(make("two"))
        return {}

    notes = []
    late = make("one", wheels, notes.append)
    assert (late.reused, late.id) == (True, others[0].id)
    assert client.images.get(late.tag).id == others[0].id
    assert projects_of(client) == ["two"]
    assert f"{late.tag} was made by another run meanwhile; this one is removed" in notes


def test_without_a_folder_for_locks_images_are_made(client, make, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not make("one").reused
    assert make("two").reused
    assert projects_of(client) == ["one"]


@pytest.fixture
def debootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, for speed: it makes the root that its command names, each time with another
    file.
    """
    program = tmp_path / "bin" / "debootstrap"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\nfor root; do case $root in */root) echo made >$root/made-$$ ;; esac; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture
def imported(client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ids of the base images that were given to Docker; they go at the end."""
    made: list[str] = []
    give = client.api.import_image

    def spy(*arguments, **named):
        answer = give(*arguments, **named)
        made.append(json.loads(answer.splitlines()[-1])["status"])
        return answer

    monkeypatch.setattr(client.api, "import_image", spy)
    yield made
    for image in there(client, made):
        client.images.remove(image, force=True)


def there(client: docker.DockerClient, images: list[str]) -> list[str]:
    return sorted({image["Id"] for image in client.api.images()} & set(images))


@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
@pytest.mark.parametrize("shared", [True, False], ids=["a lock", "no common lock"])
def test_a_base_image_is_made_once(client, debootstrap, imported, tmp_path, monkeypatch, shared):
    """Toolchains are made anew for another base image: two of them would be two toolchains as
    well.
    """
    second, waits, notes = [], threading.Event(), []

    def make(note):
        name = "test-base-made-twice"
        return base_image(
            client, name, ABSENT, pull_timeout_s=5, mirror=None, line=lambda _: None, note=note
        )

    def seconds(text: str) -> None:
        notes.append(text)
        if "waiting" in text:
            waits.set()

    def firsts(text: str) -> None:
        if not text.endswith("with debootstrap (about 30 s)"):
            return
        if not shared:
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-user"))
        second.append(pool.submit(make, seconds))
        second[0].add_done_callback(lambda _: waits.set())
        assert waits.wait(WAIT_S)

    with ThreadPoolExecutor() as pool:
        one = make(firsts)
        assert second[0].result(WAIT_S) == one
    assert there(client, imported) == [one]
    assert len(imported) == (1 if shared else 2)
    assert any("waiting" in text for text in notes) is shared


@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
def test_ctrl_c_leaves_no_image_without_a_name(client, imported, debootstrap, monkeypatch):
    """It comes when Docker has made the image and before that has its name."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("farm.engines.base_images.tag_first", interrupted)
    with pytest.raises(KeyboardInterrupt):
        base_image(
            client, "test-interrupted", ABSENT, pull_timeout_s=5, mirror=None, line=lambda _: None
        )
    assert len(imported) == 1
    assert there(client, imported) == []
