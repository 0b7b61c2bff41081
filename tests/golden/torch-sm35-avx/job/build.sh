#!/bin/bash
# Builds torch 2.0.1+cu117.sm35.avx for sm35-avx-py311. Rendered by farm from plan b87ea30edaec; runs in the
# toolchain image without network. Reads /farm/src, writes /farm/out/wheel and /farm/out/lib.
set -euo pipefail
export BLAS=OpenBLAS
export BUILD_TEST=0
export CC=gcc-11
export CFLAGS=-mavx
export CMAKE_PROJECT_Torch_INCLUDE=/farm/job/tiers.cmake
export CUDAHOSTCXX=/usr/bin/g++-11
export CUDA_HOME=/opt/cuda
export CUDNN_ROOT=/opt/cuda
export CXX=g++-11
export CXXFLAGS=-mavx
export PYTORCH_BUILD_NUMBER=1
export PYTORCH_BUILD_VERSION=2.0.1+cu117.sm35.avx
export TORCH_CUDA_ARCH_LIST=3.5
export TORCH_NVCC_FLAGS='-Xfatbin -compress-all'
export USE_CUDA=1
export USE_CUDNN=1
export USE_CUFILE=0
export USE_DISTRIBUTED=0
export USE_FBGEMM=0
export USE_FLASH_ATTENTION=0
export USE_KINETO=0
export USE_MAGMA=0
export USE_MEM_EFF_ATTENTION=0
export USE_MKLDNN=1
export USE_NCCL=0
export USE_NNPACK=0
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
