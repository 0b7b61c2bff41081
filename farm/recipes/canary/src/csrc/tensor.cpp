#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "canary.h"

namespace canary {

namespace {

template <typename T>
Tensor matmul_as(const Tensor& a, const Tensor& b) {
  Tensor c = empty_cpu(a.rows, b.cols, a.dtype);
  multiply_cpu(static_cast<const T*>(a.data.get()), static_cast<const T*>(b.data.get()), static_cast<T*>(c.data.get()),
               a.rows, a.cols, b.cols);
  return c;
}

}  // namespace

std::size_t item_size(DType dtype) { return dtype == DType::Float64 ? 8 : 4; }

Tensor empty_cpu(std::size_t rows, std::size_t cols, DType dtype) {
  if (cols != 0 && rows > std::numeric_limits<std::size_t>::max() / cols / item_size(dtype)) throw std::bad_alloc();
  Tensor tensor;
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.dtype = dtype;
  // One byte at least: calloc(0) may give a null pointer, which would look like a failure.
  tensor.data = std::shared_ptr<void>(std::calloc(tensor.bytes() + 1, 1), std::free);
  if (!tensor.data) throw std::bad_alloc();
  return tensor;
}

void check_matmul(const Tensor& a, const Tensor& b) {
  if (a.device != b.device) throw std::invalid_argument("matmul: the operands are on different devices");
  if (a.dtype != b.dtype) throw std::invalid_argument("matmul: the operands have different dtypes");
  if (a.cols != b.rows) {
    throw std::invalid_argument("matmul: shapes (" + std::to_string(a.rows) + ", " + std::to_string(a.cols) +
                                ") and (" + std::to_string(b.rows) + ", " + std::to_string(b.cols) +
                                ") cannot be multiplied");
  }
}

Tensor matmul_cpu(const Tensor& a, const Tensor& b) {
  check_matmul(a, b);
  switch (a.dtype) {
    case DType::Float32: return matmul_as<float>(a, b);
    case DType::Float64: return matmul_as<double>(a, b);
    case DType::Int32: return matmul_as<std::int32_t>(a, b);
  }
  throw std::invalid_argument("matmul: unknown dtype");
}

}  // namespace canary
