"""uv, Poetry, PDM and pip-tools by the tables of docs/how-to/install-from-an-index.md: nothing yanked is
locked or installed.
"""

from pathlib import Path

import pytest

from farm.index.changes import record_event
from tests.indexes.clients import REBUILD, fill, filled, served  # noqa: F401
from tests.indexes.projects import LOCKS, REQUIREMENTS, Project
from tests.servers.process import MissingError


@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_yanked_wheel(served, fill, client, tmp_path, require):  # noqa: F811
    fill(served)
    record_event(served.store, [REBUILD], "yank", "for the wrong GPU")
    root = f"{served.url}/whl/sm35-avx"
    sources = {"index": f"{root}/simple/"}
    if client not in {"poetry", "pip-tools"}:
        sources["file"] = f"{Path(served.store.root).as_uri()}/whl/sm35-avx/simple/"
    try:
        projects = {kind: Project(client, tmp_path / kind) for kind in sources}
    except MissingError as error:
        require(client, error)
    for kind, source in sources.items():
        done = projects[kind].lock(source)
        assert done.returncode == 0, (kind, done.stdout + done.stderr)
        assert projects[kind].installed() == "x = 1\n", kind
    wanted = "canary==1.0+cu118.sm35.avx.1"
    assert projects["index"].lock(sources["index"], wanted).returncode == 0, (
        "its very version is asked for"
    )


def test_uv_takes_what_is_named_from_the_index(served, fill, tmp_path):  # noqa: F811
    """Of `explicit` indexes, as the page has them."""
    fill(served)

    def explicit(text):
        assert "default = true" in text
        return text.replace("default = true", "explicit = true")

    root = f"{served.url}/whl/sm35-avx/simple/"
    named = '[tool.uv.sources]\ncanary = { index = "farm" }\n'
    project = Project("uv", tmp_path / "user")
    done = project.lock(root, change=lambda text: explicit(text) + named)
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.installed() == "x = 2\n", "the newest rebuild"


@pytest.mark.parametrize("filled", ["ceph"], indirect=True)
@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_bucket_without_a_web_server(filled, client, tmp_path, require):  # noqa: F811
    """Locks have hashes, and what is locked is installed, from pages at keys that end in a
    slash.
    """
    try:
        project = Project(client, tmp_path / "project")
    except MissingError as error:
        require(client, error)
    done = project.lock(f"{filled.url}/whl/sm35-avx/simple/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sha256:" in (tmp_path / "project" / LOCKS[client]).read_text()
    assert project.installed() == "x = 2\n"
