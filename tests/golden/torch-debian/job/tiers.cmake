# Included by CMake after project(): the run-time CPU tiers above avx are not compiled at all.
set(C_AVX2_FOUND OFF CACHE BOOL "" FORCE)
set(CXX_AVX2_FOUND OFF CACHE BOOL "" FORCE)
set(CAFFE2_COMPILER_SUPPORTS_AVX2_EXTENSIONS OFF CACHE BOOL "" FORCE)
set(C_AVX512_FOUND OFF CACHE BOOL "" FORCE)
set(CXX_AVX512_FOUND OFF CACHE BOOL "" FORCE)
set(CAFFE2_COMPILER_SUPPORTS_AVX512_EXTENSIONS OFF CACHE BOOL "" FORCE)
# OpenBLAS returns complex numbers by value. Where setup.py is told which BLAS it is, PyTorch's CMake does not look how, and
# ATen calls its products as those of MKL, with an address for the result: torch.dot of complex numbers was 0. By CBLAS,
# then, which is the same everywhere.
set(BLAS_USE_CBLAS_DOT TRUE)
