#pragma once

#include <algorithm>
#include <cstddef>

namespace canary {

// c += a b, block by block. The inner loop runs along rows of b and c: compilers make vector code of it.
template <typename T>
void multiply_blocked(const T* a, const T* b, T* c, std::size_t m, std::size_t k, std::size_t n) {
  constexpr std::size_t kDepth = 64;   // rows of b that stay in the cache
  constexpr std::size_t kWidth = 256;  // columns of b and c
  for (std::size_t p0 = 0; p0 < k; p0 += kDepth) {
    const std::size_t p1 = std::min(k, p0 + kDepth);
    for (std::size_t j0 = 0; j0 < n; j0 += kWidth) {
      const std::size_t width = std::min(n - j0, kWidth);
      for (std::size_t i = 0; i < m; ++i) {
        T* __restrict out = c + i * n + j0;
        for (std::size_t p = p0; p < p1; ++p) {
          const T factor = a[i * k + p];
          const T* __restrict row = b + p * n + j0;
          for (std::size_t j = 0; j < width; ++j) out[j] += factor * row[j];
        }
      }
    }
  }
}

}  // namespace canary
