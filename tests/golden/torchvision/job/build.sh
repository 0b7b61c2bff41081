#!/bin/bash
# Builds torchvision 0.21.0+cu118.sm35.avx for sm35-avx-py311. Rendered by farm from plan DIGEST; runs in the
# toolchain image without network. Reads source/, writes out/wheel and out/lib, all under $FARM_ROOT (/farm).
# The tree src/ may be kept between two attempts: the second goes on where the first stopped. One build at a time.
# With the name of a step it runs that one; without, steps.py calls it for each of them and says which one begins.
set -euo pipefail
FARM_ROOT="${FARM_ROOT:-/farm}"
[ "$#" -gt 0 ] || exec python3 -E -s "$FARM_ROOT/job/steps.py"
export BUILD_VERSION=0.21.0+cu118.sm35.avx
export CC=gcc-10
export CFLAGS=-mavx
export CUDAHOSTCXX=/usr/bin/g++-10
export CUDA_HOME=/usr
export CXX=g++-10
export CXXFLAGS=-mavx
export FORCE_CUDA=1
export PYTORCH_VERSION=2.6.0+cu118.sm35.avx
export TORCHVISION_USE_FFMPEG=0
export TORCHVISION_USE_JPEG=1
export TORCHVISION_USE_NVJPEG=0
export TORCHVISION_USE_PNG=1
export TORCHVISION_USE_VIDEO_CODEC=0
export TORCHVISION_USE_WEBP=1
export TORCH_CUDA_ARCH_LIST=3.5+PTX
export MAX_JOBS="${FARM_JOBS:-1}" CMAKE_BUILD_PARALLEL_LEVEL="${FARM_JOBS:-1}" CARGO_BUILD_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
export CCACHE_DIR="$FARM_ROOT/ccache" CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK=content
export CCACHE_CONFIGPATH=/dev/null    # an earlier build may have left a ccache.conf: it could name a program to run
if [ "$1" = begin ]; then    # prints the names of the steps
    rm -rf "$FARM_ROOT/out"
    mkdir -p "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib" "$FARM_ROOT/bin" "$FARM_ROOT/ccache"
    # Builds that ask for plain gcc, or for the names that Debian's Python was built with, find the compiler of this plan:
    # the image has names with a version in them alone.
    machine=$("$CC" -dumpmachine)
    for name in gcc cc "$machine-gcc"; do ln -sf "$(command -v "$CC")" "$FARM_ROOT/bin/$name"; done
    for name in g++ c++ "$machine-g++"; do ln -sf "$(command -v "$CXX")" "$FARM_ROOT/bin/$name"; done
    for tool in gcc-ar gcc-nm gcc-ranlib; do
        program=$(command -v "${CC/gcc/$tool}") && [ "$CC" != "${CC/gcc/$tool}" ] || continue    # another compiler has none
        for name in "$tool" "$machine-$tool"; do ln -sf "$program" "$FARM_ROOT/bin/$name"; done
    done
    [ -e "$FARM_ROOT/src/.farm-source" ] || echo source
    echo needs build libraries
    exit
fi
export PATH="$PATH:$FARM_ROOT/bin"
# The CPU time of this attempt, however it ends: the farm notes what a build costs here.
trap 'times > "$FARM_ROOT/bin/times" && echo "farm: times $(tr "\\n" " " < "$FARM_ROOT/bin/times")" || true' EXIT
# ccache, for recipes that name it and no launcher: $CXX counts for CMake, setuptools and torch's extensions.
[ ! -x "/usr/lib/ccache/$CXX" ] || export CXX="/usr/lib/ccache/$CXX"
export CMAKE_C_COMPILER_LAUNCHER=ccache
export CMAKE_CUDA_COMPILER_LAUNCHER=ccache PYTORCH_NVCC="ccache $(command -v nvcc)"
# ccache keeps no list of headers that nvcc writes by this option; a build compiles each file once.
export TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES=1
cd -P "$FARM_ROOT/src"
case "$1" in
source)
    find . -mindepth 1 ! -name .farm-holder -delete
    tar --extract --no-same-owner --file "$FARM_ROOT/source/00.tar" --strip-components=1
    ;;
needs)
    touch .farm-source
    # needs/ holds the wheels that the farm built for this variant before.
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-compile --no-index --no-deps --find-links "$FARM_ROOT/needs" --upgrade --target "$FARM_ROOT/needs/site" torch==2.6.0+cu118.sm35.avx build==1.2.2 filelock==3.15.4 fsspec==2024.6.1 jinja2==3.1.4 markupsafe==3.0.4 mpmath==1.3.0 networkx==3.2.1 numpy==2.0.2 packaging==24.1 pyproject-hooks==1.1.0 setuptools==72.1.0 sympy==1.13.1 typing-extensions==4.12.2 wheel==0.43.0 nvidia-nccl-cu11==2.21.5
    ;;
build)
    touch .farm-source
    export PYTHONPATH="$FARM_ROOT/needs/site" PATH="$FARM_ROOT/needs/site/bin:$PATH"    # cmake, cython, …
    # Meson and meson-python have no variable for the number of jobs, only one for the program.
    if ninja=$(command -v ninja); then
        printf '#!/bin/sh\nexec "%s" -j "%s" "$@"\n' "$ninja" "$MAX_JOBS" > "$FARM_ROOT/bin/ninja-jobs"
        chmod +x "$FARM_ROOT/bin/ninja-jobs"
        export NINJA="$FARM_ROOT/bin/ninja-jobs"
    fi
    ccache --zero-stats
    # The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
    # -x: --skip-dependency-check, which build 0.1 (Debian 11) calls otherwise.
    python3 "$FARM_ROOT/job/run_build.py" --wheel --no-isolation -x --outdir "$FARM_ROOT/out/wheel" .
    ccache --show-stats
    ;;
libraries)
    python3 "$FARM_ROOT/scripts/collect_libraries.py" --exclude 'libc10*.so' --exclude 'libtorch*.so' --exclude libcublas.so.11 --exclude libcublasLt.so.11 --exclude libcupti.so.11.8 --exclude libnvrtc.so.11.2 --exclude libnvrtc-builtins.so.11.8 --exclude libcudart.so.11.0 --exclude libcufft.so.10 --exclude libcurand.so.10 --exclude libcusolver.so.11 --exclude libcusparse.so.11 --exclude libnvToolsExt.so.1 --exclude libnccl.so.2 --exclude 'libcudnn*.so.*' "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib"
    ;;
esac
