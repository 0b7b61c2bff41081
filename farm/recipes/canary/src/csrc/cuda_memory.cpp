#include <stdexcept>

#include "canary.h"
#include "cuda_internal.h"

namespace canary {
namespace cuda {
namespace {

Tensor empty_cuda(std::size_t rows, std::size_t cols, DType dtype) {
  Tensor tensor;
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.dtype = dtype;
  tensor.device = Device::Cuda;
  void* data = nullptr;
  check(cudaMalloc(&data, tensor.bytes() + 1), "allocating device memory");
  tensor.data = std::shared_ptr<void>(data, [](void* pointer) { cudaFree(pointer); });
  return tensor;
}

}  // namespace

Tensor to_cuda(const Tensor& tensor) {
  if (tensor.device == Device::Cuda) return tensor;
  Tensor copy = empty_cuda(tensor.rows, tensor.cols, tensor.dtype);
  check(cudaMemcpy(copy.data.get(), tensor.data.get(), tensor.bytes(), cudaMemcpyHostToDevice), "copying to the device");
  return copy;
}

Tensor to_cpu(const Tensor& tensor) {
  if (tensor.device == Device::Cpu) return tensor;
  Tensor copy = empty_cpu(tensor.rows, tensor.cols, tensor.dtype);
  check(cudaMemcpy(copy.data.get(), tensor.data.get(), tensor.bytes(), cudaMemcpyDeviceToHost), "copying from the device");
  return copy;
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_matmul(a, b);
  if (a.dtype == DType::Int32) throw std::invalid_argument("matmul: int32 is for the CPU only");
  Tensor c = empty_cuda(a.rows, b.cols, a.dtype);
  if (c.rows == 0 || c.cols == 0) return c;
  if (a.dtype == DType::Float32) {
    multiply(static_cast<const float*>(a.data.get()), static_cast<const float*>(b.data.get()),
             static_cast<float*>(c.data.get()), a.rows, a.cols, b.cols);
  } else {
    multiply(static_cast<const double*>(a.data.get()), static_cast<const double*>(b.data.get()),
             static_cast<double*>(c.data.get()), a.rows, a.cols, b.cols);
  }
  return c;
}

}  // namespace cuda
}  // namespace canary
