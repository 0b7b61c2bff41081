#include <stdexcept>
#include <string>

#include "canary.h"
#include "cuda_internal.h"

namespace canary {
namespace cuda {

int device_count() {
  // The runtime answers cudaErrorInsufficientDriver for "no driver" too; only the version tells them apart.
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  if (driver == 0) return 0;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice) {
    cudaGetLastError();
    return 0;
  }
  check(status, "counting devices");
  return count;
}

DeviceInfo device_info(int index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw std::invalid_argument("no CUDA device " + std::to_string(index) + ": there are " + std::to_string(count));
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "reading a device's properties");
  return DeviceInfo{properties.name, properties.major, properties.minor};
}

}  // namespace cuda
}  // namespace canary
