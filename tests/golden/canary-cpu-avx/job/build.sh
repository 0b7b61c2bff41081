#!/bin/bash
# Builds canary 0.1.0+cpu.avx for cpu-avx-py311. Rendered by farm from plan c8c65c1487ce; runs in the
# toolchain image without network. Reads /farm/src, writes /farm/out/wheel and /farm/out/lib.
set -euo pipefail
export CANARY_BUILD_VERSION=0.1.0+cpu.avx
export CC=gcc-12
export CFLAGS=-mavx
export CXX=g++-12
export CXXFLAGS=-mavx
export USE_CUDA=0
export MAX_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
mkdir -p /farm/out/wheel /farm/out/lib
cd /farm/src
echo "farm: step build"
# The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
python3 -m build --wheel --no-isolation --skip-dependency-check --outdir /farm/out/wheel .
echo "farm: step libraries"
python3 /farm/scripts/collect_libraries.py /farm/out/wheel /farm/out/lib
echo "farm: done"
