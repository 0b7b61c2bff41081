# Included by CMake after project(): what setup.py does not pass on.
include(${CMAKE_CURRENT_LIST_DIR}/../tiers.cmake)
set(Python_NumPy_INCLUDE_DIR "${PROJECT_SOURCE_DIR}/third_party/numpy/include" CACHE PATH "" FORCE)
