"""uv, Poetry and PDM by the tables of docs/wheel-index.md: nothing yanked is locked or installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from farm.index.lifecycle import record_event
from tests.indexes.clients import REBUILD, fill, served  # noqa: F401
from tests.servers.process import ROOT, MissingError, environment

REQUIREMENTS = {"uv": "uv", "poetry": "poetry", "pdm": "pdm[locked]"}  # PDM's newest dependencies do not always fit it
FLAT = {"pdm": 'type = "find_links"\n', "uv": 'format = "flat"\n'}
"""What a table says besides where its address is a page of links."""


def table(client):
    """The table of pyproject.toml that the page shows for a client."""
    text = (ROOT / "docs/wheel-index.md").read_text()
    [found] = re.findall(rf"^```toml\n# {client}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    return found


class Project:
    def __init__(self, client, folder):
        self.client, self.folder = client, folder
        self.program = environment(client, REQUIREMENTS[client]) / client

    def run(self, command):
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder.parent), "NO_PROXY": "*", "PDM_CHECK_UPDATE": "0"}
        env |= {"POETRY_VIRTUALENVS_IN_PROJECT": "true", "PDM_CACHE_DIR": str(self.folder / "cache")}
        env |= {"POETRY_CACHE_DIR": str(self.folder / "cache"), "UV_CACHE_DIR": str(self.folder / "cache")}
        env |= {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
        return subprocess.run(
            [self.program, command], env=env, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300
        )

    def lock(self, source, wanted="canary", change=lambda text: text):
        """Locks a project that needs `wanted` from this source alone; the finished process."""
        text = change(table(self.client)).replace("https://wheels.example.org/whl/sm35-avx/simple/", source)
        if source.endswith(".html"):
            text += FLAT.get(self.client, "")
        self.folder.mkdir(exist_ok=True)
        for left in ("uv.lock", "poetry.lock", "pdm.lock"):
            (self.folder / left).unlink(missing_ok=True)
        (self.folder / "pyproject.toml").write_text(
            '[project]\nname = "user"\nversion = "1"\nrequires-python = ">=3.11,<3.15"\n'
            f'dependencies = ["{wanted}"]\n{text}'
        )
        return self.run("lock")

    def installed(self):
        done = self.run("sync")
        assert done.returncode == 0, done.stdout + done.stderr
        [found] = self.folder.glob(".venv/lib/python*/site-packages/canary/__init__.py")
        return found.read_text()


@pytest.mark.parametrize("client", REQUIREMENTS)
def test_a_yanked_wheel(served, fill, client, tmp_path, require):  # noqa: F811
    fill(served)
    record_event(served.store, [REBUILD], "yank", "for the wrong GPU")
    root = f"{served.url}/whl/sm35-avx"
    sources = {"index": f"{root}/simple/", "links": f"{root}/links.html"}
    if client != "poetry":
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
    assert projects["index"].lock(sources["index"], wanted).returncode == 0, "its very version is asked for"
    assert projects["links"].lock(sources["links"], wanted).returncode != 0, "yanked wheels are not on that page"


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
