"""While an image is made, the screen says what goes on: apt's own words on a download, or how long nothing has come.

A server holds the second half of a package back until the screen has said how much is there.
"""

import hashlib
import ipaddress
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest

from farm import catalog
from farm.engines.base_images import base_image
from farm.engines.images import Toolchain, ensure_image
from farm.plan.build import resolve
from farm.plan.render import render
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant

ROOT = Path(__file__).parents[3]
RELEASE = catalog.debian_releases()["debian-bookworm"]
SIZE = 4 << 20


def package(folder: Path) -> bytes:
    """A Debian package with data that does not compress."""
    control = "Package: slow\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: slow\n"
    (folder / "DEBIAN").mkdir(parents=True)
    (folder / "DEBIAN/control").write_text(control)
    (folder / "data").write_bytes(os.urandom(SIZE))
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(folder), f"{folder}.deb"], check=True, capture_output=True)
    return Path(f"{folder}.deb").read_bytes()


class Repository:
    """A repository of apt on the address by which containers reach this machine."""

    def __init__(self, address: str, deb: bytes) -> None:
        self.said = threading.Event()
        self.seen_while_held: list[bool] = []
        index = (
            "Package: slow\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: slow\n"
            f"Filename: ./slow.deb\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n"
        )
        files = {"/./Packages": index.encode(), "/./slow.deb": deb, "/Packages": index.encode(), "/slow.deb": deb}
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                body = files.get(self.path)
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                half = len(body or b"") // 2
                self.wfile.write((body or b"")[:half])
                self.wfile.flush()
                if self.path.endswith(".deb"):
                    repository.seen_while_held.append(repository.said.wait(600))
                self.wfile.write((body or b"")[half:])

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        self.said.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def repository(client: docker.DockerClient, tmp_path: Path):
    (bridge,) = client.networks.list(names=["^bridge$"])
    # Docker takes the first address of the subnet for this machine.
    subnet = ipaddress.ip_network(bridge.attrs["IPAM"]["Config"][0]["Subnet"])
    made = Repository(str(next(subnet.hosts())), package(tmp_path / "slow"))
    yield made
    made.stop()


def options() -> str:
    """What the farm's own Dockerfile gives to `apt-get install`."""
    plan = resolve(ROOT, Selectors(variant=Variant.parse("cpu-avx-py311"), package="canary"))
    found = re.search(r"apt-get install (.*?) \\$", render(ROOT, plan).image["Dockerfile"], re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param(None, r"\d% \[1 slow [1-9][\d,.]* [kM]?B/4[\d,.]* [kM]B", id="apt's own words"),
        pytest.param("-y -qq", r"no output for \d+ s", id="a silent program"),
    ],
)
def test_a_download_is_seen_while_it_lasts(client, repository, tmp_path, given, shown):
    setup = f"rm -rf /etc/apt/sources.list* && echo 'deb [trusted=yes] {repository.url} ./' > /etc/apt/sources.list"
    text = f"ARG BASE\nFROM ${{BASE}}\nRUN {setup} && apt-get update -qq && apt-get install {given or options()} slow\n"
    lines: list[str] = []

    def line(text: str) -> None:
        lines.append(text)
        if re.search(shown, text):
            repository.said.set()

    wanted = Toolchain(
        repository="farm/test-screen",
        context={"Dockerfile": text},
        digest=hashlib.sha256(text.encode()).hexdigest(),
        base=base_image(client, "debian-bookworm", RELEASE, pull_timeout_s=20, mirror=None, line=print),
        labels={},
    )
    image = ensure_image(client, wanted, log=tmp_path / "image.log", line=line)
    client.images.remove(image.id, force=True)
    assert repository.seen_while_held == [True], "\n".join(lines)
    # What was overwritten is on the screen alone.
    assert "% [" not in (tmp_path / "image.log").read_text()
