#!/bin/bash
# Builds canary 0.1.0+cu118.sm35.avx for sm35-avx-py311. Rendered by farm from plan c007faca7d7f; runs in the
# toolchain image without network. Reads /farm/src, writes /farm/out/wheel and /farm/out/lib.
set -euo pipefail
export CANARY_BUILD_VERSION=0.1.0+cu118.sm35.avx
export CC=gcc-11
export CFLAGS=-mavx
export CUDAHOSTCXX=/usr/bin/g++-11
export CXX=g++-11
export CXXFLAGS=-mavx
export TORCH_CUDA_ARCH_LIST=3.5
export USE_CUDA=1
export MAX_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
mkdir -p /farm/out/wheel /farm/out/lib
cd /farm/src
echo "farm: step build"
# The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
python3 -m build --wheel --no-isolation --skip-dependency-check --outdir /farm/out/wheel .
echo "farm: step libraries"
python3 /farm/scripts/collect_libraries.py /farm/out/wheel /farm/out/lib
echo "farm: done"
