"""An engine in the place of Docker and a project for it: for faults at every write."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace

from farm.engines import transfer
from farm.engines.admission import Worker
from farm.engines.base import Capacity, Observation
from farm.engines.docker import DockerEngine
from farm.pipeline import buildstep, dispatch, run
from farm.pipeline.report import Silent
from farm.pipeline.workspace import Workspace
from farm.plan import Selectors, resolve
from farm.render import render
from farm.settings import load_settings
from farm.variant import Variant

ROOT = Path(__file__).parents[2]
PACK = b"a pack of compiled objects" * 40


def output():
    """What a build leaves: a wheel, and a pack for other machines."""
    name = hashlib.sha256(PACK).hexdigest()
    report = {"schema": 1, "held": [], "pack": name, "objects": 3}
    files = {"wheel/x-1-py3-none-any.whl": b"PK" * 500, "lib/libx.so": b"ELF" * 300}
    files |= {f"packs/{name}.tar": PACK, "packs/report.json": json.dumps(report).encode()}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(f"output/{path}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


class Engine:
    """As Docker's, in memory: a job has ended as soon as it is asked about."""

    name = "docker"
    poll_s = 0.0
    traits = DockerEngine.traits
    output = output()

    def __init__(self, containers=None):
        self.containers = {} if containers is None else containers
        self.streams, self.numbers, self.at_once = 0, 0, 0

    def capacity(self):
        return Capacity(2, 4 << 30)

    def submit(self, job):
        for handle, labels in list(self.containers.items()):
            if labels == job.labels:
                del self.containers[handle]
        self.numbers += 1
        handle = f"{job.labels['farm.attempt']}-{self.numbers}"
        packed = io.BytesIO()
        self.containers[handle] = job.labels
        self.at_once = max(self.at_once, len(self.containers))
        try:
            transfer.pack(job.inputs, packed)
        except BaseException:
            del self.containers[handle]
            raise
        return handle

    def observe(self, handle):
        return Observation("done", exit_code=0) if handle in self.containers else Observation("lost", why="unknown")

    def logs(self, _handle, _since=0):
        self.streams += 1
        try:
            yield b"farm: step build\n[1/2] a\n"
            yield b"[2/2] b\n"
        finally:
            self.streams -= 1

    def cancel(self, _handle):
        pass

    def collect(self, _handle, dest, limit):
        def pieces():
            self.streams += 1
            try:
                for at in range(0, len(self.output), 1024):
                    yield self.output[at : at + 1024]
            finally:
                self.streams -= 1

        stream = pieces()
        try:
            return transfer.unpack(stream, dest, limit)
        finally:
            stream.close()

    def release(self, handle):
        self.containers.pop(handle, None)

    def volume_id(self, volume):
        return f"engine {volume}"

    def discard(self, volume):
        pass


class Folder(MutableMapping):
    """A dictionary that another process sees as well: a file for each key."""

    def __init__(self, path):
        self.path = path
        path.mkdir(exist_ok=True)

    def __getitem__(self, key):
        try:
            return json.loads((self.path / key).read_text())
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key, value):
        (self.path / key).write_text(json.dumps(value))

    def __delitem__(self, key):
        (self.path / key).unlink()

    def __iter__(self):
        return iter(path.name for path in self.path.iterdir())

    def __len__(self):
        return len(list(self.path.iterdir()))


def the_plan():
    """A canary's, whose compiler cache is shared."""
    made = resolve(ROOT, Selectors(Variant.parse("cpu-avx-py311"), package="canary"))
    return made.model_copy(update={"apt": sorted({*made.apt, "ccache"})})


SETTINGS = load_settings(ROOT)


def workspace_in(folder):
    settings = SETTINGS.model_copy(update={"artifacts": str(folder), "compiler_cache": str(folder / "packs")})
    return Workspace(folder, settings, Silent())


def install(patch, plan, engine):
    """Puts the engine in the place of Docker: `patch` is `monkeypatch.setattr`.

    What takes time and writes nothing is done once, and pauses are short.
    """
    rendered = render(ROOT, plan)
    backend = SimpleNamespace(
        engine=engine, workers=lambda: [Worker("local")], close=lambda: None, builder=None, lock=threading.Lock()
    )
    patch("farm.pipeline.backends.render", lambda *_: rendered)
    patch(buildstep, "toolchain", lambda *_: "toolchain:1")
    patch(buildstep, "COLLECT_PAUSE_S", 0.001)
    for name in ("PAUSE_S", "TICK_S", "DECIDE_S"):
        patch(dispatch, name, 0.001)
    patch("farm.engines.admission.decide.QUARANTINE_S", 0.001)
    for module in (dispatch, run):
        patch(module, "open_backend", lambda *_: backend)
