// Tensors as Python capsules; the class that people see is in canary/__init__.py.
#include "module.h"

#include <cstring>
#include <string>

#include "canary.h"

namespace canary {
namespace {

constexpr const char* kCapsule = "canary.Tensor";

PyObject* wrap(Tensor tensor) {
  Tensor* owned = new Tensor(std::move(tensor));
  PyObject* capsule = PyCapsule_New(owned, kCapsule, [](PyObject* dying) {
    delete static_cast<Tensor*>(PyCapsule_GetPointer(dying, kCapsule));
  });
  if (capsule == nullptr) delete owned;
  return capsule;
}

const Tensor* unwrap(PyObject* handle) { return static_cast<const Tensor*>(PyCapsule_GetPointer(handle, kCapsule)); }

// Other Python threads may run while this one computes.
struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

Tensor multiply(const Tensor& a, const Tensor& b) {
#ifdef CANARY_USE_CUDA
  check_matmul(a, b);
  if (a.device == Device::Cuda) return cuda::matmul(a, b);
#endif
  return matmul_cpu(a, b);
}

Tensor move_to(const Tensor& tensor, const std::string& device) {
  if (device == "cpu" && tensor.device == Device::Cpu) return tensor;
#ifdef CANARY_USE_CUDA
  if (device == "cpu") return cuda::to_cpu(tensor);
  if (device == "cuda") return cuda::to_cuda(tensor);
#else
  if (device == "cuda") throw std::runtime_error("canary was built without CUDA");
#endif
  throw std::invalid_argument("unknown device '" + device + "': it takes cpu and cuda");
}

}  // namespace

PyObject* py_from_bytes(PyObject*, PyObject* args) {
  PyObject* bytes = nullptr;  // no buffer: those are in the limited API from 3.11 on
  Py_ssize_t rows = 0;
  Py_ssize_t cols = 0;
  int dtype = 0;
  if (!PyArg_ParseTuple(args, "Snni", &bytes, &rows, &cols, &dtype)) return nullptr;
  return guarded([&]() -> PyObject* {
    char* data = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(bytes, &data, &length) != 0) return nullptr;
    if (dtype < 0 || dtype > static_cast<int>(DType::Int32)) throw std::invalid_argument("unknown dtype");
    if (rows < 0 || cols < 0) throw std::invalid_argument("a shape has no negative sizes");
    Tensor tensor =
        empty_cpu(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), static_cast<DType>(dtype));
    if (static_cast<std::size_t>(length) != tensor.bytes()) {
      throw std::invalid_argument("the data does not fill the shape");
    }
    std::memcpy(tensor.data.get(), data, tensor.bytes());
    return wrap(std::move(tensor));
  });
}

PyObject* py_to_bytes(PyObject*, PyObject* handle) {
  const Tensor* tensor = unwrap(handle);
  if (tensor == nullptr) return nullptr;
  return guarded([&] {
    const Tensor here = move_to(*tensor, "cpu");
    return PyBytes_FromStringAndSize(static_cast<const char*>(here.data.get()), static_cast<Py_ssize_t>(here.bytes()));
  });
}

PyObject* py_to_device(PyObject*, PyObject* args) {
  PyObject* handle = nullptr;
  const char* device = nullptr;
  if (!PyArg_ParseTuple(args, "Os", &handle, &device)) return nullptr;
  const Tensor* tensor = unwrap(handle);
  if (tensor == nullptr) return nullptr;
  return guarded([&] { return wrap(move_to(*tensor, device)); });
}

PyObject* py_matmul(PyObject*, PyObject* args) {
  PyObject* handles[2] = {nullptr, nullptr};
  if (!PyArg_ParseTuple(args, "OO", &handles[0], &handles[1])) return nullptr;
  const Tensor* a = unwrap(handles[0]);
  const Tensor* b = a == nullptr ? nullptr : unwrap(handles[1]);
  if (b == nullptr) return nullptr;
  return guarded([&] {
    Tensor product;
    {
      const WithoutGil released;
      product = multiply(*a, *b);
    }
    return wrap(std::move(product));
  });
}

PyObject* py_describe(PyObject*, PyObject* handle) {
  const Tensor* tensor = unwrap(handle);
  if (tensor == nullptr) return nullptr;
  return Py_BuildValue("nniz", static_cast<Py_ssize_t>(tensor->rows), static_cast<Py_ssize_t>(tensor->cols),
                       static_cast<int>(tensor->dtype), tensor->device == Device::Cuda ? "cuda" : "cpu");
}

}  // namespace canary
