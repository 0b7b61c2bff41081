// Windows: the device code of canary_cuda, made into one fat binary that cuda_driver.cpp hands to the driver.
#include "cuda_matmul_tile.cuh"

extern "C" __global__ void canary_multiply_float(const float* a, const float* b, float* c, std::size_t m,
                                                 std::size_t k, std::size_t n) {
  canary::cuda::multiply_tile(a, b, c, m, k, n);
}

extern "C" __global__ void canary_multiply_double(const double* a, const double* b, double* c, std::size_t m,
                                                  std::size_t k, std::size_t n) {
  canary::cuda::multiply_tile(a, b, c, m, k, n);
}
