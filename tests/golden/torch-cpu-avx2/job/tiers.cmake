# Included by CMake after project(): the run-time CPU tiers above avx2 are not compiled at all.
set(C_AVX512_FOUND OFF CACHE BOOL "" FORCE)
set(CXX_AVX512_FOUND OFF CACHE BOOL "" FORCE)
set(CAFFE2_COMPILER_SUPPORTS_AVX512_EXTENSIONS OFF CACHE BOOL "" FORCE)
set(BLAS_USE_CBLAS_DOT TRUE)
