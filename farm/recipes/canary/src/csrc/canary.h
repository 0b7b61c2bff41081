// The whole interface between canary's libraries and its Python module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#ifdef _WIN32
#define CANARY_API __declspec(dllexport)
#else
#define CANARY_API __attribute__((visibility("default")))
#endif

namespace canary {

enum class DType { Float32 = 0, Float64 = 1, Int32 = 2 };
enum class Device { Cpu, Cuda };

CANARY_API std::size_t item_size(DType dtype);

// A matrix, row by row without gaps. Copies share the data; nothing writes to it after it was filled.
struct Tensor {
  std::shared_ptr<void> data;
  std::size_t rows = 0;
  std::size_t cols = 0;
  DType dtype = DType::Float32;
  Device device = Device::Cpu;

  std::size_t bytes() const { return rows * cols * item_size(dtype); }
};

// Errors are std::runtime_error (a device or a call failed) and std::invalid_argument (the caller is wrong).
CANARY_API Tensor empty_cpu(std::size_t rows, std::size_t cols, DType dtype);
// Refuses operands that do not fit together.
CANARY_API void check_matmul(const Tensor& a, const Tensor& b);
CANARY_API Tensor matmul_cpu(const Tensor& a, const Tensor& b);

void multiply_cpu(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n);
void multiply_cpu(const std::int32_t* a, const std::int32_t* b, std::int32_t* c, std::size_t m, std::size_t k, std::size_t n);
void multiply_cpu(const double* a, const double* b, double* c, std::size_t m, std::size_t k, std::size_t n);

struct BuildInfo {
  std::string version;
  std::string cuda_version;        // "11.8"; empty in a build without CUDA
  std::vector<std::string> archs;  // "sm_35", "compute_35"
  std::string text;
};
CANARY_API BuildInfo build_info();

namespace cuda {

struct DeviceInfo {
  std::string name;
  int major;
  int minor;
};

// 0 where there is no driver or no device; an error where there is a driver that cannot be used.
CANARY_API int device_count();
CANARY_API DeviceInfo device_info(int index);
CANARY_API Tensor to_cuda(const Tensor& tensor);
CANARY_API Tensor to_cpu(const Tensor& tensor);
CANARY_API Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace cuda
}  // namespace canary
