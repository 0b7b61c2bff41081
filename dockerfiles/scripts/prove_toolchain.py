"""Compiles and links one C++ file and, with --sm, one CUDA file: an image that cannot is no
toolchain image.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

CXX = '#include <cstdio>\nint main() { std::puts("c++ works"); }\n'
CUDA = """#include <cstdio>
#include <cuda_runtime.h>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
int main() { twice<<<1, 1>>>(nullptr); int v = 0; cudaRuntimeGetVersion(&v); std::printf("cuda %d works\\n", v); }
"""


def compile_and_run(command: list[str], source: Path, text: str) -> None:
    source.write_text(text)
    program = source.with_suffix(".bin")
    for step in ([*command, str(source), "-o", str(program)], [str(program)]):
        print("+", " ".join(step), flush=True)
        try:
            code = subprocess.run(step, check=False).returncode
        except OSError as error:
            sys.exit(f"prove_toolchain: {step[0]}: {error.strerror}")
        if code:
            sys.exit(f"prove_toolchain: {step[0]} failed with exit code {code}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("--sm", type=int, help="lowest SM, for example 35")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compile_and_run([args.cxx], Path(folder) / "one.cpp", CXX)
        if args.sm:
            arch = f"arch=compute_{args.sm},code=sm_{args.sm}"
            nvcc = ["nvcc", "-ccbin", args.cxx, "-Wno-deprecated-gpu-targets", "-gencode", arch]
            compile_and_run(nvcc, Path(folder) / "two.cu", CUDA)
    return 0


if __name__ == "__main__":
    sys.exit(main())
