"""Enters a root file system and runs a command there, without network: as root, or as any user of
this machine.

    python3 enter.py [--bind FOLDER PLACE]... ROOT COMMAND...
    python3 enter.py --check

An ordinary user gets a user namespace (user_namespaces(7)) in which it is root. The root file
system is read-only but for what is bound into it. All mounts end with the command. One file of the
standard library, for Python 3.6 and later: it is copied to machines that have nothing else.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path

assert sys.platform != "win32"  # also tells mypy, where it reads with --platform win32

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000  # sched.h
MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21  # sys/mount.h
KEPT = 2 | 4 | 8 | 1024 | 2048
"""Flags of a mount that a user namespace may not take off: nosuid, nodev, noexec, noatime,
nodiratime.
"""
ST_RELATIME = 4096  # statvfs(3); the others have the numbers of mount(2)
SIOCSIFFLAGS = 0x8914
IFF_UP = 1  # linux/sockios.h, linux/if.h
DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""Major and minor numbers (the kernel's Documentation/admin-guide/devices.txt)."""
PROC_SYS = Path("/proc/sys")
SETTINGS = (
    ("user/max_user_namespaces", "0", "15000"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
)
"""Settings below /proc/sys: the value that refuses namespaces to users, and one that allows them.
"""


def enter(root: Path, binds: "list[tuple[Path, str]]") -> None:
    """Make `root` this process's root; `binds`: folders here, and where each is inside, the only
    places to write to.

    OSError: this machine refuses it.
    """
    try:
        _separate()
    except OSError:
        # Root in a container may have no right to mount, but mostly one to make devices.
        if os.geteuid() or _elsewhere(root, binds):
            raise
        _make_devices(root)
    else:
        _mount(root, root, MS_BIND | MS_REC)
        for source, place in [(Path("/dev"), "dev"), (Path("/proc"), "proc"), *binds]:
            _mount(source, root / place, MS_BIND | MS_REC)
        flags = os.statvfs(root).f_flag
        inherited_flags = flags & KEPT
        if flags & ST_RELATIME:
            inherited_flags |= MS_RELATIME
        _mount(None, root, MS_REMOUNT | MS_BIND | MS_RDONLY | inherited_flags)
    os.chroot(root)
    os.chdir("/")


def _elsewhere(root: Path, binds: "list[tuple[Path, str]]") -> bool:
    """True if a folder that is to be bound is elsewhere than where it is to be."""
    return any(root / place != source for source, place in binds)


def _separate() -> None:
    """Mounts and network of its own from here on, and a user namespace where this is not root."""
    uid = os.geteuid()
    gid = os.getegid()
    flags = CLONE_NEWNS | CLONE_NEWNET
    if uid:
        flags |= CLONE_NEWUSER
    _call("unshare", flags)
    if uid:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    # Else a mount would propagate to this machine's own file system.
    _mount(None, Path("/"), MS_REC | MS_PRIVATE)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # Loopback alone, as in a container without network.
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _mount(source: "Path | None", target: Path, flags: int) -> None:
    _call(
        "mount",
        source and os.fsencode(source),
        os.fsencode(target),
        None,
        ctypes.c_ulong(flags),
        None,
    )


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _make_devices(root: Path) -> None:
    for name, (major, minor) in DEVICES.items():
        path = root / "dev" / name
        # A shell that wrote to /dev/null before there was one left a plain file.
        if path.exists() and not stat.S_ISCHR(path.stat().st_mode):
            path.unlink()
        if not path.exists():
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            path.chmod(0o666)
    for name, to in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        if not (root / "dev" / name).is_symlink():
            (root / "dev" / name).symlink_to(to)


def refusal() -> "tuple[str, str] | None":
    """Why this user may not enter a root file system here, and what to do; None where it may. Tries
    it in a child.
    """
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as root:
        for name in ("dev", "proc"):
            Path(root, name).mkdir()
        child = os.fork()
        if not child:
            try:
                enter(Path(root), [])
            except OSError as error:
                os.write(write, f"{error.errno or 0} {error.strerror or error}".encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            number, _, text = stream.read().decode().partition(" ")
        os.waitpid(child, 0)
    if not number:
        return None
    return explain(int(number), text)


def explain(number: int, text: str, settings: Path = PROC_SYS) -> "tuple[str, str]":
    """The meaning of an error number of entering on this machine, and the next step."""
    for name, refusing, allowing in SETTINGS:
        with contextlib.suppress(OSError):
            value = (settings / name).read_text(encoding="ascii").strip()
            dotted = name.replace("/", ".")
            if value == refusing or (number == errno.ENOSPC and name == SETTINGS[0][0]):
                todo = (
                    f"as root: sysctl -w {dotted}={allowing}, and that line in a file of "
                    "/etc/sysctl.d to keep it"
                )
                why = f"users may not make user namespaces here: {dotted} is {value} ({text})"
                return why, f"{todo}; or run this as root"
    if not Path("/proc/self/ns/user").exists():
        return f"this kernel has no user namespaces (CONFIG_USER_NS) ({text})", "run this as root"
    why = f"this machine refuses a file system of its own to this user: {text}"
    todo = (
        "in a container: start it with --security-opt seccomp=unconfined; elsewhere run this as "
        "root"
    )
    return why, todo


def main(arguments: "list[str]") -> int:
    """Becomes the command; 125 where the root file system cannot be entered."""
    if arguments[:1] == ["--check"]:
        refused = refusal()
        if refused is None:
            return 0
    else:
        refused = _become(arguments)
    sys.stderr.write("enter: {}\nnext: {}\n".format(*refused))
    return 125


def _become(arguments: "list[str]") -> "tuple[str, str]":
    """Enter the root file system and become the command; return why that fails, and what to do."""
    binds = []
    while arguments[:1] == ["--bind"]:
        binds.append((Path(arguments[1]), arguments[2]))
        arguments = arguments[3:]
    try:
        enter(Path(arguments[0]), binds)
        os.execvp(arguments[1], arguments[1:])  # noqa: S606 the command of the job
    except OSError as error:
        return explain(error.errno or 0, error.strerror or str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
