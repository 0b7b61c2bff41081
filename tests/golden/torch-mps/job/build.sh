#!/bin/bash
# Builds torch 2.8.0+mps.arm64 for mps-arm64-py313. Rendered by farm from plan bd8ccf094d96; runs on a Mac
# (arm64) that has Apple's command line tools, Python 3.13 with the package build, cmake and ninja.
# This file stands in job/; reads ../src, writes ../out/wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(uname -s) $(uname -m)" = "Darwin arm64" ] || { echo "this is no Mac with arm64" >&2; exit 3; }
for tool in python3.13 clang cmake ninja; do
    command -v "$tool" > /dev/null || { echo "$tool is not installed" >&2; exit 3; }
done
export BLAS=vecLib
export BUILD_TEST=0
export CC=clang
export CXX=clang++
export PYTORCH_BUILD_NUMBER=1
export PYTORCH_BUILD_VERSION=2.8.0+mps.arm64
export USE_CUDA=0
export USE_CUDNN=0
export USE_DISTRIBUTED=0
export USE_FBGEMM=0
export USE_KINETO=0
export USE_MAGMA=0
export USE_MKLDNN=0
export USE_MPS=1
export USE_NCCL=0
export USE_NNPACK=1
export MAX_JOBS="${FARM_JOBS:-1}" CMAKE_BUILD_PARALLEL_LEVEL="${FARM_JOBS:-1}" CARGO_BUILD_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
mkdir -p out/wheel
out="$PWD/out/wheel"
python3.13 job/patches.py job/patches.json src
cd src
echo "farm: step build"
python3.13 -m build --wheel --no-isolation --skip-dependency-check --outdir "$out" .
echo "farm: done"
