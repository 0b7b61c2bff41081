#!/bin/bash
# Builds torchvision 0.21.0+cu118.sm35.avx for sm35-avx-py311. Rendered by farm from plan DIGEST; runs in the
# toolchain image without network. Reads source/, writes out/wheel and out/lib, all under $FARM_ROOT (/farm).
# The tree src/ may be kept between two attempts: the second goes on where the first stopped. One build at a time.
set -euo pipefail
FARM_ROOT="${FARM_ROOT:-/farm}"
export BUILD_VERSION=0.21.0+cu118.sm35.avx
export CC=gcc-11
export CFLAGS=-mavx
export CUDAHOSTCXX=/usr/bin/g++-11
export CUDA_HOME=/usr
export CXX=g++-11
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
mkdir -p "$FARM_ROOT/src" "$FARM_ROOT/ccache"
rm -rf "$FARM_ROOT/out"
mkdir -p "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib"
cd -P "$FARM_ROOT/src"
exec 9< .
# Builds that ask for plain gcc find the compiler of this plan: Debian's names have a version in them.
mkdir -p "$FARM_ROOT/bin"
for name in gcc cc; do ln -sf "$(command -v "$CC")" "$FARM_ROOT/bin/$name"; done
for name in g++ c++; do ln -sf "$(command -v "$CXX")" "$FARM_ROOT/bin/$name"; done
export PATH="$PATH:$FARM_ROOT/bin"
# The CPU time of this attempt, however it ends: the farm notes what a build costs here.
trap 'times > "$FARM_ROOT/bin/times" && echo "farm: times $(tr "\\n" " " < "$FARM_ROOT/bin/times")" || true' EXIT
# ccache, for recipes that name it and no launcher: $CXX counts for CMake, setuptools and torch's extensions.
[ ! -x "/usr/lib/ccache/$CXX" ] || export CXX="/usr/lib/ccache/$CXX"
export CMAKE_C_COMPILER_LAUNCHER=ccache
export CMAKE_CUDA_COMPILER_LAUNCHER=ccache PYTORCH_NVCC="ccache $(command -v nvcc)"
# ccache keeps no list of headers that nvcc writes by this option; a build compiles each file once.
export TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES=1
flock --nonblock 9 || { echo "farm: waits for another build in the same tree: $(cat .farm-holder 2>/dev/null || true)"; flock 9; }
echo "${FARM_RUN:-a run}" > .farm-holder
if [ ! -e "$FARM_ROOT/src/.farm-source" ]; then
    echo "farm: step source"
    find . -mindepth 1 ! -name .farm-holder -delete
    tar --extract --no-same-owner --file "$FARM_ROOT/source/00.tar" --strip-components=1
    touch .farm-source
fi
echo "farm: step needs"
# needs/ holds the wheels that the farm built for this variant before.
PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-compile --no-index --no-deps --find-links "$FARM_ROOT/needs" --upgrade --target "$FARM_ROOT/needs/site" torch==2.6.0+cu118.sm35.avx nvidia-nccl-cu11==2.21.5 typing-extensions==4.12.2

export PYTHONPATH="$FARM_ROOT/needs/site" PATH="$FARM_ROOT/needs/site/bin:$PATH"    # cmake, cython, …
# Meson and meson-python have no variable for the number of jobs, only one for the program.
if ninja=$(command -v ninja); then
    printf '#!/bin/sh\nexec "%s" -j "%s" "$@"\n' "$ninja" "$MAX_JOBS" > "$FARM_ROOT/bin/ninja-jobs"
    chmod +x "$FARM_ROOT/bin/ninja-jobs"
    export NINJA="$FARM_ROOT/bin/ninja-jobs"
fi
echo "farm: step build"
ccache --zero-stats
# The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
# -x: --skip-dependency-check, which build 0.1 (Debian 11) calls otherwise.
python3 "$FARM_ROOT/job/run_build.py" --wheel --no-isolation -x --outdir "$FARM_ROOT/out/wheel" .
ccache --show-stats
echo "farm: step libraries"
python3 "$FARM_ROOT/scripts/collect_libraries.py" --exclude 'libc10*.so' --exclude 'libtorch*.so' --exclude libcublas.so.11 --exclude libcublasLt.so.11 --exclude libcupti.so.11.8 --exclude libnvrtc.so.11.2 --exclude libnvrtc-builtins.so.11.8 --exclude libcudart.so.11.0 --exclude libcufft.so.10 --exclude libcurand.so.10 --exclude libcusolver.so.11 --exclude libcusparse.so.11 --exclude libnvToolsExt.so.1 --exclude libnccl.so.2 --exclude 'libcudnn*.so.*' "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib"
echo "farm: done"
