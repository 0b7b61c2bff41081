#!/bin/bash
# Runs once in the unpacked source tree, in the toolchain image: what is no file of a part, and no edit of a line.
set -euo pipefail

# CMake makes targets of these folders; with USE_DISTRIBUTED=0 nothing includes a header of them.
mkdir -p third_party/opentelemetry-cpp/api/include third_party/cpp-httplib

mkdir -p third_party/nlohmann/include
cp -r /usr/include/nlohmann third_party/nlohmann/include/

# With gcc 12.2 and newer protobuf demands constant initialisation of its messages; cmake/ProtoBufPatch.cmake takes the
# constexpr that this needs out of the generated files. As with gcc 11, then.
sed -i 's/^#elif PROTOBUF_GNUC_MIN(12, 2)$/#elif 0/' third_party/protobuf/src/google/protobuf/port_def.inc

# The generated header in the tarball goes with another version of flatbuffers than third_party's.
flatc --cpp --gen-mutable --scoped-enums -o torch/csrc/jit/serialization/ torch/csrc/jit/serialization/mobile_bytecode.fbs

# Sparse tensor cores begin at sm_80. Where no card of the build has them, these files take the branch that they take
# under MSVC, which says so at run time; compiled with CUTLASS they cost more than all else (400 CPU s, 2.4 GB).
newest=$(tr ';' '\n' <<< "${TORCH_CUDA_ARCH_LIST:-}" | sed 's/+PTX//; s/\.//' | sort -n | tail -n 1)
if [ "${newest:-0}" -lt 80 ]; then
    sed -i 's/defined(_MSC_VER)/1/' aten/src/ATen/native/sparse/cuda/SparseSemiStructured*.cu
fi
