"""File systems that are on another machine, by /proc/mounts."""

from pathlib import Path

NETWORK = (
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
)
"""File systems on which SQLite's write-ahead log does not work."""


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The network file system that a path is on, such as `nfs4`; None: a local one, or the system
    does not say.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    path = path.resolve()
    best = -1
    kind = ""
    for _, place, fs_type, *_ in (line.split() for line in lines):
        # As the kernel writes a space in a path.
        folder = Path(place.replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best = len(folder.parts)
            kind = fs_type
    return kind if kind in NETWORK else None
