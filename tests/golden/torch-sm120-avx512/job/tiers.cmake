# Included by CMake after project(): avx512 leaves no run-time CPU tier out.
set(BLAS_USE_CBLAS_DOT TRUE)
