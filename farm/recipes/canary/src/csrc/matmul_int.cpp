#include "canary.h"
#include "matmul_blocked.h"

namespace canary {

// Integer vectors of 256 bits came with AVX2, floating-point ones with AVX: this code tells the two apart.
void multiply_cpu(const std::int32_t* a, const std::int32_t* b, std::int32_t* c, std::size_t m, std::size_t k, std::size_t n) {
  multiply_blocked(a, b, c, m, k, n);
}

}  // namespace canary
