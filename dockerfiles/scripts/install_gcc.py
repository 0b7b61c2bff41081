"""Installs the gcc of a newer release of Debian beside that of an old one.

    python3 install_gcc.py bookworm 12

What it compiles finds the headers and libraries of this system, with libstdc++'s headers and static
libraries of its own, so that wheels in new C++ need no newer glibc than this system's. The compilers
themselves need one: with all that they load they lie in /opt/gcc and start with the loader there.
`gcc-12`, `g++-12` and their like in /usr/bin lead to them.

Runs as root in an image build, after the system's own compilers and patchelf are installed. Exit
codes: 0 done, 2 the command line, 9 a download failed.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from install_debian_cuda import FailedError, packages_of

PREFIX = Path("/opt/gcc")
SYSTEM = Path("/usr/lib/x86_64-linux-gnu")
TARGET = "x86_64-linux-gnu"
PARTS = ("gcc-{}", "g++-{}", "cpp-{}", "libgcc-{}-dev", "libstdc++-{}-dev")
# By gcc's own folder it finds these: this system's ld could not load its plugin.
BINUTILS = ("as", "ld", "ld.bfd", "ld.gold", "nm", "strip", "ar", "ranlib")
LOADED = (
    f"binutils-{TARGET.replace('_', '-')}",
    "libbinutils",
    "libc6",
    "libctf-nobfd0",
    "libctf0",
    "libgcc-s1",
    "libgmp10",
    "libisl23",
    "libjansson4",
    "libmpc3",
    "libmpfr6",
    "libstdc++6",
    "libzstd1",
    "zlib1g",
)
DRIVERS = ("gcc", "g++", "cpp", "gcc-ar", "gcc-nm", "gcc-ranlib")
MAGIC = b"\x7fELF"


def fetch(suite: str, version: str) -> None:
    """Unpacks the packages into /opt/gcc: installed they would replace this system's."""
    packages = [*(part.format(version) for part in PARTS), *LOADED]
    with tempfile.TemporaryDirectory() as folder, packages_of(suite):
        Path(folder).chmod(0o755)  # apt downloads as an unprivileged user
        command = ["apt-get", "download", "-q=0", *packages]
        if subprocess.run(command, cwd=folder, check=False).returncode:
            raise FailedError(f"apt-get download of gcc {version} of {suite} failed")
        for package in sorted(Path(folder).iterdir()):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(PREFIX)], check=True)


def is_program(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            return False
    command = ["patchelf", "--print-interpreter", str(path)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


def start_with_own_loader() -> None:
    """Each program takes the loader and the libraries of /opt/gcc."""
    folders = [PREFIX / "lib" / TARGET, PREFIX / "usr/lib" / TARGET]
    loader = next(folders[0].glob("ld-linux-*.so.*"))
    libraries = ":".join(map(str, folders))
    for folder in (PREFIX / "usr/bin", PREFIX / "usr/lib/gcc"):
        for path in sorted(folder.rglob("*")):
            if is_program(path):
                options = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath"]
                subprocess.run(["patchelf", *options, libraries, str(path)], check=True)


def lead(version: str) -> None:
    """The names by which compilers, binutils and libraries are looked for lead to the right ones."""
    programs = PREFIX / "usr/bin"
    own = PREFIX / "usr/lib/gcc" / TARGET / version
    for name in BINUTILS:
        (own / name).symlink_to(programs / f"{TARGET}-{name}")
    for name in DRIVERS:
        link = Path("/usr/bin", f"{name}-{version}")
        link.symlink_to(programs / f"{TARGET}-{name}-{version}")
    ccache = Path("/usr/lib/ccache")
    if ccache.is_dir():
        for name in ("gcc", "g++"):
            (ccache / f"{name}-{version}").symlink_to("../../bin/ccache")
    # Wheels are linked with this system's libgomp and its like, which they are repaired with.
    for link in own.glob("*.so"):
        if link.is_symlink() and link.name != "libstdc++.so":
            target = SYSTEM / link.readlink().name
            link.unlink()
            if target.exists():
                link.symlink_to(target)


def main() -> int:
    if len(sys.argv) != 3 or not re.fullmatch(r"[a-z]+ \d+", " ".join(sys.argv[1:])):
        print("install_gcc: SUITE VERSION are expected", file=sys.stderr)
        return 2
    suite, version = sys.argv[1:]
    try:
        fetch(suite, version)
    except (FailedError, OSError) as error:
        print(f"install_gcc: {error}", file=sys.stderr)
        return 9
    start_with_own_loader()
    lead(version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
