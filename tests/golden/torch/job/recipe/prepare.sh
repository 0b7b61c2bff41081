#!/bin/bash
# Runs once in the unpacked source tree, in the toolchain image: what is no file of a part, and no edit of a line.
set -euo pipefail

# CMake makes a target of this folder; nothing includes a header of it.
mkdir -p third_party/opentelemetry-cpp/api/include

mkdir -p third_party/nlohmann/include
cp -r /usr/include/nlohmann third_party/nlohmann/include/

# pthreadpool wants FXdiv as a folder with a CMakeLists; Debian has its header alone.
mkdir -p third_party/FXdiv/include
cp /usr/include/fxdiv.h third_party/FXdiv/include/
cat > third_party/FXdiv/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.5)
project(FXdiv C CXX)
add_library(fxdiv INTERFACE)
target_include_directories(fxdiv INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/include)
END

# Debian's copy of kineto looks for an installed fmt where upstream's takes PyTorch's.
sed -i "s|^find_package(fmt REQUIRED)|set(FMT_SOURCE_DIR \"$PWD/third_party/fmt\")|" third_party/kineto/libkineto/CMakeLists.txt

# MKL's static libraries need one another in circles, and CMake names each once or twice: one script of the linker for all.
if [ -d third_party/mkl ]; then
    intel64=$PWD/third_party/mkl/lib/intel64
    mv "$intel64/libmkl_core.a" "$intel64/libmkl_core_only.a"
    echo "GROUP ( $intel64/libmkl_intel_lp64.a $intel64/libmkl_gnu_thread.a $intel64/libmkl_core_only.a )" > "$intel64/libmkl_core.a"
fi

# NVIDIA's wheel has no name to link with.
if [ -e third_party/nccl/lib/libnccl.so.2 ]; then ln -s libnccl.so.2 third_party/nccl/lib/libnccl.so; fi

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

# Upstream compiles this file with FP16 instructions of Arm and asks no CPU; Armv8.2-A need not have them. The level decides.
sed -i '/BlasKernel.cpp PROPERTIES COMPILE_FLAGS "-march=armv8.2-a+fp16"/d' caffe2/CMakeLists.txt

# Upstream's own Sleef installs this header; what torch.compile writes for the CPU includes it.
mkdir -p torch/include
cp "$(find /usr/include -name sleef.h)" torch/include/    # in the folder of the machine's ABI
