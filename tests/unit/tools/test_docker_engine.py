"""`tools/docker-engine` and `make demo` for who may not use an engine. The engine itself:
tests/e2e/docker.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOBODY = 65534


@pytest.fixture
def folder():
    """A folder that any user may enter: pytest's own are this user's alone."""
    made = Path(tempfile.mkdtemp(prefix="farm-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def forbidden(folder):
    """DOCKER_HOST of an engine whose socket an ordinary user may not use, as one outside the group
    docker.
    """
    path = folder / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(0)
        yield f"unix://{path}"


def run_as_user(*command, **environment):
    """As an ordinary user: root may use every socket."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}
    return subprocess.run(
        command, env=environ, cwd="/", capture_output=True, text=True, check=False, **user
    )


@pytest.fixture
def tools(folder):
    """The script and the Makefile where any user may read them, and a `docker` that finds no
    engine.
    """
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "docker-engine", folder / "tools")
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


def test_a_socket_that_may_not_be_used_is_no_missing_engine(tools, forbidden):
    path = f"{tools}/bin:/usr/bin:/bin"
    done = run_as_user(
        str(tools / "tools" / "docker-engine"), "ensure", PATH=path, DOCKER_HOST=forbidden
    )
    assert done.returncode == 4
    assert "no permission for its socket" in done.stderr
    assert "usermod -aG docker" in done.stderr
    assert "apt-get install" not in done.stderr


def test_without_an_engine_make_demo_says_so_before_it_installs_anything(tools):
    path = f"{tools}/bin:/usr/bin:/bin"
    done = run_as_user(
        "make", "-C", str(tools), "demo", PATH=path, DOCKER_HOST=f"unix://{tools}/none.sock"
    )
    assert done.returncode != 0
    assert "no Docker engine answers" in done.stderr
    assert "apt-get install docker.io" in done.stderr
    assert "DOCKER_HOST" in done.stderr
    assert not (tools / ".venv").exists()
    assert "venv" not in done.stdout
