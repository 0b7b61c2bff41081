// Inside the Python module only: functions with the signature of PyCFunction.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <new>
#include <stdexcept>

namespace canary {

PyObject* py_from_bytes(PyObject* self, PyObject* args);
PyObject* py_to_bytes(PyObject* self, PyObject* handle);
PyObject* py_to_device(PyObject* self, PyObject* args);
PyObject* py_matmul(PyObject* self, PyObject* args);
PyObject* py_describe(PyObject* self, PyObject* handle);

// Runs `body` and turns a C++ exception into a Python one.
template <typename Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace canary
