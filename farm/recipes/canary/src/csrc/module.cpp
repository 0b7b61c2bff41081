// The module canary._C: a thin layer, everything that can be Python is in canary/__init__.py.
#include "module.h"

#include <string>

#include "canary.h"

namespace canary {
namespace {

PyObject* py_device_count(PyObject*, PyObject*) {
#ifdef CANARY_USE_CUDA
  return guarded([] { return PyLong_FromLong(cuda::device_count()); });
#else
  return PyLong_FromLong(0);
#endif
}

PyObject* py_device_info(PyObject*, PyObject* args) {
  int index = 0;
  if (!PyArg_ParseTuple(args, "i", &index)) return nullptr;
#ifdef CANARY_USE_CUDA
  return guarded([&] {
    const cuda::DeviceInfo info = cuda::device_info(index);
    return Py_BuildValue("sii", info.name.c_str(), info.major, info.minor);
  });
#else
  PyErr_SetString(PyExc_RuntimeError, "canary was built without CUDA");
  return nullptr;
#endif
}

PyObject* py_build_info(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    const BuildInfo info = build_info();
    PyObject* archs = PyList_New(0);
    if (archs == nullptr) return nullptr;
    for (const std::string& arch : info.archs) {
      PyObject* text = PyUnicode_FromString(arch.c_str());
      const int failed = text == nullptr ? -1 : PyList_Append(archs, text);
      Py_XDECREF(text);
      if (failed != 0) {
        Py_DECREF(archs);
        return nullptr;
      }
    }
    const char* cuda_version = info.cuda_version.empty() ? nullptr : info.cuda_version.c_str();
    return Py_BuildValue("szNs", info.version.c_str(), cuda_version, archs, info.text.c_str());
  });
}

PyMethodDef methods[] = {
    {"from_bytes", py_from_bytes, METH_VARARGS, "from_bytes(data, rows, cols, dtype) -> handle"},
    {"to_bytes", py_to_bytes, METH_O, "to_bytes(handle) -> bytes"},
    {"to_device", py_to_device, METH_VARARGS, "to_device(handle, device) -> handle"},
    {"matmul", py_matmul, METH_VARARGS, "matmul(a, b) -> handle"},
    {"describe", py_describe, METH_O, "describe(handle) -> (rows, cols, dtype, device)"},
    {"device_count", py_device_count, METH_NOARGS, "device_count() -> int"},
    {"device_info", py_device_info, METH_VARARGS, "device_info(index) -> (name, major, minor)"},
    {"build_info", py_build_info, METH_NOARGS, "build_info() -> (version, cuda, archs, text)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "canary._C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace canary

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&canary::definition); }
