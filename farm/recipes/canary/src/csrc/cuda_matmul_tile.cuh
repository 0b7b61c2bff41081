// Device code alone: nothing here needs the CUDA runtime's or the host's headers.
#pragma once

#include <cstddef>

namespace canary {
namespace cuda {
namespace {

constexpr int kTile = 16;

// c = a b. A block makes one tile of c; threads outside of c still help to load tiles.
template <typename T>
__device__ void multiply_tile(const T* a, const T* b, T* c, std::size_t m, std::size_t k, std::size_t n) {
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

}  // namespace
}  // namespace cuda
}  // namespace canary
