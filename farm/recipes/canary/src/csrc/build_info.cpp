#include <sstream>

#include "canary.h"

namespace canary {
namespace {

std::string compiler() {
#if defined(__clang__)
  return std::string("Clang ") + __clang_version__;
#elif defined(_MSC_VER)
  return "MSVC " + std::to_string(_MSC_FULL_VER);
#else
  return std::string("GCC ") + __VERSION__;
#endif
}

// What the flags allowed the compiler to use in this library; nothing beyond it may be needed at run time.
std::string instruction_sets() {
  std::string sets;
#ifdef __SSE4_1__
  sets += " SSE4.1";
#endif
#ifdef __SSE4_2__
  sets += " SSE4.2";
#endif
#ifdef __AVX__
  sets += " AVX";
#endif
#ifdef __FMA__
  sets += " FMA";
#endif
#ifdef __AVX2__
  sets += " AVX2";
#endif
#ifdef __AVX512F__
  sets += " AVX512F";
#endif
#ifdef __ARM_NEON
  sets += " NEON";
#endif
  return sets.empty() ? " baseline" : sets;
}

#ifdef CANARY_CUDA_VERSION
// "11.8.89" -> "11.8"
std::string major_minor(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

std::vector<std::string> archs_of(const std::string& gencode) {
  std::vector<std::string> archs;
  std::istringstream flags(gencode);
  for (std::string flag; flags >> flag;) archs.push_back(flag.substr(flag.find("code=", flag.find(',')) + 5));
  return archs;
}
#endif

}  // namespace

BuildInfo build_info() {
  BuildInfo info;
  info.version = CANARY_VERSION;
  std::ostringstream text;
  text << "canary built with:\n"
       << "  - " << compiler() << "\n"
       << "  - C++ Version: " << __cplusplus << "\n"
       << "  - CPU instruction sets:" << instruction_sets() << "\n";
#ifdef CANARY_CUDA_VERSION
  info.cuda_version = major_minor(CANARY_CUDA_VERSION);
  info.archs = archs_of(CANARY_GENCODE);
  text << "  - CUDA " << CANARY_CUDA_VERSION << " (" << CANARY_CUDA_COMPILER << ")\n"
       << "  - NVCC architecture flags: " << CANARY_GENCODE << "\n"
       << "  - NVCC flags: " << CANARY_CUDA_FLAGS << "\n";
#endif
  text << "  - Build settings: BUILD_TYPE=" << CANARY_BUILD_TYPE << ", CXX_COMPILER=" << CANARY_CXX_COMPILER
       << ", CXX_FLAGS=" << CANARY_CXX_FLAGS << ", CANARY_VERSION=" << CANARY_VERSION << ", USE_CUDA="
       << (info.cuda_version.empty() ? "OFF" : "ON") << "\n";
  info.text = text.str();
  return info;
}

}  // namespace canary
