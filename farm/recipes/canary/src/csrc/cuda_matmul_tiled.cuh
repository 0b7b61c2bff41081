#pragma once

#include <stdexcept>

#include "cuda_internal.h"
#include "cuda_matmul_tile.cuh"

namespace canary {
namespace cuda {
namespace {

template <typename T>
__global__ void multiply_tiled(const T* a, const T* b, T* c, std::size_t m, std::size_t k, std::size_t n) {
  multiply_tile(a, b, c, m, k, n);
}

template <typename T>
void launch_tiled(const T* a, const T* b, T* c, std::size_t m, std::size_t k, std::size_t n) {
  const std::size_t blocks_x = (n + kTile - 1) / kTile;
  const std::size_t blocks_y = (m + kTile - 1) / kTile;
  // The largest grid of compute capability 3.0 and newer (CUDA C++ Programming Guide, technical specifications).
  if (blocks_x > 2147483647u || blocks_y > 65535u) throw std::invalid_argument("matmul: too large for one launch");
  const dim3 grid(static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y));
  multiply_tiled<T><<<grid, dim3(kTile, kTile)>>>(a, b, c, m, k, n);
  check(cudaGetLastError(), "launching the matmul kernel");
  check(cudaDeviceSynchronize(), "running the matmul kernel");
}

}  // namespace
}  // namespace cuda
}  // namespace canary
