#!/bin/bash
# Builds canary 0.1.0+cu118.sm35.avx for sm35-avx-py311. Rendered by farm from plan DIGEST; runs in the
# toolchain image without network. Reads source/, writes out/wheel and out/lib, all under $FARM_ROOT (/farm).
# The tree src/ may be kept between two attempts: the second goes on where the first stopped. One build at a time.
set -euo pipefail
FARM_ROOT="${FARM_ROOT:-/farm}"
export CANARY_BUILD_VERSION=0.1.0+cu118.sm35.avx
export CC=gcc-11
export CFLAGS=-mavx
export CUDAHOSTCXX=/usr/bin/g++-11
export CXX=g++-11
export CXXFLAGS=-mavx
export TORCH_CUDA_ARCH_LIST=3.5
export USE_CUDA=1
export MAX_JOBS="${FARM_JOBS:-1}" CMAKE_BUILD_PARALLEL_LEVEL="${FARM_JOBS:-1}" CARGO_BUILD_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$FARM_ROOT/src"
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
flock --nonblock 9 || { echo "farm: waits for another build in the same tree: $(cat .farm-holder 2>/dev/null || true)"; flock 9; }
echo "${FARM_RUN:-a run}" > .farm-holder
if [ ! -e "$FARM_ROOT/src/.farm-source" ]; then
    echo "farm: step source"
    find . -mindepth 1 ! -name .farm-holder -delete
    tar --extract --no-same-owner --file "$FARM_ROOT/source/00.tar" --strip-components=1
    touch .farm-source
fi
# Meson and meson-python have no variable for the number of jobs, only one for the program.
if ninja=$(command -v ninja); then
    printf '#!/bin/sh\nexec "%s" -j "%s" "$@"\n' "$ninja" "$MAX_JOBS" > "$FARM_ROOT/bin/ninja-jobs"
    chmod +x "$FARM_ROOT/bin/ninja-jobs"
    export NINJA="$FARM_ROOT/bin/ninja-jobs"
fi
echo "farm: step build"
# The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
# -x: --skip-dependency-check, which build 0.1 (Debian 11) calls otherwise.
python3 "$FARM_ROOT/job/run_build.py" --wheel --no-isolation -x --outdir "$FARM_ROOT/out/wheel" .
echo "farm: step libraries"
python3 "$FARM_ROOT/scripts/collect_libraries.py" "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib"
echo "farm: done"
