#include <stdexcept>
#include <string>

#include "cuda_internal.h"

namespace canary {
namespace cuda {

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that can be survived must not come up again in the next call
  throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorName(status) + ": " +
                           cudaGetErrorString(status) + " (" + doing + ")");
}

}  // namespace cuda
}  // namespace canary
