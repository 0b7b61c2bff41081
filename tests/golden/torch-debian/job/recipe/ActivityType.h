// Stands in for libkineto's header, which Debian's tarball leaves out. torch's profiler names these values even
// where kineto is off; their numbers are not used then. Not for a build with USE_KINETO=1.
#pragma once
#include <array>
#include <string>
namespace libkineto {
enum class ActivityType {
  CPU_OP = 0,
  USER_ANNOTATION,
  GPU_USER_ANNOTATION,
  GPU_MEMCPY,
  GPU_MEMSET,
  CONCURRENT_KERNEL,
  EXTERNAL_CORRELATION,
  CUDA_RUNTIME,
  CUDA_PROFILER_RANGE,
  GLOW_RUNTIME,
  CPU_INSTANT_EVENT,
  PYTHON_FUNCTION,
  OVERHEAD,
  ENUM_COUNT,
  OPTIONAL_ACTIVITY_TYPE_START = GLOW_RUNTIME
};
}
