# Included by CMake after project(): avx512 leaves no run-time CPU tier out.
# OpenBLAS returns complex numbers by value. Where setup.py is told which BLAS it is, PyTorch's CMake does not look how, and
# ATen calls its products as those of MKL, with an address for the result: torch.dot of complex numbers was 0. By CBLAS,
# then, which is the same everywhere.
set(BLAS_USE_CBLAS_DOT TRUE)
