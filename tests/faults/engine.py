"""An engine in the place of Docker and a project for it: for faults at every write."""

import io
import json
import os
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

from farm.engines import transfer
from farm.engines.base import Capacity, Observation
from farm.engines.docker import DockerEngine
from farm.plan.render import render
from farm.plan.settings import load_settings
from farm.run import build_step, dispatch, run, run_context, smoke
from farm.run.queue import QueueRunner
from farm.run.workspace import Watcher, Workspace
from farm.smoke import environment, runner
from tests.indexes.wheels import build_wheel
from tests.plans import plan_of

ROOT = Path(__file__).parents[2]


def the_plan():
    """A canary's."""
    return plan_of("cpu-avx-py311", "canary")


def a_wheel():
    """Name and bytes of a wheel that holds what the plan promises; there is no code in it."""
    name = f"canary-{the_plan().version}-cp311-cp311-manylinux_2_17_x86_64.whl"
    with tempfile.TemporaryDirectory() as folder:
        return name, build_wheel(Path(folder), name).path.read_bytes()


def output(**others):
    """What a build leaves; `others`: files beside the wheel and its library."""
    wheel, data = a_wheel()
    files = {f"wheel/{wheel}": data, "lib/libx.so": b"ELF" * 300, **others}
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
        self.numbers = 0

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
        try:
            transfer.pack(job.inputs, packed)
        except BaseException:
            del self.containers[handle]
            raise
        return handle

    def observe(self, handle):
        return (
            Observation("done", exit_code=0)
            if handle in self.containers
            else Observation("lost", why="unknown")
        )

    def logs(self, _handle, _since=0):
        yield b"farm: step build\n[1/2] a\n"
        yield b"[2/2] b\n"

    def cancel(self, _handle):
        pass

    def collect(self, _handle, dest, limit):
        return transfer.unpack([self.output], dest, limit)

    def release(self, handle):
        self.containers.pop(handle, None)

    def discard(self, volume):
        pass


SETTINGS = load_settings(ROOT)


def workspace_in(folder):
    places = {"artifacts": str(folder), "index": str(folder / "index")}
    settings = SETTINGS.model_copy(update=places)
    return Workspace(folder, settings, Watcher())


def install(patch, plan, engine):
    """Puts the engine in the place of Docker: `patch` is `monkeypatch.setattr`.

    What takes time and writes nothing is done once, and pauses are short.
    """
    rendered = render(ROOT, plan)
    backend = SimpleNamespace(
        engine=engine,
        workers=lambda: [QueueRunner("local")],
        close=lambda: None,
        builder=None,
        lock=threading.Lock(),
        max_output=1 << 30,
    )
    patch("farm.run.toolchain.render", lambda *_: rendered)
    patch(run_context, "toolchain", lambda *_: "toolchain:1")
    patch(build_step, "COLLECT_PAUSE_S", 0.001)
    for name in ("PAUSE_S", "TICK_S", "DECIDE_S"):
        patch(dispatch, name, 0.001)
    patch("farm.run.dispatch.LOST_S", 0.001)
    for module in (dispatch, run):
        patch(module, "open_backend", lambda *_: backend)


REPORT = {
    "schema": 1,
    "module": "canary",
    "facts": {},
    "complete": True,
    "running": None,
    "checks": [
        {"group": "import", "name": "import canary", "status": "passed", "seconds": 0.0}
        | dict.fromkeys(("seen", "expected", "reason"))
    ],
}


def install_smoke(patch):
    """Programs of a smoke test in the place of pip and the probe: they write what those leave, and
    take no time.
    """

    def started(_command, *, stdout, **_):
        stdout.write(b"Successfully installed\n")
        return SimpleNamespace(wait=lambda *_: 0, kill=lambda: None)

    def probed(_command, _environment, folder, *_):
        # Another process writes it: no fault of this one.
        number = os.open(
            folder / "report.json", os.O_CREAT | os.O_WRONLY
        )  # another process writes it: no fault of this one's
        os.write(number, json.dumps(REPORT).encode())
        os.close(number)
        return runner.Ended(0, None, "", 0.1)

    patch(smoke, "find_python", lambda _name: Path(sys.executable))
    patch(
        smoke,
        "make_environment",
        lambda dest, *_, **__: dest.mkdir(parents=True) or dest / "python",
    )
    patch(
        environment,
        "subprocess",
        SimpleNamespace(Popen=started, DEVNULL=0, STDOUT=0, TimeoutExpired=TimeoutError),
    )
    patch(runner, "find_emulator", lambda: "qemu-x86_64")
    patch(runner, "_run", probed)
