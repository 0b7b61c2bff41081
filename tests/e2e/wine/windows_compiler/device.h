/* What nvcc declares by itself: the words of device code, for clang, which has attributes and built-ins of its own. */
#pragma once
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
struct farm_index { unsigned x, y; };
#define threadIdx (farm_index{(unsigned)__nvvm_read_ptx_sreg_tid_x(), (unsigned)__nvvm_read_ptx_sreg_tid_y()})
#define blockIdx (farm_index{(unsigned)__nvvm_read_ptx_sreg_ctaid_x(), (unsigned)__nvvm_read_ptx_sreg_ctaid_y()})
