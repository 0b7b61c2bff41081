"""Installing a wheel from an index of files, and probing what was installed."""

import functools
import hashlib
import socket
import ssl
import sys
import zipfile
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import boto3
import pytest

from farm.base.errors import InfrastructureError, SmokeFailedError, UsageError
from farm.smoke.environment import Target, install, make_environment
from farm.smoke.runner import Expectation, run_probe
from tests import fakemod
from tests.indexes.wheels import build_wheel
from tests.servers import moto
from tests.servers.threads import answered_by
from tests.servers.tls import Authority


def add_wheel(
    index: Path, name: str, version: str, source: str, requires: str = "", tag: str = "py3-none-any"
) -> None:
    """Puts a pure-Python wheel with one module into an index of files."""
    wheel = build_wheel(
        index / name, f"{name}-{version}-{tag}.whl", source, requires, python=None
    ).path
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with wheel.with_name("index.html").open("a") as page:
        page.write(
            "<!DOCTYPE html><a "
            f'href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>\n'
        )


VERSION = "1.2.3+cu118.sm35.avx"


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "index"
    add_wheel(folder, "fakemod", VERSION, fakemod.SOURCE.replace('"1.2.3"', f'"{VERSION}"'))
    return folder


@pytest.fixture
def python(tmp_path):
    return make_environment(tmp_path / "env", Path(sys.executable))


def test_a_wheel_for_another_machine_is_installed_into_a_folder(tmp_path, python):
    """The newest that its Python and glibc take."""
    index = tmp_path / "index"
    for version, tag in (("1", "py3-none-any"), ("2", "cp39-abi3-manylinux_2_17_aarch64")):
        add_wheel(index, "far", version, "", tag=tag)
    for version, tag in (
        ("3", "cp311-cp311-manylinux_2_39_aarch64"),
        ("4", "cp311-cp311-manylinux_2_17_x86_64"),
    ):
        add_wheel(index, "far", version, "", tag=tag)
    target, log = Target(tmp_path / "site", "py311", "aarch64", "2.36"), tmp_path / "log"
    install(
        python, "far", target=target, source=("--index-url", index.as_uri()), log=log, timeout_s=600
    )
    assert [folder.name for folder in target.folder.glob("*.dist-info")] == ["far-2.dist-info"]


NONE_SUCH = "No matching distribution found for fakemod==9"


def test_a_python_too_old_for_this_pip_brings_its_own(tmp_path, index, monkeypatch):
    """pip 26.3 and Python 3.9: its words, and its exit code."""
    python = make_environment(tmp_path / "env", Path(sys.executable))
    program = tmp_path / "new"
    program.write_text(
        "#!/bin/sh\necho 'This version of pip does not support python 3.9 (requires "
        ">=3.10).'\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    source = ("--index-url", index.as_uri())
    install(python, f"fakemod=={VERSION}", source=source, log=tmp_path / "pip.log", timeout_s=600)
    assert "Successfully installed" in (tmp_path / "pip.log").read_text()
    with pytest.raises(SmokeFailedError, match="failed with exit code 1"):
        install(python, "fakemod==9", source=source, log=tmp_path / "pip.log", timeout_s=600)


def test_install_then_probe(tmp_path, index, python):
    log = tmp_path / "logs" / "pip.log"
    lines: list[str] = []
    source = ("--index-url", index.as_uri())
    install(python, f"fakemod=={VERSION}", source=source, log=log, timeout_s=600, line=lines.append)
    assert "Successfully installed" in log.read_text()
    # The screen gets what the log gets.
    assert "\n".join(lines) == log.read_text().rstrip("\n")
    report = run_probe(python, module="fakemod", expect=Expectation(version=VERSION), timeout_s=600)
    assert report.outcome == "passed"
    (imported,) = [c.seen for c in report.checks if c.name == "import"]
    assert (tmp_path / "env" / imported).is_file()


def test_what_is_not_in_the_index_fails_with_the_installers_words(tmp_path, index, python):
    log = tmp_path / "pip.log"
    with pytest.raises(SmokeFailedError, match=NONE_SUCH) as caught:
        install(
            python, "fakemod==9", source=("--index-url", index.as_uri()), log=log, timeout_s=600
        )
    assert caught.value.hint == f"log: {log}"


# `need` begins as `needy` does, as torch and torchvision.
@pytest.mark.parametrize(
    ("absent", "version"), [("absentmod", ""), ("absentmod", "==1.13.1"), ("need", "==1")]
)
def test_what_a_wheel_needs_and_the_index_lacks_is_named(tmp_path, index, python, absent, version):
    add_wheel(index, "needy", "1", fakemod.SOURCE, f"Requires-Dist: {absent}{version}\n")
    with pytest.raises(SmokeFailedError, match=absent) as caught:
        install(
            python,
            "needy==1",
            source=("--index-url", index.as_uri()),
            log=tmp_path / "pip.log",
            timeout_s=600,
        )
    assert f"no index has {absent} as the wheel needs it" in caught.value.hint


def test_a_bucket_that_not_everybody_may_read_is_named(tmp_path, python):
    """As a bucket is when it was made; pip says of it only that there is no such version."""
    with moto.in_thread() as url:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        client = boto3.Session(**keys).client("s3", endpoint_url=url)
        client.create_bucket(Bucket="wheels")
        client.put_object(Bucket="wheels", Key="simple/fakemod/", Body=b"")
        client.close()
        source = ("--index-url", f"{url}/wheels/simple/")
        with pytest.raises(SmokeFailedError) as caught:
            install(python, "fakemod==9", source=source, log=tmp_path / "pip.log", timeout_s=600)
    assert f"{url}/wheels/simple/ answers 403 to pip" in str(caught.value)
    assert caught.value.hint.startswith("let everybody read the bucket")


def test_an_index_that_does_not_answer_is_no_fault_of_the_wheel(tmp_path, python, monkeypatch):
    monkeypatch.setenv("PIP_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/simple/"
    with pytest.raises(InfrastructureError) as caught:
        install(
            python,
            "fakemod==9",
            source=("--index-url", url),
            log=tmp_path / "pip.log",
            timeout_s=600,
        )
    assert f"{url} does not answer ([Errno 111] Connection refused)" in str(caught.value)
    assert caught.value.hint.startswith("start its server")


def test_an_address_without_the_project_is_no_fault_of_the_wheel(tmp_path, index, python):
    """The index's root for that of a group, for one: pip says of it only that there is no such
    version.
    """
    with web(index) as url:
        for wrong in (f"{url}/fakemod", f"{url}/none/"):
            source = ("--index-url", wrong)
            with pytest.raises(
                InfrastructureError, match=f"{wrong} has no page of fakemod"
            ) as caught:
                install(
                    python, "fakemod==9", source=source, log=tmp_path / "pip.log", timeout_s=600
                )
            assert "/whl/<group>/simple/" in caught.value.hint
        with pytest.raises(SmokeFailedError, match=f"(?i){NONE_SUCH}"):
            install(
                python,
                "FakeMod==9",
                source=("--index-url", url),
                log=tmp_path / "pip.log",
                timeout_s=600,
            )


def test_a_password_in_the_address_is_not_shown(tmp_path, index, python):
    with web(index) as url:
        source = ("--index-url", url.replace("//", "//ann:s3cret@"))
        with pytest.raises(SmokeFailedError, match=NONE_SUCH) as caught:
            install(python, "fakemod==9", source=source, log=tmp_path / "pip.log", timeout_s=600)
    assert url.replace("//", "//****@") in str(caught.value)
    assert "s3cret" not in f"{caught.value}{caught.value.hint}{(tmp_path / 'pip.log').read_text()}"


def test_an_unknown_certificate_authority_is_named(tmp_path, python, monkeypatch):
    monkeypatch.setenv("PIP_RETRIES", "0")
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server("127.0.0.1"))
    with web(tmp_path, context) as url:
        source = ("--index-url", url)
        with pytest.raises(InfrastructureError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            install(python, "fakemod==9", source=source, log=tmp_path / "pip.log", timeout_s=600)
        assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        with pytest.raises(InfrastructureError, match="has no page of fakemod"):
            install(python, "fakemod==9", source=source, log=tmp_path / "pip.log", timeout_s=600)


def web(folder, tls=None):
    """A web server of a folder on the loopback."""
    return answered_by(functools.partial(Quiet, directory=str(folder)), tls)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_no_other_index_can_answer(tmp_path, index, python, monkeypatch):
    other = tmp_path / "other"
    add_wheel(other, "fakemod", "9", fakemod.SOURCE)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", other.as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", str(other / "fakemod"))
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nextra-index-url = {other.as_uri()}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    with pytest.raises(SmokeFailedError, match=NONE_SUCH):
        install(
            python,
            "fakemod==9",
            source=("--index-url", index.as_uri()),
            log=tmp_path / "pip.log",
            timeout_s=600,
        )


def test_a_wheel_with_other_bytes_than_the_index_says_is_refused(tmp_path, index, python):
    (wheel,) = index.glob("fakemod/*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("planted.py", "x = 1")
    with pytest.raises(SmokeFailedError, match="DO NOT MATCH THE HASHES"):
        install(
            python,
            f"fakemod=={VERSION}",
            source=("--index-url", index.as_uri()),
            log=tmp_path / "pip.log",
            timeout_s=600,
        )


def test_a_requirement_is_no_option(tmp_path, index, python):
    with pytest.raises(UsageError, match="is not a requirement"):
        install(
            python,
            "--target=/",
            source=("--index-url", index.as_uri()),
            log=tmp_path / "pip.log",
            timeout_s=600,
        )
