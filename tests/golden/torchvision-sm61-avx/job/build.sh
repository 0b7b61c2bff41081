#!/bin/bash
# Builds torchvision 0.23.0+cu128.sm61.avx for sm61-avx-py313. Rendered by farm from plan 323916d555d3; runs in the
# toolchain image without network. Reads /farm/src, writes /farm/out/wheel and /farm/out/lib.
set -euo pipefail
export BUILD_VERSION=0.23.0+cu128.sm61.avx
export CC=gcc-14
export CFLAGS=-mavx
export CUDAHOSTCXX=/usr/bin/g++-14
export CUDA_HOME=/opt/cuda
export CXX=g++-14
export CXXFLAGS=-mavx
export FORCE_CUDA=1
export PYTORCH_VERSION=2.8.0+cu128.sm61.avx
export TORCHVISION_USE_FFMPEG=0
export TORCHVISION_USE_NVJPEG=0
export TORCHVISION_USE_VIDEO_CODEC=0
export TORCH_CUDA_ARCH_LIST=6.1
export MAX_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
mkdir -p /farm/out/wheel /farm/out/lib
cd /farm/src
echo "farm: step needs"
# /farm/needs holds the wheels that the farm built for this variant before.
python3 -m pip install --quiet --no-index --no-deps --find-links /farm/needs --target /farm/needs/site torch==2.8.0+cu128.sm61.avx

export PYTHONPATH=/farm/needs/site
echo "farm: step build"
# The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
python3 -m build --wheel --no-isolation --skip-dependency-check --outdir /farm/out/wheel .
echo "farm: step libraries"
python3 /farm/scripts/collect_libraries.py /farm/out/wheel /farm/out/lib
echo "farm: done"
