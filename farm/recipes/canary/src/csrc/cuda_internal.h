// Inside libcanary_cuda only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace canary {
namespace cuda {

// Throws std::runtime_error with the error's name, its text and what was being done.
void check(cudaError_t status, const char* doing);

void multiply(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n);
void multiply(const double* a, const double* b, double* c, std::size_t m, std::size_t k, std::size_t n);

}  // namespace cuda
}  // namespace canary
