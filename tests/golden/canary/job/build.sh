#!/bin/bash
# Builds canary 0.1.0+cu118.sm35.avx for sm35-avx-py311. Rendered by farm from plan DIGEST; runs in the
# toolchain image without network. Reads source/, writes out/wheel and out/lib, all under $FARM_ROOT (/farm).
# The tree src/ may be kept between two attempts: the second goes on where the first stopped. One build at a time.
# With the name of a step it runs that one; without, steps.py calls it for each of them and says which one begins.
set -euo pipefail
FARM_ROOT="${FARM_ROOT:-/farm}"
[ "$#" -gt 0 ] || exec python3 -E -s "$FARM_ROOT/job/steps.py"
export CANARY_BUILD_VERSION=0.1.0+cu118.sm35.avx
export CC=gcc-11
export CFLAGS=-mavx
export CUDAHOSTCXX=/usr/bin/g++-11
export CXX=g++-11
export CXXFLAGS=-mavx
export TORCH_CUDA_ARCH_LIST=3.5
export USE_CUDA=1
export MAX_JOBS="${FARM_JOBS:-1}" CMAKE_BUILD_PARALLEL_LEVEL="${FARM_JOBS:-1}" CARGO_BUILD_JOBS="${FARM_JOBS:-1}" SOURCE_DATE_EPOCH=315532800 PYTHONDONTWRITEBYTECODE=1
if [ "$1" = begin ]; then    # prints the names of the steps
    rm -rf "$FARM_ROOT/out"
    mkdir -p "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib" "$FARM_ROOT/bin"
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
    echo build libraries
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
    ;;
build)
    touch .farm-source
    # Meson and meson-python have no variable for the number of jobs, only one for the program.
    if ninja=$(command -v ninja); then
        printf '#!/bin/sh\nexec "%s" -j "%s" "$@"\n' "$ninja" "$MAX_JOBS" > "$FARM_ROOT/bin/ninja-jobs"
        chmod +x "$FARM_ROOT/bin/ninja-jobs"
        export NINJA="$FARM_ROOT/bin/ninja-jobs"
    fi
    # The image has what the recipe names, as the distribution's packages; cmake and ninja are no Python packages there.
    # -x: --skip-dependency-check, which build 0.1 (Debian 11) calls otherwise.
    python3 "$FARM_ROOT/job/run_build.py" --wheel --no-isolation -x --outdir "$FARM_ROOT/out/wheel" .
    ;;
libraries)
    python3 "$FARM_ROOT/scripts/collect_libraries.py" "$FARM_ROOT/out/wheel" "$FARM_ROOT/out/lib"
    ;;
esac
