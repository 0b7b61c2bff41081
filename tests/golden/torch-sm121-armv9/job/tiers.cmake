# Included by CMake after project(): armv9 leaves no run-time CPU tier out.
set(BLAS_USE_CBLAS_DOT TRUE)
