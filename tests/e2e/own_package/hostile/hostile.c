#include <Python.h>

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "hostile", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_hostile(void) { return PyModule_Create(&module); }
