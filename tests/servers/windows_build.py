"""What a build of torch for Windows leaves, without a compiler: a forged wheel, and the program of
a container that leaves it.
"""

import threading
from pathlib import Path

from tests.plans import plan_of
from tests.servers.windows_docker import Container
from tests.unit.wheel.conftest import build_pe, build_wheel, fat_container, fat_entry

VARIANT = ("--variant", "sm35-avx-py311", "--platform", "windows", "--channel", "kepler-2.0.1")


def make_wheel(folder: Path) -> Path:
    """A torch wheel for Windows in `folder`, with machine code for sm_35, as a build would leave
    it.
    """
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")
    cuda = build_pe(
        needed=["KERNEL32.dll", "cudart64_110.dll"], fatbin=fat_container(fat_entry("sass", 35))
    )
    files = {"torch/__init__.py": b"", "torch/lib/torch_cuda.dll": cuda}
    head = f"Metadata-Version: 2.1\nName: torch\nVersion: {plan.version}\nRequires-Python: >=3.11\n"
    requires = "".join(f"Requires-Dist: {each}\n" for each in plan.requires)
    made = {"name": "torch", "version": plan.version, "tag": "cp311-cp311-win_amd64"}
    return build_wheel(folder, files, **made, metadata=f"{head}{requires}\n".encode())


class Build:
    """What build.cmd does in the containers of the stand-in: one try after the other."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.fails = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.began = threading.Event()

    def __call__(self, container: Container, _volumes: object) -> int:
        [log] = (word for word in container.config["Cmd"] if word.endswith("build.log"))
        out = log.rpartition("\\")[0]
        container.log = b"farm: step build\r\n"
        self.began.set()
        while not self.goes_on.wait(0.05):
            if container.stopped.is_set():
                return 0
        if self.fails:
            self.fails -= 1
            container.log += b"FAILED: a.obj\r\nLINK : fatal error LNK1248: image size\r\n"
            return 5
        container.files[rf"{out}\wheel\{self.wheel.name}"] = self.wheel.read_bytes()
        container.files[rf"{out}\lib\cudart64_110.dll"] = build_pe()
        container.files[log] = container.log
        return 0
