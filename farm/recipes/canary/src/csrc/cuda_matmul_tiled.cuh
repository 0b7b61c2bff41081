#pragma once

#include <stdexcept>

#include "cuda_internal.h"

namespace canary {
namespace cuda {
namespace {

constexpr int kTile = 16;

// c = a b. A block makes one tile of c; threads outside of c still help to load tiles.
template <typename T>
__global__ void multiply_tiled(const T* a, const T* b, T* c, std::size_t m, std::size_t k, std::size_t n) {
  __shared__ T tile_a[kTile][kTile];
  __shared__ T tile_b[kTile][kTile];
  const std::size_t row = static_cast<std::size_t>(blockIdx.y) * kTile + threadIdx.y;
  const std::size_t col = static_cast<std::size_t>(blockIdx.x) * kTile + threadIdx.x;
  T sum = 0;
  for (std::size_t start = 0; start < k; start += kTile) {
    const std::size_t a_col = start + threadIdx.x;
    const std::size_t b_row = start + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < m && a_col < k ? a[row * k + a_col] : T(0);
    tile_b[threadIdx.y][threadIdx.x] = b_row < k && col < n ? b[b_row * n + col] : T(0);
    __syncthreads();
    for (int p = 0; p < kTile; ++p) sum += tile_a[threadIdx.y][p] * tile_b[p][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum;
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
