"""A loopback HTTP server that can misbehave, and archives of NVIDIA's shapes."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.threads import Handler, answered_by

INSTALLER = Path(__file__).parents[3] / "dockerfiles" / "scripts" / "install_toolkit.py"


@dataclass
class Served:
    """What the server has and did, and how it misbehaves: a list of faults for a path, used up in
    order.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[tuple]] = field(default_factory=dict)
    log: list[tuple[str, str | None, str | None]] = field(
        default_factory=list
    )  # path, Range, Authorization
    url: str = ""

    def paths(self):
        return [path for path, _, _ in self.log]


def _handler(served: Served):
    class Server(Handler):
        def head(self, status, length=None, **headers):
            self.send_response(status)
            if length is not None:
                self.send_header("Content-Length", str(length))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()

        def do_GET(self):
            path = self.path.partition("?")[0]
            wanted = self.headers.get("Range")
            served.log.append((self.path, wanted, self.headers.get("Authorization")))
            faults = served.faults.get(path, [])
            fault, *details = faults.pop(0) if faults else ("none",)
            body = served.files.get(path)
            if body is None:
                return self.head(404, 0)
            start = 0
            if wanted and fault != "no-range":
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if fault == "status":
                return self.head(details[0], 0, Retry_After="0")
            if fault == "redirect":
                return self.head(302, 0, Location=details[0])
            if fault == "endless":  # no Content-Length, and bytes until the client has had enough
                self.head(200)
                try:
                    while True:
                        self.wfile.write(b"\0" * 65536)
                except OSError:
                    return None
            if fault == "length":  # a Content-Length of its own
                self.head(200, details[0])
                self.wfile.write(body)
                return None
            extra = {"Content_Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
            self.head(206 if start else 200, len(body) - start, **extra)
            # "cut": the promised length, then only so many bytes
            self.wfile.write(body[start : start + details[0]] if fault == "cut" else body[start:])
            return None

    return Server


@pytest.fixture
def served():
    state = Served()
    with answered_by(_handler(state)) as state.url:
        yield state


def tar_xz(top, files, links=(), extra=()):
    """A tar.xz as NVIDIA makes them; `links` are (name, target), `extra` TarInfo objects added as
    they are.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=0) as tar:
        directory = tarfile.TarInfo(top)
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(directory)
        for name, content in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mode = len(content), 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(f"{top}/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for info in extra:
            tar.addfile(info, io.BytesIO(b"\0" * info.size) if info.isreg() else None)
    return buffer.getvalue()


def zipped(top, files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        if top:
            archive.writestr(f"{top}/", b"")
        for name, content in files.items():
            archive.writestr(f"{top}/{name}" if top else name, content)
    return buffer.getvalue()


@dataclass
class Case:
    """One installation: archives on the server, a manifest, the installer as a process."""

    served: Served
    folder: Path
    rows: list[dict] = field(default_factory=list)
    layout: str = "linux"

    @property
    def prefix(self):
        return self.folder / "opt" / "cuda"

    @property
    def cache(self):
        return self.folder / "cache"

    def add(self, component, content, kind="tar.xz", place="toolkit", **changes):
        path = f"/{component}/{component}.{kind}"
        self.served.files[path] = content
        row = {
            "component": component,
            "version": "11.8.89",
            "url": self.served.url + path,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "kind": kind,
            "place": place,
        }
        self.rows.append({**row, **changes})
        return path

    def manifest(self):
        head = {"schema": 1, "layout": self.layout}
        if self.layout == "linux":
            head["target"] = "x86_64-linux"
        path = self.folder / "manifest.json"
        path.write_text(json.dumps({**head, "archives": self.rows}))
        return path

    def command(self, *options):
        return [
            sys.executable,
            str(INSTALLER),
            str(self.manifest()),
            "--prefix",
            str(self.prefix),
            "--retry-wait",
            "0",
            *map(str, options),
        ]

    def run(self, *options):
        return subprocess.run(
            self.command(*options), capture_output=True, text=True, check=False, timeout=60
        )

    def refused(self, code, *options):
        """Runs, and holds the installer to its promises about failure; returns what it said."""
        before = snapshot(self.folder / "opt")
        done = self.run(*options)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("install_toolkit: ")
        assert snapshot(self.folder / "opt") == before
        return done.stderr

    def installed(self, *options):
        done = self.run(*options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [p.name for p in self.prefix.parent.iterdir()] == [
            self.prefix.name
        ]  # no staging left
        return done.stdout


def snapshot(folder):
    """Every path below with its content: bytes, link target, or None for a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in folder.rglob("*")
    }


@pytest.fixture
def case(served, tmp_path):
    (tmp_path / "opt").mkdir()
    return Case(served, tmp_path)


@pytest.fixture
def make_tar():
    return tar_xz


@pytest.fixture
def make_zip():
    return zipped


@pytest.fixture
def tree_of():
    return snapshot
