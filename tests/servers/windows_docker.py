"""A stand-in for Docker's engine on Windows Server 2022. There is no Windows here.

It answers as Docker's API reference and moby's daemon for Windows document it: what containers are
told, which options such an engine refuses, where archives are unpacked. No program runs: a
container does what the test's `program` does with its files.
"""

import io
import json
import re
import struct
import tarfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.servers.threads import Handler, answered_by

INFO = {
    "ID": "stand-in",
    "OSType": "windows",
    "OSVersion": "10.0.20348",
    "KernelVersion": "10.0 20348 (20348.859.amd64fre.fe_release_svc_prod2.220707-1832)",
    "OperatingSystem": "Microsoft Windows Server Version 21H2 (OS Build 20348.1129)",
    "Architecture": "x86_64",
    "Isolation": "process",
    "NCPU": 8,
    "MemTotal": 32 << 30,
    "ServerVersion": "25.0.6",
    "Name": "stand-in",
}
REFUSED = (
    "MemorySwap", "MemoryReservation", "MemorySwappiness", "PidsLimit", "Ulimits", "CpusetCpus",
    "CpuPeriod", "BlkioWeight", "CgroupParent", "OomKillDisable", "CapDrop", "SecurityOpt", "Init",
    "DeviceRequests",
)  # fmt: skip
"""Of HostConfig: what moby's daemon for Windows answers with an error."""
NOW = "2026-11-28T12:00:00Z"


@dataclass
class Container:
    """What the engine keeps of a container; paths are Windows' own, such as `C:\\farm\\job\\x`."""

    id: str
    config: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    log: bytes = b""
    status: str = "created"
    code: int = 0
    end: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)


Program = Callable[[Container, dict[str, dict[str, bytes]]], int]
"""Runs in a container, with the engine's volumes by name; returns an exit code."""


class Engine:
    """The engine's state, which tests look at."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.info = dict(INFO)
        self.images: dict[str, str] = {}  # name -> id
        self.registry: set[str] = set()
        self.builds: list[dict[str, Any]] = []
        self.containers: dict[str, Container] = {}
        self.volumes: dict[str, dict[str, bytes]] = {}
        self.fails: str = ""  # what a build of an image prints before it fails

    def create(self, config: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        host = config["HostConfig"]
        for name in REFUSED:
            if host.get(name):
                return 400, {"message": f"invalid option: Windows does not support {name}"}
        if host.get("NetworkMode") == "host":
            return 400, {"message": "network host is not supported on Windows"}
        if host.get("Isolation") not in ("", "default", "process", "hyperv"):
            return 400, {"message": "invalid isolation"}
        for bind in host.get("Binds") or []:
            name, target = bind.split(":", 1)
            if not re.match(r"^[A-Za-z]:\\", target):
                return 400, {
                    "message": f"invalid mount path {target!r}: mount path must be absolute"
                }
            self.volumes.setdefault(name, {})
        made = Container(f"{len(self.containers) + 1:064x}", config)
        self.containers[made.id] = made
        return 201, {"Id": made.id, "Warnings": []}

    def start(self, container: Container) -> None:
        container.status = "running"

        def run() -> None:
            code = self.program(container, self.volumes)
            container.code = 3221225786 if container.stopped.is_set() else code
            container.status = "exited"
            container.end.set()

        threading.Thread(target=run, daemon=True).start()

    def inspect(self, container: Container) -> dict[str, Any]:
        state = {
            "Status": container.status,
            "ExitCode": container.code,
            "OOMKilled": False,
            "Error": "",
            "StartedAt": NOW,
            "FinishedAt": NOW,
        }
        return {"Id": container.id, "State": state, "Config": container.config, "Image": "sha256:0"}


def _windows_path(folder: str, name: str) -> str:
    return "\\".join([folder.rstrip("\\"), *name.strip("/").split("/")])


def _handler(engine: Engine) -> type[Handler]:
    class Api(Handler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.route()

        do_POST = do_PUT = do_DELETE = do_HEAD = do_GET

        def answer(self, status: int, document: Any = None) -> None:
            body = b"" if document is None else json.dumps(document).encode()
            self.reply(status, body, {"Content-Type": "application/json"})

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            whole = b""
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            return whole

        def stream(self, pieces: Iterator[bytes] | list[bytes], kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def route(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(parts.query))
            path = re.sub(r"^/v[\d.]+", "", urllib.parse.unquote(parts.path))
            body = self.body()
            if path == "/_ping":
                self.reply(200, b"OK")
            elif path == "/version":
                self.answer(200, {"ApiVersion": "1.44", "MinAPIVersion": "1.24", "Os": "windows"})
            elif path == "/info":
                self.answer(200, engine.info)
            elif path.startswith("/images/"):
                self.images(path.removeprefix("/images/"), query)
            elif path == "/build":
                self.build(query, body)
            elif path == "/containers/create":
                self.answer(*engine.create(json.loads(body)))
            elif path == "/containers/json":
                wanted = json.loads(query.get("filters", "{}")).get("label", [])
                self.answer(200, [{"Id": c.id} for c in self.labelled(wanted)])
            elif path.startswith("/containers/"):
                self.container(*path.removeprefix("/containers/").partition("/")[::2], query, body)
            elif path.startswith("/volumes/"):
                name = path.removeprefix("/volumes/")
                if name not in engine.volumes:
                    self.answer(404, {"message": f"get {name}: no such volume"})
                elif self.command == "DELETE":
                    del engine.volumes[name]
                    self.answer(204)
                else:
                    self.answer(200, {"Name": name})
            else:
                self.answer(404, {"message": f"page not found: {path}"})

        def labelled(self, wanted: list[str]) -> list[Container]:
            return [
                each
                for each in engine.containers.values()
                if all(
                    each.config["Labels"].get(label.split("=", 1)[0]) == label.split("=", 1)[1]
                    for label in wanted
                )
            ]

        def images(self, rest: str, query: dict[str, str]) -> None:
            if rest == "create":
                name = f"{query['fromImage']}:{query['tag']}"
                if name not in engine.registry:
                    self.stream([json.dumps({"error": f"{name} not found"}).encode()], "text/plain")
                    return
                engine.images[name] = f"sha256:base-{query['tag']}"
                self.stream([b'{"status": "Pull complete"}\n'], "application/json")
                return
            name, _, what = rest.rpartition("/")
            image = engine.images.get(name) or (name if name in engine.images.values() else None)
            if image is None:
                self.answer(404, {"message": f"No such image: {name}"})
            elif what == "tag":
                engine.images[f"{query['repo']}:{query['tag']}"] = image
                self.answer(201)
            else:
                tags = [tag for tag, other in engine.images.items() if other == image]
                self.answer(200, {"Id": image, "RepoTags": tags, "Config": {"Env": []}})

        def build(self, query: dict[str, str], body: bytes) -> None:
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                names = archive.getnames()
            engine.builds.append({"query": query, "names": names})
            lines = [{"stream": "Step 1/2 : ARG BASE\n"}, {"stream": "Step 2/2 : RUN x\n"}]
            if engine.fails:
                lines += [{"stream": engine.fails + "\n"}]
                lines += [{"error": "failed", "errorDetail": {"code": 9, "message": "failed"}}]
            else:
                image = f"sha256:{len(engine.builds):064x}"
                engine.images[f"<none>:{image}"] = image
                lines += [{"aux": {"ID": image}}]
            self.stream([json.dumps(line).encode() + b"\n" for line in lines], "application/json")

        def container(self, identity: str, what: str, query: dict[str, str], body: bytes) -> None:
            found = engine.containers.get(identity)
            if found is None:
                self.answer(404, {"message": f"No such container: {identity}"})
            elif what == "json":
                self.answer(200, engine.inspect(found))
            elif what == "start":
                engine.start(found)
                self.answer(204)
            elif what == "stop":
                found.stopped.set()
                found.end.wait(60)
                self.answer(204)
            elif what == "wait":
                found.end.wait(60)
                self.answer(200, {"StatusCode": found.code})
            elif what == "logs":
                self.stream(
                    self.log(found, follow=query.get("follow") == "1"), "application/octet-stream"
                )
            elif what == "archive" and self.command == "PUT":
                with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                    for member in archive:
                        if member.isfile():
                            source = archive.extractfile(member)
                            assert source is not None
                            found.files[_windows_path(query["path"], member.name)] = source.read()
                self.answer(200)
            elif what == "archive":
                self.copy_out(found, query["path"])
            elif self.command == "DELETE":
                found.stopped.set()
                del engine.containers[identity]
                self.answer(204)
            else:
                self.answer(404, {"message": f"page not found: {what}"})

        def log(self, container: Container, *, follow: bool) -> Iterator[bytes]:
            sent = 0
            while True:
                ended = container.end.is_set()
                fresh = container.log[sent:]
                if fresh:
                    sent += len(fresh)
                    yield struct.pack(">BxxxL", 1, len(fresh)) + fresh
                if ended or not follow:
                    return
                container.end.wait(0.02)

        def copy_out(self, container: Container, folder: str) -> None:
            if not folder.startswith("C:\\"):
                self.answer(404, {"message": f"Could not find the file {folder}"})
                return
            stream = io.BytesIO()
            top = folder.rpartition("\\")[2]
            with tarfile.open(fileobj=stream, mode="w") as archive:
                for path, content in container.files.items():
                    if path.startswith(f"{folder}\\"):
                        name = path.removeprefix(f"{folder}\\").replace("\\", "/")
                        info = tarfile.TarInfo(f"{top}/{name}")
                        info.size = len(content)
                        archive.addfile(info, io.BytesIO(content))
            self.stream([stream.getvalue()], "application/x-tar")

    return Api


@contextmanager
def windows_engine(program: Program) -> Iterator[tuple[str, Engine]]:
    """The engine at a `tcp://` address, and its state."""
    engine = Engine(program)
    with answered_by(_handler(engine)) as url:
        yield url.replace("http://", "tcp://"), engine
