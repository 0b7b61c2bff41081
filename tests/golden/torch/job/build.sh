#!/bin/bash
# Builds torch 2.6.0+cu118.sm35.avx for sm35-avx-py311. Rendered by farm from plan DIGEST; runs in the
# toolchain image without network. Reads source/, writes out/wheel and out/lib, all under $FARM_ROOT (/farm).
# The tree src/ may be kept between two attempts: the second goes on where the first stopped. One build at a time.
# With the name of a step it runs that one; without, steps.py calls it for each of them and says which one begins.
set -euo pipefail
FARM_ROOT="${FARM_ROOT:-/farm}"
[ "$#" -gt 0 ] || exec python3 -E -s "$FARM_ROOT/job/steps.py"
export BLAS=MKL
export BUILD_CUSTOM_PROTOBUF=ON
export BUILD_TEST=0
export CC=gcc-10
export CFLAGS=-mavx
export CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CMAKE_CXX_COMPILER_LAUNCHER=ccache
export CMAKE_C_COMPILER_LAUNCHER=ccache
export CMAKE_GENERATOR=Ninja
export CMAKE_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/stubs
export CMAKE_PROJECT_Torch_INCLUDE="$FARM_ROOT"/job/recipe/options.cmake
export CUDAHOSTCXX=/usr/bin/g++-10
export CUDA_HOME=/usr
export CXX=g++-10
export CXXFLAGS=-mavx
export INTEL_MKL_DIR="$FARM_ROOT"/src/third_party/mkl
export LDFLAGS=-Wl,-z,noexecstack
export NCCL_INCLUDE_DIR="$FARM_ROOT"/src/third_party/nccl/include
export NCCL_LIB_DIR="$FARM_ROOT"/src/third_party/nccl/lib
export PYTORCH_BUILD_NUMBER=1
export PYTORCH_BUILD_VERSION=2.6.0+cu118.sm35.avx
export TORCH_CUDA_ARCH_LIST=3.5+PTX
export TORCH_NVCC_FLAGS='-Xfatbin -compress-all'
export USE_CCACHE=0
export USE_CUDA=1
export USE_CUDNN=1
export USE_CUDSS=0
export USE_CUFILE=0
export USE_CUSPARSELT=0
export USE_DISTRIBUTED=1
export USE_FBGEMM=0
export USE_FLASH_ATTENTION=0
export USE_GLOO=1
export USE_ITT=0
export USE_KINETO=1
export USE_MAGMA=0
export USE_MEM_EFF_ATTENTION=0
export USE_MKLDNN=1
export USE_MKLDNN_ACL=0
export USE_MPI=0
export USE_NCCL=1
export USE_NNPACK=0
export USE_NUMA=0
export USE_PYTORCH_QNNPACK=1
export USE_ROCM=0
export USE_STATIC_MKL=1
export USE_SYSTEM_EIGEN_INSTALL=ON
export USE_SYSTEM_FP16=ON
export USE_SYSTEM_LIBS=0
export USE_SYSTEM_NCCL=1
export USE_SYSTEM_PSIMD=ON
export USE_SYSTEM_PYBIND11=OFF
export USE_SYSTEM_SLEEF=ON
export USE_TENSORPIPE=1
export USE_XNNPACK=1
export USE_XPU=0
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
    [ -e "$FARM_ROOT/src/.farm-source" ] || echo source patches/0001-mkl-fft-strides.patch patches/0002-amx-without-avx512-tier.patch patches/0003-embedding-bag-avx2.patch patches/0004-CVE-2026-24747.patch patches/0005-inductor-finds-sleef.patch prepare.sh
    echo needs build libraries
    exit
fi
export PATH="$PATH:$FARM_ROOT/bin"
# The CPU time of this attempt, however it ends: the farm notes what a build costs here.
trap 'times > "$FARM_ROOT/bin/times" && echo "farm: times $(tr "\\n" " " < "$FARM_ROOT/bin/times")" || true' EXIT
cd -P "$FARM_ROOT/src"
case "$1" in
source)
    find . -mindepth 1 ! -name .farm-holder -delete
    tar --extract --no-same-owner --file "$FARM_ROOT/source/00.tar" --strip-components=1
    mkdir -p third_party/cpuinfo
    tar --extract --no-same-owner --file "$FARM_ROOT/source/01.tar" --directory third_party/cpuinfo --strip-components=1
    mkdir -p third_party/cudnn_frontend
    tar --extract --no-same-owner --file "$FARM_ROOT/source/02.tar" --directory third_party/cudnn_frontend --strip-components=0
    mkdir -p third_party/cutlass
    tar --extract --no-same-owner --file "$FARM_ROOT/source/03.tar" --directory third_party/cutlass --strip-components=2
    mkdir -p third_party/flatbuffers
    tar --extract --no-same-owner --file "$FARM_ROOT/source/04.tar" --directory third_party/flatbuffers --strip-components=1
    mkdir -p third_party/fmt
    tar --extract --no-same-owner --file "$FARM_ROOT/source/05.tar" --directory third_party/fmt --strip-components=1
    mkdir -p third_party/kineto
    tar --extract --no-same-owner --file "$FARM_ROOT/source/06.tar" --directory third_party/kineto --strip-components=2
    mkdir -p third_party/numpy
    tar --extract --no-same-owner --file "$FARM_ROOT/source/07.tar" --directory third_party/numpy --strip-components=2
    mkdir -p third_party/onnx
    tar --extract --no-same-owner --file "$FARM_ROOT/source/08.tar" --directory third_party/onnx --strip-components=1
    mkdir -p third_party/pocketfft
    tar --extract --no-same-owner --file "$FARM_ROOT/source/09.tar" --directory third_party/pocketfft --strip-components=2
    mkdir -p third_party/protobuf
    tar --extract --no-same-owner --file "$FARM_ROOT/source/10.tar" --directory third_party/protobuf --strip-components=1
    mkdir -p third_party/pybind11
    tar --extract --no-same-owner --file "$FARM_ROOT/source/11.tar" --directory third_party/pybind11 --strip-components=1
    mkdir -p third_party/cpp-httplib
    tar --extract --no-same-owner --file "$FARM_ROOT/source/12.tar" --directory third_party/cpp-httplib --strip-components=1
    mkdir -p third_party/gloo
    tar --extract --no-same-owner --file "$FARM_ROOT/source/13.tar" --directory third_party/gloo --strip-components=0
    mkdir -p third_party/ideep
    tar --extract --no-same-owner --file "$FARM_ROOT/source/14.tar" --directory third_party/ideep --strip-components=1
    mkdir -p third_party/ideep/mkl-dnn
    tar --extract --no-same-owner --file "$FARM_ROOT/source/15.tar" --directory third_party/ideep/mkl-dnn --strip-components=1
    mkdir -p third_party/mkl/lib/intel64
    tar --extract --no-same-owner --file "$FARM_ROOT/source/16.tar" --directory third_party/mkl/lib/intel64 --strip-components=3
    mkdir -p third_party/mkl
    tar --extract --no-same-owner --file "$FARM_ROOT/source/17.tar" --directory third_party/mkl --strip-components=2
    mkdir -p third_party/nccl
    tar --extract --no-same-owner --file "$FARM_ROOT/source/18.tar" --directory third_party/nccl --strip-components=2
    mkdir -p third_party/pthreadpool
    tar --extract --no-same-owner --file "$FARM_ROOT/source/19.tar" --directory third_party/pthreadpool --strip-components=1
    mkdir -p third_party/tensorpipe
    tar --extract --no-same-owner --file "$FARM_ROOT/source/20.tar" --directory third_party/tensorpipe --strip-components=1
    mkdir -p third_party/tensorpipe/third_party/libuv
    tar --extract --no-same-owner --file "$FARM_ROOT/source/21.tar" --directory third_party/tensorpipe/third_party/libuv --strip-components=1
    mkdir -p third_party/XNNPACK
    tar --extract --no-same-owner --file "$FARM_ROOT/source/22.tar" --directory third_party/XNNPACK --strip-components=0
    ;;
patches/0001-mkl-fft-strides.patch)
    patch --strip=1 --forward --input "$FARM_ROOT/job/recipe/patches/0001-mkl-fft-strides.patch"
    ;;
patches/0002-amx-without-avx512-tier.patch)
    patch --strip=1 --forward --input "$FARM_ROOT/job/recipe/patches/0002-amx-without-avx512-tier.patch"
    ;;
patches/0003-embedding-bag-avx2.patch)
    patch --strip=1 --forward --input "$FARM_ROOT/job/recipe/patches/0003-embedding-bag-avx2.patch"
    ;;
patches/0004-CVE-2026-24747.patch)
    patch --strip=1 --forward --input "$FARM_ROOT/job/recipe/patches/0004-CVE-2026-24747.patch"
    ;;
patches/0005-inductor-finds-sleef.patch)
    patch --strip=1 --forward --input "$FARM_ROOT/job/recipe/patches/0005-inductor-finds-sleef.patch"
    ;;
prepare.sh)
    bash "$FARM_ROOT/job/recipe/prepare.sh"
    ;;
needs)
    touch .farm-source
    # needs/ holds the wheels that the recipe names.
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-compile --no-index --no-deps --find-links "$FARM_ROOT/needs" --upgrade --target "$FARM_ROOT/needs/site" build==1.2.2 numpy==2.0.2 packaging==24.1 pyproject-hooks==1.1.0 pyyaml==6.0.3 setuptools==72.1.0 typing-extensions==4.12.2 wheel==0.43.0
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
    python3 "$FARM_ROOT/scripts/collect_libraries.py" --exclude libcuda.so.1 --exclude libcublas.so.11 --exclude libcublasLt.so.11 --exclude libcupti.so.11.8 --exclude libnvrtc.so.11.2 --exclude libnvrtc-builtins.so.11.8 --exclude libcudart.so.11.0 --exclude libcufft.so.10 --exclude libcurand.so.10 --exclude libcusolver.so.11 --exclude libcusparse.so.11 --exclude libnvToolsExt.so.1 --exclude libnccl.so.2 --exclude 'libcudnn*.so.*' "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib" 'libnvrtc.so.*' 'libnvrtc-builtins.so.*' 'libcudnn_*.so.*' 'libcublas.so.*' 'libcublasLt.so.*' 'libcusolver.so.*'
    ;;
esac
