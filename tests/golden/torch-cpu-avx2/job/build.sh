#!/bin/bash
# Builds torch 2.8.0+cpu.avx2 for cpu-avx2-py312. Rendered by farm from plan 7987ede1c007; runs in the
# toolchain image without network. Reads /farm/src, writes /farm/out/wheel and /farm/out/lib.
set -euo pipefail
export BLAS=OpenBLAS
export BUILD_TEST=0
export CC=gcc-14
export CFLAGS='-mavx2 -mfma -mf16c'
export CMAKE_PROJECT_Torch_INCLUDE=/farm/job/tiers.cmake
export CXX=g++-14
export CXXFLAGS='-mavx2 -mfma -mf16c'
export PYTORCH_BUILD_NUMBER=1
export PYTORCH_BUILD_VERSION=2.8.0+cpu.avx2
export USE_CUDA=0
export USE_CUDNN=0
export USE_DISTRIBUTED=0
export USE_FBGEMM=1
export USE_KINETO=0
export USE_MAGMA=0
export USE_MKLDNN=1
export USE_NCCL=0
export USE_NNPACK=1
export MAX_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
mkdir -p /farm/out/wheel /farm/out/lib
cd /farm/src
echo "farm: step patches"
python3 /farm/job/patches.py /farm/job/patches.json /farm/src
echo "farm: step build"
# The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
python3 -m build --wheel --no-isolation --skip-dependency-check --outdir /farm/out/wheel .
echo "farm: step libraries"
python3 /farm/scripts/collect_libraries.py /farm/out/wheel /farm/out/lib
echo "farm: done"
