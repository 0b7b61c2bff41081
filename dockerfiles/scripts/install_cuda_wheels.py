"""Completes a CUDA toolkit that the farm unpacked out of NVIDIA's wheels, as nvcc, CMake and
linkers expect one.

Usage: install_cuda_wheels.py PREFIX. Runs as root in an image build.

The wheels have `lib` where nvcc looks in `lib64`, libraries under the names with a version alone,
and no libcuda.so to link with, since that is the driver's. Exit codes: 0 done, 9 something is
missing.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from install_debian_cuda import FailedError, stub


def link_names(folder: Path) -> None:
    """Makes libX.so beside libX.so.N; of several versions the link leads to the shortest name."""
    found = sorted(folder.glob("lib*.so.*"), key=lambda path: (len(path.name), path.name))
    for path in found:
        link = folder / (path.name.partition(".so.")[0] + ".so")
        if not link.exists():
            link.symlink_to(path.name)
    print(f"{folder}: {len(found)} libraries")


def driver_stub(prefix: Path) -> None:
    """Makes lib/stubs/libcuda.so with the names of the driver's functions."""
    with tempfile.TemporaryDirectory() as made:
        stub(made, str(prefix / "include" / "cuda.h"), "libcuda.so.1")
        (library,) = Path(made).rglob("libcuda.so")
        (prefix / "lib" / "stubs").mkdir(exist_ok=True)
        shutil.copy(library, prefix / "lib" / "stubs" / "libcuda.so")


def main() -> int:
    prefix = Path(sys.argv[1])
    try:
        (prefix / "lib64").symlink_to("lib")
        link_names(prefix / "lib")
        driver_stub(prefix)
    except (FailedError, OSError) as error:
        print(f"install_cuda_wheels: {error}", file=sys.stderr)
        return 9
    Path("/etc/ld.so.conf.d/cuda.conf").write_text(f"{prefix}/lib\n", encoding="utf-8")
    subprocess.run(["ldconfig"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
