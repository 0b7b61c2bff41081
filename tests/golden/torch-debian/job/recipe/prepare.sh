#!/bin/bash
# Runs once in the unpacked source tree, in the toolchain image: what the tarball lacks, from the image's own packages.
set -euo pipefail
job=$(dirname "$(readlink -f "$0")")

# pybind11 from its -dev package, where setup.py looks for the headers that it puts into torch/include.
mkdir -p third_party/pybind11/include
cp -r /usr/include/pybind11 third_party/pybind11/include/

# Only Caffe2, which is off, uses foxi (ONNXIFI); CMake wants the target to exist.
mkdir -p third_party/foxi
echo 'add_library(foxi_loader INTERFACE)' > third_party/foxi/CMakeLists.txt

# torch/csrc/profiler includes this header with USE_KINETO=0 too; of the enum it uses the names alone.
mkdir -p third_party/kineto/libkineto/include
cp "$job/ActivityType.h" third_party/kineto/libkineto/include/

# The generated header in the tarball goes with another version of flatbuffers than the headers of Debian's.
flatc --cpp --gen-mutable --scoped-enums -o torch/csrc/jit/serialization/ torch/csrc/jit/serialization/mobile_bytecode.fbs
