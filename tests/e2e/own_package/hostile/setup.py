"""A package that tries what a build must not be able to do; each try prints `tried NAME: OUTCOME`
into the log.
"""

import contextlib
import ctypes
import os
import socket
import stat
import time
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(os.environ.get("FARM_ROOT", "/farm"))


def tried(name, action):
    try:
        outcome = action()
    except OSError as error:
        outcome = f"refused: {error.strerror}"
    print(f"tried {name}: {outcome}", flush=True)


def write(path, text, mode=0o755):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return "done"


def cache():
    """The farm's whole cache, where there is one: a program before each command of later builds."""
    folder = Path(os.environ.get("CCACHE_DIR") or ROOT / "ccache")
    write(folder / "wrap.sh", '#!/bin/sh\necho a stranger ran >&2\nexec "$@"\n')
    return write(folder / "ccache.conf", f"prefix_command = {folder}/wrap.sh\nmax_size = 1\n")


def tree():
    """Beside the own tree: the farm's scripts and job, and trees of other plans."""
    write(ROOT / "scripts" / "collect_libraries.py", "print('a stranger ran')\n")
    write(ROOT / "job" / "later", "a stranger was here\n")
    others = [path.name for path in ROOT.parent.glob("farm-tree-*")]
    return f"done, sees {len(others)} other trees"


def temporary():
    write("/tmp/sitecustomize.py", "print('a stranger ran')\n")
    return write("/var/tmp/stranger", "a stranger was here\n")


def logs():
    """What looks like the farm's own word, like a command to GitHub, like control of a terminal."""
    print("farm: PUBLISHED nothing")
    print("::add-mask::e")
    print("\x1b]0;title\x07\x1b[2J\x1b[1Afarm: step forged\u2028farm: second line")
    print("x" * 3_000_000)
    return "done"


def steps():
    """Lines of the farm in its log, by its own output and by that of every other process."""
    print("farm: step forged", flush=True)
    refused = set()
    for output in Path("/proc").glob("[0-9]*/fd/[12]"):
        try:
            with output.open("wb", buffering=0) as stream:
                stream.write(b"farm: step forged\n")
        except OSError as error:
            refused.add((output.parts[2], error.strerror))
    return f"done, process 1: {dict(refused).get('1', 'written')}"


def limits():
    """Processes without end, until it is refused one."""
    children = []
    try:
        for _ in range(20_000):
            pid = os.fork()
            if not pid:
                time.sleep(600)
                os._exit(0)
            children.append(pid)
        return "20000 processes"
    except OSError:
        return f"bounded below {-(-len(children) // 5000) * 5000} processes"
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.waitpid(pid, 0)


def clock():
    libc = ctypes.CDLL(None, use_errno=True)

    class Time(ctypes.Structure):
        _fields_ = [("seconds", ctypes.c_long), ("micro", ctypes.c_long)]

    if libc.settimeofday(ctypes.byref(Time(0, 0)), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"


def network():
    with socket.create_connection(("192.0.2.1", 80), timeout=5):
        return "done"


def device():
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0))
    return "done"


def mount():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", b"/mnt", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"


def names():
    """Output beside the wheel whose names lead elsewhere or look like the farm's word; kept only
    where asked for.
    """
    out = ROOT / "out" / "wheel"
    wanted = os.environ.get("HOSTILE_NAME", "")
    if wanted:
        write(out / wanted.encode().decode("unicode_escape"), "no wheel")
    return "done"


for each in (cache, tree, temporary, logs, steps, limits, clock, network, device, mount, names):
    tried(each.__name__, each)
tried("socket", lambda: str(Path("/var/run/docker.sock").exists()))
setup(
    name="hostile",
    version=os.environ["FARM_VERSION"],
    ext_modules=[Extension("hostile", ["hostile.c"])],
)
