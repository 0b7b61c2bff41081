"""A stranger's package of the same name and a higher version, on the index that the user's
installer asks (dependency confusion), is not installed by any line that the farm prints, nor by its
own test.
"""

import functools
import hashlib
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from farm.index.pins import install_words, pins_of, root_and_group
from farm.index.reader import open_reader
from farm.index.store_urls import open_store
from farm.smoke.environment import install, make_environment
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers.threads import answered_by

GROUP = "sm35-avx"
HELLO = "hello-1.0-py3-none-any.whl"


@pytest.fixture
def published(tmp_path):
    """Publishes wheels of the group by file name, with what each requires."""
    store = open_store(str(tmp_path / "index"))

    def add(filename, *requires):
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        publish_wheel(store, build_wheel(tmp_path / "made", filename, "", lines))

    return add


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(tmp_path):
    """Where a web server serves the test's folder: uv reads no index in a folder."""
    with answered_by(functools.partial(Quiet, directory=str(tmp_path))) as url:
        yield url.rstrip("/")


@pytest.fixture
def stranger(tmp_path, address):
    """The address of an index that stands for PyPI, with packages of these names in version 99."""
    root = tmp_path / "stranger"

    def add(*names):
        for name in names:
            folder = root / name.replace("_", "-")
            wheel = build_wheel(folder, f"{name}-99.0-py3-none-any.whl").path
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            (folder / "index.html").write_text(
                f'<!DOCTYPE html><a href="{wheel.name}#sha256={digest}">{wheel.name}</a>'
            )
        return f"{address}/stranger"

    return add


@pytest.fixture
def words(tmp_path, address):
    reader = open_reader(str(tmp_path / "index"))
    return lambda: install_words(reader.get, f"{address}/index/", GROUP, HELLO)


def hostile_settings(home, index):
    """What a user's shell and configuration say in favour of a stranger's index, as strongly as
    they can.
    """
    for file, text in {
        ".config/pip/pip.conf": f"[global]\nextra-index-url = {index}\n",
        ".config/uv/uv.toml": f'[[index]]\nurl = "{index}"\n',
        "project/uv.toml": f'[[index]]\nname = "near"\nurl = "{index}"\n',
    }.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text)
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
    return {**dict.fromkeys(names, index), "UV_INDEX_STRATEGY": "unsafe-best-match"}


def run_installer(command, home, index, check=True):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), **hostile_settings(home, index)}
    environment |= {"PIP_NO_CACHE_DIR": "1", "UV_CACHE_DIR": str(home / "uv")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=home / "project",
    )
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def installed(python):
    folder = next(python.parents[1].glob("lib/python*/site-packages"))
    return sorted(path.name.removesuffix(".dist-info") for path in folder.glob("*.dist-info"))


@pytest.fixture(params=["pip", "uv"])
def installer(request):
    if request.param == "pip":
        return lambda python: [sys.executable, "-m", "pip", f"--python={python}", "install"]
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    return lambda python: [uv, "pip", "install", f"--python={python}"]


def test_what_the_group_has_comes_from_it_alone(published, words, stranger, installer, tmp_path):
    published("acme_core-1.0-py3-none-any.whl")
    published(HELLO, "acme-core", "sympy")
    index = stranger("acme_core", "sympy", "hello")
    python = make_environment(tmp_path / "env", Path(sys.executable))
    run_installer([*installer(python), *words()], tmp_path, index)
    assert installed(python) == ["acme_core-1.0", "hello-1.0", "sympy-99.0"]


def test_where_the_group_has_all_nothing_comes_from_elsewhere(
    published, words, stranger, installer, tmp_path
):
    published("acme_core-1.0-py3-none-any.whl")
    published(HELLO, "acme-core")
    python = make_environment(tmp_path / "env", Path(sys.executable))
    run_installer([*installer(python), *words()], tmp_path, stranger("acme_core", "hello"))
    assert installed(python) == ["acme_core-1.0", "hello-1.0"]


def test_the_smoke_test_installs_the_same(published, words, stranger, tmp_path):
    published("acme_core-1.0-py3-none-any.whl")
    published(HELLO, "acme-core", "sympy")
    python = make_environment(tmp_path / "env", Path(sys.executable))
    install(
        python,
        "hello==1.0",
        source=("--index-url", stranger("acme_core", "sympy", "hello"), *words()),
        log=tmp_path / "log",
        timeout_s=600,
    )
    assert installed(python) == ["acme_core-1.0", "hello-1.0", "sympy-99.0"]


def test_a_wheel_with_other_bytes_is_refused(published, words, stranger, installer, tmp_path):
    published(HELLO, "sympy")
    other = build_wheel(tmp_path / "other", HELLO, "evil = 1\n", "Requires-Dist: sympy\n").path
    (tmp_path / "index/whl/files" / HELLO).write_bytes(other.read_bytes())
    python = make_environment(tmp_path / "env", Path(sys.executable))
    command = [*installer(python), *words()]
    with pytest.raises(AssertionError, match=r"(?i)hash"):
        run_installer(command, tmp_path, stranger("sympy"))


def test_a_name_that_the_group_has_is_never_left_to_others(
    published, words, stranger, installer, tmp_path
):
    """It has no version that is wanted: the installation fails, and a stranger's is not taken."""
    published("acme_core-1.0-py3-none-any.whl")
    published(HELLO, "acme-core>=2", "sympy")
    python = make_environment(tmp_path / "env", Path(sys.executable))
    index = stranger("acme_core", "sympy", "hello")
    done = run_installer([*installer(python), *words()], tmp_path, index, check=False)
    assert done.returncode != 0
    assert "acme-core>=2" in done.stdout + done.stderr
    assert installed(python) == []
    pins = pins_of(open_reader(str(tmp_path / "index")).get, GROUP, HELLO)
    assert (pins.elsewhere, pins.unmet) == (("sympy",), ("acme-core>=2",))


def test_needs_are_those_of_the_wheels_own_python_and_extras(published, tmp_path):
    wheel = "hello-1.0-cp312-cp312-linux_x86_64.whl"
    for tag in ("cp311-cp311-linux_x86_64", "cp312-cp312-linux_x86_64", "cp312-cp312-win_amd64"):
        published(f"acme_core-1.0-{tag}.whl", "deep; extra == 'fast'")
    published("deep-1.0-py3-none-any.whl")
    published("old-1.0-py3-none-any.whl")
    published(
        wheel,
        "acme-core[fast]",
        "old; python_version < '3.12'",
        "windows-only; sys_platform == 'win32'",
        "tests; extra == 'test'",
    )
    pins = pins_of(open_reader(str(tmp_path / "index")).get, GROUP, wheel)
    assert [file.filename for file in pins.wheels] == [
        wheel,
        "acme_core-1.0-cp312-cp312-linux_x86_64.whl",
        "deep-1.0-py3-none-any.whl",
    ]
    assert pins.elsewhere == ()


def test_the_newest_wheel_that_is_not_withdrawn_is_taken(published, tmp_path):
    for version in ("1.0", "1.10", "1.9"):
        published(f"acme_core-{version}-py3-none-any.whl")
    published(HELLO, "acme-core<1.10", "hello")
    pins = pins_of(open_reader(str(tmp_path / "index")).get, GROUP, HELLO)
    assert [file.filename for file in pins.wheels] == [HELLO, "acme_core-1.9-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("index_url", "parts"),
    [
        ("https://x.org/a/whl/sm35-avx/simple/", ("https://x.org/a/", "sm35-avx")),
        ("https://x.org/whl/sm35-avx/simple", ("https://x.org/", "sm35-avx")),
        ("https://index.example/simple", None),
        ("https://download.pytorch.org/whl/cu118", None),
    ],
)
def test_an_address_that_pip_is_given_names_root_and_group(index_url, parts):
    assert root_and_group(index_url) == parts
