// Windows: launches the kernels of cuda_kernels.cu through the driver. It is opened at run time: a machine without
// one can import canary.
#include <cuda.h>
#include <windows.h>

#include <stdexcept>
#include <string>

#include "cuda_internal.h"

extern "C" const unsigned char canary_fatbin[];  // made from cuda_kernels.cu

namespace canary {
namespace cuda {
namespace {

class Driver {
 public:
  Driver() : library_(LoadLibraryA("nvcuda.dll")) {
    if (library_ == nullptr) throw std::runtime_error("nvcuda.dll cannot be opened: there is no NVIDIA driver");
  }
  ~Driver() { FreeLibrary(library_); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Calls a function of the driver by its name; `Function` is its declaration in cuda.h.
  template <typename Function, typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<Function*>(reinterpret_cast<void*>(GetProcAddress(library_, name)));
    if (function == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    const CUresult status = function(arguments...);
    if (status != CUDA_SUCCESS) {
      throw std::runtime_error(std::string("CUDA error ") + std::to_string(status) + " (" + name + ")");
    }
  }

 private:
  HMODULE library_;
};

// The kernels in the current context, which is the one that the runtime made when it allocated the operands.
class Module {
 public:
  explicit Module(const Driver& driver) : driver_(driver) {
    driver.call<decltype(cuModuleLoadData)>("cuModuleLoadData", &module_, canary_fatbin);
  }
  ~Module() {
    try {
      driver_.call<decltype(cuModuleUnload)>("cuModuleUnload", module_);
    } catch (const std::exception&) {  // what went wrong before is what is told
    }
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  CUfunction kernel(const char* name) const {
    CUfunction found = nullptr;
    driver_.call<decltype(cuModuleGetFunction)>("cuModuleGetFunction", &found, module_, name);
    return found;
  }

 private:
  const Driver& driver_;
  CUmodule module_ = nullptr;
};

constexpr unsigned kTile = 16;  // as in cuda_matmul_tile.cuh

template <typename T>
void launch(const char* kernel, const T* a, const T* b, T* c, std::size_t m, std::size_t k, std::size_t n) {
  const std::size_t blocks_x = (n + kTile - 1) / kTile;
  const std::size_t blocks_y = (m + kTile - 1) / kTile;
  if (blocks_x > 2147483647u || blocks_y > 65535u) throw std::invalid_argument("matmul: too large for one launch");
  const Driver driver;
  const Module module(driver);
  void* arguments[] = {&a, &b, &c, &m, &k, &n};
  driver.call<decltype(cuLaunchKernel)>("cuLaunchKernel", module.kernel(kernel), static_cast<unsigned>(blocks_x),
                                        static_cast<unsigned>(blocks_y), 1u, kTile, kTile, 1u, 0u,
                                        static_cast<CUstream>(nullptr), arguments, static_cast<void**>(nullptr));
  check(cudaDeviceSynchronize(), "running the matmul kernel");
}

}  // namespace

void multiply(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n) {
  launch("canary_multiply_float", a, b, c, m, k, n);
}

void multiply(const double* a, const double* b, double* c, std::size_t m, std::size_t k, std::size_t n) {
  launch("canary_multiply_double", a, b, c, m, k, n);
}

}  // namespace cuda
}  // namespace canary
