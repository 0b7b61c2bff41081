"""`farm clean` on a real engine: this project's images and build trees, and nobody else's."""

import contextlib
import io
import secrets

import docker
import pytest

from farm.base.project import LOCAL
from farm.cli.clean_engines import Leftover, remove_from_docker
from farm.cli.main import main
from farm.engines.images import PROJECT_LABEL
from farm.plan.settings import Settings
from farm.run.build_job import tree_volume
from farm.run.journal import Journal
from farm.run.journal_records import Request
from farm.run.workspace import Watcher, Workspace

REQUEST = Request(
    package="hello", variant="cpu-avx-py311", platform="linux", until="smoke", on="docker"
)


@pytest.fixture
def place(client: docker.DockerClient, tmp_path):
    """A project; makes images and volumes with names of their own, and removes them in the end."""
    (tmp_path / "artifacts").mkdir()
    made = Place(client, tmp_path)
    yield made
    made.remove()


class Place:
    def __init__(self, client, project) -> None:
        self.client, self.project = client, project
        self.mark = secrets.token_hex(6)
        self.ours, self.volumes, self.containers = (
            Workspace(project, Settings(), Watcher()).id,
            [],
            [],
        )
        self.tags: list[str] = []

    def image(self, name: str, project: str) -> str:
        tag = f"farm/toolchain:{self.mark}-{name}"
        text = f'FROM scratch\nLABEL {PROJECT_LABEL}="{project}" farm.test="{tag}"\nCMD ["/none"]\n'
        self.client.images.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True)
        self.tags.append(tag)
        return tag

    def run(self, *, ended: bool, image: str | None = None) -> str:
        """A run in the journal and its build tree, with `image` a container that uses it; the
        volume's name.
        """
        digest = self.mark + secrets.token_hex(26)
        with Journal(self.project / "artifacts" / "farm.db") as journal:
            run = journal.create_run(digest, REQUEST, {})
            if ended:
                journal.finish_run(run.id, "failure", 5)
        tree = self.tree(digest)
        if image:
            volumes, labels = {tree: {"bind": "/farm/src"}}, {"farm.run": run.id}
            self.containers.append(
                self.client.containers.create(image, volumes=volumes, labels=labels)
            )
        return tree

    def tree(self, digest: str) -> str:
        self.volumes.append(self.client.volumes.create(tree_volume(digest)).name)
        return self.volumes[-1]

    def left(self) -> set[str]:
        tags = {
            tag for image in self.client.images.list(name="farm/toolchain") for tag in image.tags
        }
        return (tags & set(self.tags)) | (
            {volume.name for volume in self.client.volumes.list()} & set(self.volumes)
        )

    def clean(self, *options: str) -> None:
        assert main(["--project", str(self.project), "clean", *options]) == 0

    def remove(self) -> None:
        for container in self.containers:
            with contextlib.suppress(docker.errors.NotFound):
                container.remove(force=True)
        remove_from_docker(self.client, [leftover(name) for name in self.left()])


def leftover(name: str) -> Leftover:
    return Leftover(LOCAL, "image" if name.startswith("farm/toolchain:") else "volume", name)


def test_images_and_trees_of_other_projects_stay(place):
    mine, others = place.image("mine", place.ours), place.image("others", "f" * 16)
    used = place.image("used", place.ours)
    place.containers.append(place.client.containers.create(used))
    tree, foreign = place.run(ended=True), place.tree("0" + secrets.token_hex(31))
    place.clean("--older-than", "1d")
    place.clean("--dry-run")
    assert place.left() == {mine, others, used, tree, foreign}
    place.clean()
    assert place.left() == {others, used, foreign}


def test_a_compiler_cache_is_removed_on_request(place):
    mine, others = (f"farm-ccache-{project}-{place.mark}" for project in (place.ours, "f" * 16))
    place.volumes += [place.client.volumes.create(name).name for name in (mine, others)]
    place.clean()
    assert place.left() == {mine, others}
    place.clean("--compiler-caches")
    assert place.left() == {others}


def test_a_run_that_is_under_way_keeps_its_image_and_tree(place):
    image, tree = place.image("mine", place.ours), place.run(ended=False)
    place.clean()
    assert place.left() == {image, tree}


def test_a_container_of_a_killed_controller_is_removed_with_its_image_and_tree(place):
    image = place.image("mine", place.ours)
    place.run(ended=True, image=image)
    place.clean("--older-than", "1d")
    place.clean("--dry-run")
    [container] = place.containers
    container.reload()
    place.clean()
    with pytest.raises(docker.errors.NotFound):
        container.reload()
    assert place.left() == set()


def test_a_container_of_another_projects_run_stays(place):
    image = place.image("mine", place.ours)
    tree = place.run(ended=False, image=image)
    strangers = place.client.containers.create(image, labels={"farm.run": "20260101-000000-0000"})
    place.containers.append(strangers)
    place.clean()
    for container in place.containers:
        container.reload()
    assert place.left() == {image, tree}


def test_what_went_away_meanwhile_or_is_in_use_by_now_is_no_error(place):
    image, tree = place.image("mine", place.ours), place.run(ended=True)
    place.containers.append(place.client.containers.create(image))
    names = (image, f"farm/toolchain:{place.mark}-gone", f"{tree}x", tree)
    remove_from_docker(place.client, [leftover(name) for name in names])
    assert place.left() == {image}
