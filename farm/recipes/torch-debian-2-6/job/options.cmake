# Included by CMake after project(): what setup.py does not pass on.
include(${CMAKE_CURRENT_LIST_DIR}/../tiers.cmake)
set(Python_NumPy_INCLUDE_DIR "${PROJECT_SOURCE_DIR}/third_party/numpy/include" CACHE PATH "" FORCE)
# OpenBLAS returns complex numbers by value, as gfortran does. Without this, ATen calls its products as those of MKL, which
# take an address for the result: torch.dot of complex numbers was 0 (TestLinalgCPU.test_dot_vs_numpy_cpu_complex64).
set(BLAS_USE_CBLAS_DOT TRUE)
