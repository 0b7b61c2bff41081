# Included by CMake after each project(): the run-time CPU tiers above avx are not compiled at all.
set(C_AVX2_FOUND OFF CACHE BOOL "" FORCE)
set(CXX_AVX2_FOUND OFF CACHE BOOL "" FORCE)
set(CAFFE2_COMPILER_SUPPORTS_AVX2_EXTENSIONS OFF CACHE BOOL "" FORCE)
set(C_AVX512_FOUND OFF CACHE BOOL "" FORCE)
set(CXX_AVX512_FOUND OFF CACHE BOOL "" FORCE)
set(CAFFE2_COMPILER_SUPPORTS_AVX512_EXTENSIONS OFF CACHE BOOL "" FORCE)
# One OpenMP: PyTorch's FindOpenMP would take Visual Studio's libomp.lib beside MSVC's vcomp, which runs the regions, and
# results are wrong (pytorch/pytorch#193784).
set(OpenMP_libomp_LIBRARY C:/farm/venv/Library/lib/libiomp5md.lib CACHE STRING "" FORCE)
set(OpenMP_libiomp5_LIBRARY C:/farm/venv/Library/lib/libiomp5md.lib CACHE STRING "" FORCE)
