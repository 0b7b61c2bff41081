"""The toolchain's tree as a root file system on this machine."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from pathlib import Path

from .report import CANNOT, leave, say

CLONE_NEWNS = 0x00020000  # sched.h
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
"""Major and minor numbers (the kernel's Documentation/admin-guide/devices.txt)."""


def own_mounts() -> None:
    """What is mounted from here on ends with the last process of this run: nothing is left for a clean-up to walk into.

    Where this is refused, mounting is refused as well, and `prepare` reports it.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0:
        # Else a mount would propagate to this machine's own file system.
        subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)


def prepare(root: Path) -> None:
    """What a root file system needs beside files; ends the program where this machine does not allow it."""
    for name in ("dev", "proc", "tmp", "run", "root"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name, (major, minor) in DEVICES.items():
        path = root / "dev" / name
        # A shell that wrote to /dev/null before there was one left a plain file.
        if path.exists() and not stat.S_ISCHR(path.stat().st_mode):
            path.unlink()
        if not path.exists():
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
                path.chmod(0o666)
            except OSError as error:
                if subprocess.run(["mount", "--bind", "/dev", str(root / "dev")], check=False).returncode:
                    leave(CANNOT, f"no /dev/{name} in the toolchain: neither mknod ({error}) nor mount --bind works")
                break
    for name, to in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        if not (root / "dev" / name).is_symlink() and not (root / "dev" / name).exists():
            (root / "dev" / name).symlink_to(to)
    if not (root / "proc/self").exists():
        for command in (["mount", "-t", "proc", "proc"], ["mount", "--bind", "/proc"]):
            if subprocess.run([*command, str(root / "proc")], check=False, capture_output=True).returncode == 0:
                break
        else:
            say("/proc cannot be mounted in the toolchain; continuing without it")
    try:
        done = subprocess.run(
            ["chroot", str(root), "/usr/bin/python3", "-c", "import sys; open('/dev/null'); print(sys.version)"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        leave(CANNOT, f"chroot cannot be run: {error}")
    if done.returncode:
        leave(CANNOT, f"chroot into the toolchain fails: {(done.stderr or done.stdout).strip()[-400:]}; is this root?")
    say(f"chroot works; Python there: {done.stdout.split()[0]}")
