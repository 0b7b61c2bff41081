"""Real clients install from the index, and refuse what was tampered with."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from farm.index.stores import open_store

WHEEL = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
REBUILD = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"


@pytest.fixture
def index(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(WHEEL, payload="x = 1\n"))
    put(store, make_wheel(REBUILD, payload="x = 2\n"))
    return store


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.paths.append(self.path)
        super().do_GET()

    def log_message(self, *_args):
        pass


@pytest.fixture
def served(index):
    """The directory over HTTP, and the paths that were asked for."""
    handler = functools.partial(_Quiet, directory=index.root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.paths = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", server.paths
        server.shutdown()
        thread.join()


def run(command, home):
    """Runs a client that knows nothing of this machine's configuration and goes nowhere but where it is told."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "NO_PROXY": "*",
    }
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)


def pip(tmp_path, *arguments):
    options = ["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--target", str(tmp_path / "target")]
    return run([sys.executable, "-m", "pip", "install", *options, *arguments], tmp_path)


def installed(tmp_path):
    return (tmp_path / "target/canary/__init__.py").read_text()


def simple(url):
    return f"{url}/whl/sm35-avx/simple/"


def test_pip_installs_from_the_directory(index, tmp_path):
    done = pip(tmp_path, "--index-url", index.url("whl/sm35-avx/simple/"), "canary")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 2\n"
    assert (tmp_path / "target/canary-1.0+cu118.sm35.avx.1.dist-info/METADATA").exists()


def test_pip_installs_over_http_and_resolves_by_metadata(served, tmp_path):
    url, paths = served
    done = pip(tmp_path, "--index-url", simple(url), "canary===1.0+cu118.sm35.avx")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 1\n"
    wheel = "/whl/files/canary-1.0%2Bcu118.sm35.avx-py3-none-any.whl"
    assert paths == ["/whl/sm35-avx/simple/canary/", f"{wheel}.metadata", wheel]


def test_pip_finds_links(index, tmp_path):
    done = pip(tmp_path, "--no-index", "--find-links", index.url("whl/sm35-avx/links.html"), "canary")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 2\n"


def test_pip_finds_links_in_a_bucket(s3_url, make_wheel, put, tmp_path):
    store = open_store(s3_url)
    result = put(store, make_wheel(WHEEL, payload="x = 3\n"))
    readers = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": f"arn:aws:s3:::{store.bucket}/{store.prefix}whl/*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [readers]})
    store.client.put_bucket_policy(Bucket=store.bucket, Policy=policy)
    done = pip(tmp_path, "--no-index", "--find-links", result.links_url, "canary")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 3\n"


@pytest.mark.parametrize("what", [REBUILD, f"{REBUILD}.metadata"])
def test_pip_refuses_what_was_tampered_with(served, index, tmp_path, make_wheel, what):
    url, _paths = served
    path = Path(index.root) / "whl/files" / what
    if what == REBUILD:
        shutil.copy(make_wheel(REBUILD, payload="evil = 1\n").path, path)
    else:
        path.write_bytes(path.read_bytes() + b"Requires-Dist: evil\n")
    done = pip(tmp_path, "--index-url", simple(url), "canary")
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not (tmp_path / "target").exists()


def test_pip_finds_no_other_project(served, tmp_path):
    url, _paths = served
    done = pip(tmp_path, "--index-url", simple(url), "torch")
    assert done.returncode != 0
    assert "No matching distribution" in done.stderr


@pytest.mark.parametrize("over", ["file", "http"])
def test_uv_installs(index, served, tmp_path, over):
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed beside this Python")
    url = simple(served[0]) if over == "http" else index.url("whl/sm35-avx/simple/")
    options = ["--no-cache", "--no-deps", "--python", sys.executable, "--target", str(tmp_path / "target")]
    done = run([str(uv), "pip", "install", *options, "--index-url", url, "canary"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 2\n"
