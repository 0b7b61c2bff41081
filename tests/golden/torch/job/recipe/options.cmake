# Included by CMake after project(): what setup.py does not pass on.
include(${CMAKE_CURRENT_LIST_DIR}/../tiers.cmake)
set(Python_NumPy_INCLUDE_DIR "${PROJECT_SOURCE_DIR}/third_party/numpy/include" CACHE PATH "" FORCE)
set(CUPTI_LIBRARY_PATH "/usr/lib/x86_64-linux-gnu/libcupti.so" CACHE FILEPATH "" FORCE)    # it is looked for in /usr/lib alone
set(XNNPACK_BUILD_ALL_MICROKERNELS OFF CACHE BOOL "" FORCE)    # 3,500 C files that only XNNPACK's own tests and benchmarks call
set(XNNPACK_ENABLE_KLEIDIAI OFF CACHE BOOL "" FORCE)    # for Arm; it would be downloaded
