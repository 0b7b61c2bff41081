"""The configurations of docs/servers before a folder and before Ceph, read by clients."""

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from farm.index.changes import record_event
from farm.index.public import check_public
from farm.index.reader import open_reader
from farm.index.signatures import set_keys, sign, verify_index
from farm.index.store_urls import open_store
from farm.index.variants import properties, publish_variant, published, variant_json
from farm.wheel.rewrite import label_wheel
from tests.indexes.keys import write_key
from tests.indexes.projects import LOCKS, REQUIREMENTS, Project
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers import web
from tests.servers.buckets import ISOLATED, KEYS, make_bucket
from tests.servers.process import MissingError, environment

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
JSON = "application/vnd.pypi.simple.v1+json"
PIP = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, "
    "text/html; q=0.01"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

PUBLIC = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:ListBucket"],
         "Resource": ["arn:aws:s3:::web", "arn:aws:s3:::web/*"]}
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "farm.key"
    return write_key(path), []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where the wheels were made."""
    return tmp_path_factory.mktemp("made")


FILLED = []
"""The stores behind the servers; the last is that of the server that runs."""


def fill(store, folder, key):
    FILLED.append(store)
    for name, payload in ((FIRST, "x = 1\n"), (SECOND, "x = 2\n")):
        publish_wheel(store, build_wheel(folder, name, payload))
    record_event(store, [SECOND], "yank", "for the wrong GPU")
    whole = build_wheel(folder, "canary-1.0+cu118.sm61.avx2-py3-none-any.whl")
    publish_wheel(store, whole, group="sm61-avx2")
    label, labelled = properties("sm61", (61,), "avx2")
    with tempfile.TemporaryDirectory() as made:
        path, metadata = label_wheel(whole.path, Path(made), label, variant_json({label: labelled}))
        publish_variant(store, path, published(store, whole.path), label, labelled, metadata)
    signer, roots = key
    roots[:] = [set_keys(store, signer, [signer.public_key])[1]]
    sign(store, signer)


@pytest.fixture(scope="module")
def readable():
    """A folder that every user can look into, which pytest's are not: Apache serves as nobody."""
    with tempfile.TemporaryDirectory(prefix="farm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def before_a_folder(kind, work, root, made, key):
    fill(open_store(str(root)), made, key)
    server = {
        "nginx": lambda: web.nginx(work, "nginx-folder.conf", **{"/srv/wheels": str(root)}),
        "caddy": lambda: web.caddy(work, root),
        "apache": lambda: web.apache(work, root),
    }[kind]()
    with server as url:
        yield url


@contextlib.contextmanager
def before_a_bucket(work, ceph, made, key):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, **ISOLATED}.items():
            patch.setenv(name, value)
        store = open_store(make_bucket(ceph.http, "web"))
        for old in store.client.list_objects_v2(Bucket="web").get("Contents", []):
            store.client.delete_object(Bucket="web", Key=old["Key"])  # not all are keys of an index
        fill(store, made, key)
        for private in ("probe/x", "whl/files/.tmp/x", "farm.key"):
            store.client.put_object(Bucket="web", Key=private, Body=b"not for everybody")
        store.client.put_bucket_policy(Bucket="web", Policy=json.dumps(PUBLIC))
    words = {
        "127.0.0.1:7480": ceph.http.removeprefix("http://"),
        "http://farm_store/wheels": "http://farm_store/web",
        "/var/cache/nginx/wheels": str(work / "cache"),
    }
    with web.nginx(work, "nginx-bucket.conf", **words) as url:
        yield url


@pytest.fixture(scope="module", params=["nginx", "caddy", "apache", "ceph"])
def served(request, tmp_path_factory, key, made, readable, require):
    """The URL of an index with a yanked and another wheel."""
    kind, work = request.param, tmp_path_factory.mktemp(request.param)
    try:
        if kind == "ceph":
            server = before_a_bucket(work, request.getfixturevalue("running_ceph"), made, key)
        else:
            server = before_a_folder(kind, work, readable / kind, made, key)
        with server as url:
            yield url
    except MissingError as error:
        require("a web server", error)


def get(url, **headers):
    request = urllib.request.Request(
        url, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.headers, answer.read()


@pytest.mark.parametrize(
    ("accept", "json_wanted"),
    [
        (PIP, True),
        (BROWSER, False),
        (None, False),
        ("*/*", False),
        (JSON, True),
        (f"{JSON};q=0.2, text/html;q=0.8", False),
        (f"{JSON};q=0.8, text/html;q=0.2", True),
        (f"text/html, {JSON};q=0.9", False),
        (f"{JSON}, text/html", True),
        (f"{JSON};q=0, text/html", False),
        ("application/vnd.pypi.simple.latest+json", True),
    ],
)
def test_a_client_gets_the_form_that_it_asks_for(served, accept, json_wanted):
    for page in ("canary/", ""):
        headers, data = get(
            f"{served}/whl/sm35-avx/simple/{page}", **({"Accept": accept} if accept else {})
        )
        kind = headers.get_content_type()
        assert kind == (JSON if json_wanted else "text/html"), (page, accept)
        assert "Accept" in " ".join(headers.get_all("Vary") or [])
        if json_wanted:
            assert json.loads(data)["meta"]["api-version"] == "1.1"


def test_the_public_check_has_nothing_to_say(served):
    assert check_public(FILLED[-1], open_reader(served), wheels=True) == []


def test_roots_types_and_caching(served):
    for place, kind in {
        "": "text/html",
        "whl/": "text/html",
        "whl/sm35-avx/v1-json/": JSON,
        "whl/sm35-avx/v1-json/canary/": JSON,
        "catalog.json": "application/json",
    }.items():
        headers, _data = get(f"{served}/{place}")
        assert headers.get_content_type() == kind, place
        assert headers["Cache-Control"] in {"no-cache", None} or not place, place
        assert headers["Access-Control-Allow-Origin"] == "*", place
    headers, data = get(f"{served}/whl/files/{FIRST.replace('+', '%2B')}")
    assert "immutable" in headers["Cache-Control"]
    assert headers.get("Content-Encoding") is None
    assert data[:2] == b"PK"
    headers, data = get(
        f"{served}/whl/variant/files/canary-1.0-py3-none-any-sm61_v3.whl", Accept_Encoding="gzip"
    )
    assert "immutable" in headers["Cache-Control"]
    assert (headers.get("Content-Encoding"), data[:2]) == (None, b"PK")
    for absent in (
        "whl/sm35-avx/simple/torch/", ".lock", "whl/files/none.whl", "whl/sm35-avx/", "whl/files/", "records/",
    ):  # fmt: skip
        assert status(f"{served}/{absent}")[0] == 404, absent


def test_who_reads_plain_pages_has_them_whole_and_once(served, made):
    page = f"{served}/whl/sm35-avx/v1-json/canary/"
    _, headers, whole = status(page)
    code, _, part = status(page, Range="bytes=0-99")
    assert (code, part) in {(200, whole), (206, whole[:100])}
    assert status(page, If_None_Match=headers["ETag"])[0] == 304
    for _ in range(2):  # out of a cache, the second time
        code, _, part = status(
            f"{served}/whl/files/{SECOND.replace('+', '%2B')}", Range="bytes=10-19"
        )
        assert (code, part) == (206, (made / SECOND).read_bytes()[10:20])


def test_a_packed_page_says_that_there_is_a_plain_one(served):
    """Else a cache gives what it got for pip to who cannot unpack it."""
    _, headers, data = status(f"{served}/whl/sm35-avx/v1-json/canary/", Accept_Encoding="gzip")
    assert (headers["Content-Encoding"], data[:2]) == ("gzip", b"\x1f\x8b")
    assert "Accept-Encoding" in " ".join(headers.get_all("Vary"))
    assert status(f"{served}/whl/sm35-avx/v1-json/canary/")[2][:1] == b"{"


@pytest.mark.parametrize(
    "method", ["POST", "PUT"]
)  # twine and uv; those who take the index for WebDAV
@pytest.mark.parametrize("place", ["", "whl/sm35-avx/simple/", "legacy/"])
def test_an_upload_fails(served, place, method, request):
    """Caddy and Apache answer a POST with the page: `twine upload` would say that the wheel was
    published.

    No 5xx, as a bucket says: twine sends the wheel five times then. No 413, as nginx says of more
    than 1 MB: who raises that limit is no further.
    """
    kind = request.node.callspec.params["served"]
    wheel = (
        bytes(2**21) if kind in {"nginx", "ceph"} else None
    )  # others close; urllib sees no answer then
    assert status(f"{served}/{place}", method, wheel)[0] == 405


def test_a_stranger_with_one_public_key_verifies_it(served, key, tmp_path):
    for _ in range(2):
        done = verify_index(open_reader(served), key[1][0], state=tmp_path / "seen", wheels=True)
        assert (done.problems, done.wheels) == ((), 3)


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_installers(served, client, tmp_path):
    target = tmp_path / "target"
    start = {
        "pip": [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ],
        "uv": [
            Path(sys.executable).with_name("uv"),
            "pip",
            "install",
            "--no-cache",
            "--python",
            sys.executable,
        ],
    }[client]
    for where in (
        ["--index-url", f"{served}/whl/sm35-avx/simple/"],
        ["--index-url", f"{served}/whl/sm35-avx/v1-json/"],
    ):
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PIP_CONFIG_FILE": "/dev/null",
            "UV_NO_CONFIG": "1",
        }
        command = [*map(str, start), "--target", str(target), *where, "canary"]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        [info] = target.glob("*.dist-info")
        assert info.name == "canary-1.0+cu118.sm35.avx.dist-info", "the other is yanked"
        shutil.rmtree(target)


@pytest.mark.parametrize("client", REQUIREMENTS)
@pytest.mark.parametrize("served", ["nginx", "caddy", "apache"], indirect=True)
def test_locks_have_hashes_and_are_installed(served, client, made, tmp_path, require):
    try:
        project = Project(client, tmp_path / "user")
    except MissingError as error:
        require(client, error)
    done = project.lock(f"{served}/whl/sm35-avx/simple/")
    assert done.returncode == 0, done.stdout + done.stderr
    digest = hashlib.sha256((made / FIRST).read_bytes()).hexdigest()
    assert f"sha256:{digest}" in (project.folder / LOCKS[client]).read_text()
    assert project.installed() == "x = 1\n", "the other is yanked"


def test_uv_finds_the_copy_for_the_gpu(served, tmp_path):
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2, so uv takes none of the wheels")
    uv = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--no-cache",
        "--python",
        sys.executable,
    ]
    forced = {"SM_ARCH": "6.1", "CUDA_DRIVER_VERSION": "12.8"}
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_NO_CONFIG": "1", "NO_PROXY": "*"}
    env |= {"UV_PREVIEW_FEATURES": "wheel-variants"}
    env |= {f"NV_VARIANT_PROVIDER_FORCE_{name}": value for name, value in forced.items()}
    command = [
        *uv,
        "--target",
        tmp_path / "target",
        "--index-url",
        f"{served}/whl/variant/simple/",
        "canary",
    ]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target/canary-1.0.dist-info/variant.json").exists()


READ = """
import sys
from pypi_simple import PyPISimple, ACCEPT_JSON_ONLY, ACCEPT_HTML_ONLY
for accept in (ACCEPT_JSON_ONLY, ACCEPT_HTML_ONLY):
    with PyPISimple(sys.argv[1], accept=accept) as client:
        assert client.get_index_page().projects == ["canary"]
        page = client.get_project_page("canary")
        packages = page.packages
        print([(p.filename, p.digests["sha256"], p.is_yanked, p.has_metadata) for p in packages])
"""


def test_pypi_simple_reads_both_forms(served, made, require):
    try:
        python = environment("pypi-simple", "pypi-simple") / "python"
    except MissingError as error:
        require("pypi-simple", error)
    done = subprocess.run(
        [python, "-c", READ, f"{served}/whl/sm35-avx/simple/"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    digests = [hashlib.sha256((made / name).read_bytes()).hexdigest() for name in (FIRST, SECOND)]
    wanted = str([(FIRST, digests[0], False, True), (SECOND, digests[1], True, True)])
    assert done.stdout.splitlines() == [wanted] * 2


def status(url, method="GET", body=None, **headers):
    """The status, headers and bytes as they are sent, of failures too."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, body, named, method=method), timeout=120
        )
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, answer.read()
