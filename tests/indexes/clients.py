"""Tests with real clients: install, resolve, lock, and refuse what was tampered with. Modules say
which clients.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from farm.index.changes import record_event
from farm.index.publish import check_store
from farm.index.store_urls import open_store
from tests.indexes.fixtures import publish_wheel
from tests.indexes.wheels import build_wheel
from tests.servers import static
from tests.servers.buckets import ISOLATED, KEYS, make_bucket

WHEEL = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
REBUILD = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
OTHER_GPU = "canary-1.0+cu118.sm37.avx-py3-none-any.whl"
PIPS = {
    # the first that knows manylinux_x_y tags (PEP 600); wheels for Python 3.7 have them
    "pip-20.3": "pip==20.3.4",
    "pip-22": "pip==22.3.1",
    "pip-newest": "pip>=25",
}


class Place(NamedTuple):
    """Where an index is served: its root, the store behind it, and the requests for it where they
    are known.
    """

    url: str
    store: object
    requests: list


def clean(home, **more):
    """An environment that knows nothing of this machine's configuration and goes nowhere but where
    it is told.
    """
    known = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "NO_PROXY": "*", "HOME": str(home)}
    return {"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore", **known, **more}


def run(command, home, **more):
    return subprocess.run(
        list(map(str, command)),
        check=False,
        env=clean(home, **more),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="session")
def pips(tmp_path_factory):
    """Each pip as a folder that Python can run; fetched with the caller's own configuration.

    Unpacked, since Python keeps no bytecode of what it imports from a zip file: that is half the
    time of a run.
    """
    folder = tmp_path_factory.mktemp("pips")
    found = {}
    for name, requirement in PIPS.items():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            str(folder / name),
            requirement,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be fetched here: {done.stderr[-200:]}")
        [wheel] = (folder / name).glob("pip-*.whl")
        found[name] = folder / f"{name}-unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(found[name])
    return found


@pytest.fixture
def install(request, tmp_path):
    """`install(*arguments)` with one client into tmp_path/target; gives the finished process."""
    if request.param == "uv":
        uv = Path(sys.executable).with_name("uv")
        if not uv.exists():
            pytest.skip("uv is not installed beside this Python")
        start = [uv, "pip", "install", "--no-cache", "--python", sys.executable]
    else:
        # `pip` is that of this Python
        pip = (
            ["-m", "pip"]
            if request.param == "pip"
            else [request.getfixturevalue("pips")[request.param] / "pip"]
        )
        start = [sys.executable, *pip, "install", "--no-cache-dir", "--disable-pip-version-check"]
        # Else the older ones compare what is installed beside them: four of their five seconds.
        start.append("--no-warn-conflicts")
    started = functools.partial(_started, [*start, "--target", tmp_path / "target"], tmp_path)
    started.client = request.param
    return started


def _started(start, home, *arguments):
    return run([*start, *arguments], home)


def _serve(root, requests, request):
    serving = static.serving(root, requests)
    request.addfinalizer(lambda: serving.__exit__(None, None, None))
    return serving.__enter__()


@pytest.fixture
def place(request, tmp_path):
    """An empty index, and the URL of its root for clients."""
    if request.param == "s3":
        return _bucket(request.getfixturevalue("s3_url"), known=True)
    return _folder(request.param, tmp_path / "index", request)


@pytest.fixture
def served(tmp_path, request):
    """An empty directory index over HTTP."""
    return _folder("served", tmp_path / "index", request)


def _folder(kind, root, request):
    root.mkdir()
    store = open_store(str(root))
    check_store(store)  # other tests probe
    if kind == "file":
        return Place(store.url("").rstrip("/"), store, [])
    requests = []
    return Place(_serve(root, requests, request), store, requests)


def _bucket(url, *, known):
    """A bucket that everybody may read as `docs/servers/public-read.json` has it. `known`: it need
    not be probed.
    """
    store = open_store(f"{url}&pages=slash")
    if known:
        check_store(store)
    store.client.put_bucket_policy(
        Bucket=store.bucket, Policy=public_policy(store.bucket, store.prefix)
    )
    return Place(store.url("").rstrip("/"), store, [])


def public_policy(bucket, prefix=""):
    """The policy for everybody in the docs."""
    text = (Path(__file__).parents[2] / "docs/servers/public-read.json").read_text()
    read, absent = json.loads(text.replace(":::wheels", f":::{bucket}"))["Statement"]
    read["Resource"] = [
        each.replace(f":::{bucket}/", f":::{bucket}/{prefix}") for each in read["Resource"]
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": [read, absent]})


def _fill(place, make_wheel, put):
    put(place.store, make_wheel(WHEEL, payload="x = 1\n"))
    put(place.store, make_wheel(REBUILD, payload="x = 2\n"))
    put(place.store, make_wheel(OTHER_GPU, payload="x = 37\n"), group="sm37-avx")
    return place


@pytest.fixture
def fill(make_wheel, put):
    return lambda place: _fill(place, make_wheel, put)


@pytest.fixture(scope="session")
def filled(request, tmp_path_factory):
    """A place with three wheels. It is shared by the tests that only read, so nothing else is
    published there.
    """
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "ceph":
            for name, value in {**KEYS, **ISOLATED}.items():
                patch.setenv(name, value)
            made = _bucket(
                make_bucket(request.getfixturevalue("running_ceph").http, "clients-filled"),
                known=False,
            )
        else:
            made = _folder(request.param, folder / "index", request)
        _fill(
            made,
            lambda *arguments, **changes: build_wheel(folder, *arguments, **changes),
            publish_wheel,
        )
    return made


def simple(place, group="sm35-avx"):
    return f"{place.url}/whl/{group}/simple/"


def installed(tmp_path, name="canary"):
    return (tmp_path / f"target/{name}/__init__.py").read_text()


def test_install_by_variant(filled, install, tmp_path):
    done = install("--index-url", simple(filled), "canary")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 2\n"
    shutil.rmtree(tmp_path / "target")
    done = install("--index-url", simple(filled, "sm37-avx"), "canary==1.0")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 37\n"


def test_the_json_tree_serves_clients_that_read_json(served, fill, install, tmp_path):
    fill(served)
    done = install("--index-url", f"{served.url}/whl/sm35-avx/v1-json/", "canary")
    if install.client == "pip-20.3":
        assert done.returncode != 0, "this pip reads HTML alone"
        return
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 2\n"


def test_a_requirement_spells_a_project_in_another_way_than_its_metadata(
    served, make_wheel, put, install, tmp_path
):
    put(served.store, make_wheel("typing_Extensions-4.0-py3-none-any.whl"))
    put(served.store, make_wheel(WHEEL, extra="Requires-Dist: typing-extensions\n"))
    done = install("--index-url", simple(served), "Canary")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path, "typing_Extensions") == "x = 1\n"


def test_an_absent_project(filled, install):
    done = install("--index-url", simple(filled), "torch")
    assert done.returncode != 0
    assert re.search("No matching distribution|not found in the package registry", done.stderr)


def test_a_yanked_wheel_is_skipped_unless_it_is_asked_for(place, fill, install, tmp_path):
    fill(place)
    record_event(place.store, [REBUILD], "yank", "for the wrong GPU")
    done = install("--index-url", simple(place), "canary")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 1\n"
    shutil.rmtree(tmp_path / "target")
    done = install("--index-url", simple(place), "canary==1.0+cu118.sm35.avx.1")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 2\n"
    assert "for the wrong GPU" in done.stderr + done.stdout


@pytest.mark.parametrize("what", [REBUILD, f"{REBUILD}.metadata"])
def test_what_was_tampered_with_is_refused(served, fill, install, make_wheel, tmp_path, what):
    fill(served)
    path = Path(served.store.root) / "whl/files" / what
    if what == REBUILD:
        shutil.copy(make_wheel(REBUILD, payload="evil = 1\n").path, path)
    else:
        path.write_bytes(path.read_bytes() + b"Requires-Dist: evil\n")
    done = install("--index-url", simple(served), "canary")
    if what != REBUILD and install.client in {"pip-20.3", "pip-22"}:
        assert not any(path.endswith(".metadata") for path, *_ in served.requests), (
            "it takes them from the wheel"
        )
        assert done.returncode == 0
        return
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not (tmp_path / "target/canary").exists()


def test_requirements_with_hashes(filled, install, tmp_path):
    digests = {
        name: hashlib.sha256(filled.store.get(f"whl/files/{name}").data).hexdigest()
        for name in (WHEEL, REBUILD)
    }
    lock = tmp_path / "requirements.txt"
    line = f"canary==1.0+cu118.sm35.avx --hash=sha256:{digests[WHEEL]}\n"
    lock.write_text(line)
    done = install("--index-url", simple(filled), "--require-hashes", "-r", str(lock))
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == "x = 1\n"
    shutil.rmtree(tmp_path / "target")
    lock.write_text(line.replace(digests[WHEEL], digests[REBUILD]))
    done = install("--index-url", simple(filled), "--require-hashes", "-r", str(lock))
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()


BIG = "x = 3\n" + "#" * 2_000_000


@pytest.fixture
def resolver(request):
    """The start of a command that resolves and installs nothing; the end is an index and a file of
    requirements.
    """
    if request.param == "uv":
        return [Path(sys.executable).with_name("uv"), "pip", "compile", "--no-cache", "-q"]
    pip = [
        sys.executable,
        request.getfixturevalue("pips")[request.param] / "pip",
        "--disable-pip-version-check",
    ]
    return [*pip, "install", "--dry-run", "--report", "-", "--quiet", "-r"]


def test_a_resolution_reads_metadata_and_not_wheels(served, make_wheel, put, resolver, tmp_path):
    """The bytes are counted: of a wheel of 2 MB, none."""
    put(served.store, make_wheel(WHEEL, payload=BIG))
    needs = tmp_path / "requirements.in"
    needs.write_text("canary\n")
    done = run([*resolver, needs, "--index-url", simple(served)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1.0+cu118.sm35.avx" in done.stdout
    expected = ["/whl/sm35-avx/simple/canary/", f"/whl/files/{WHEEL}.metadata"]
    assert [unquote(path) for path, *_ in served.requests] == expected
    assert sum(size for *_, size in served.requests) < 2000


def test_uv_locks_and_syncs(served, fill, tmp_path):
    fill(served)
    uv = Path(sys.executable).with_name("uv")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "user"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = '
        '["canary"]\n'
        f'[[tool.uv.index]]\nname = "farm"\nurl = "{simple(served)}"\ndefault = true\n'
    )
    more = {
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
    }
    environment = {**clean(tmp_path, **more)}
    environment.pop("UV_NO_CONFIG")
    for command in (["lock"], ["lock", "--check"], ["sync", "--frozen"]):
        done = subprocess.run(
            [uv, *command],
            cwd=project,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    lock = (project / "uv.lock").read_text()
    assert "canary-1.0%2Bcu118.sm35.avx.1-py3-none-any.whl" in lock
    assert re.search(r'hash = "sha256:[0-9a-f]{64}"', lock)
    [package] = (project / ".venv").glob("lib/python*/site-packages/canary/__init__.py")
    assert package.read_text() == "x = 2\n"
