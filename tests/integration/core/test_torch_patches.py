"""Patches of PyTorch 2.6.0, on stand-ins for the files that they change.

The one for CPUs with AMX: which code packs depends on the tier that was compiled, not on the CPU
alone. No emulator of the test machines has AMX, so a stand-in for the CPU says that it has.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATCHES = ROOT / "farm" / "recipes" / "torch-debian-2-6" / "job" / "patches"
FILE = "aten/src/ATen/native/CPUBlas.cpp"

STAND_IN = """\
#include <cstdio>
#include <cstring>
enum class ScalarType { Half, BFloat16 };
enum class CPUCapability { DEFAULT, AVX2, AVX512 };
static CPUCapability tier;
static CPUCapability get_cpu_capability() { return tier; }
namespace at {
struct Context {
  bool userEnabledMkldnn() { return true; }
};
static Context& globalContext() { static Context context; return context; }
}

struct Pack {
  static inline bool the_cpu_has_amx() {
    return true;
  }

  static inline bool could_pack(ScalarType dtype) {
    if (!at::globalContext().userEnabledMkldnn()) {
      return false;
    }
    if (dtype == ScalarType::Half) {
      return the_cpu_has_amx();
    }
    return the_cpu_has_amx();
  }
};

int main(int, char** arguments) {
  tier = std::strcmp(arguments[1], "AVX512") ? CPUCapability::AVX2 : CPUCapability::AVX512;
  std::puts(Pack::could_pack(ScalarType::BFloat16) ? "packs" : "does not pack");
}
"""


LOOKUP = "caffe2/perfkernels/embedding_lookup_idx.cc"
LOOKUP_FILES = {
    LOOKUP: """\
#include "caffe2/perfkernels/embedding_lookup_idx.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/Logging.h>
#include <c10/util/irange.h>
#include "caffe2/perfkernels/common.h"

C10_DIAGNOSTIC_PUSH_AND_IGNORED_IF_DEFINED("-Wmissing-prototypes")
#include <cstdio>
int main() { std::puts(KERNEL); }
""",
    "caffe2/perfkernels/embedding_lookup_idx.h": "",
    "caffe2/perfkernels/common.h": """\
#ifdef CAFFE2_PERF_WITH_AVX2
#define KERNEL "AVX2"
#else
#define KERNEL "loop"
#endif
""",
    "caffe2/core/macros.h": "#define CAFFE2_PERF_WITH_AVX2\n",
    "c10/util/BFloat16.h": "",
    "c10/util/Half.h": "",
    "c10/util/irange.h": "",
    "c10/util/Logging.h": "#define C10_DIAGNOSTIC_PUSH_AND_IGNORED_IF_DEFINED(warning)\n",
}


@pytest.fixture
def could_pack(tmp_path):
    """Answers for a tier on a CPU with AMX, after the patch of that name; None: unpatched."""
    if shutil.which("g++") is None or shutil.which("patch") is None:
        pytest.skip("needs g++ and patch")
    source = tmp_path / FILE
    source.parent.mkdir(parents=True)
    source.write_text(STAND_IN)

    def answers(patch):
        if patch is not None:
            command = ["patch", "-p1", "--fuzz=0", "-i", str(PATCHES / patch)]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        program = tmp_path / "could_pack"
        subprocess.run(["g++", "-std=c++17", "-o", str(program), str(source)], check=True)
        return [
            subprocess.run([program, tier], check=True, capture_output=True, text=True).stdout
            for tier in ("AVX2", "AVX512")
        ]

    return answers


def test_upstream_packs_with_code_that_a_lower_tier_has_not(could_pack):
    assert could_pack(None) == ["packs\n", "packs\n"]


def test_the_patch_lets_the_tier_decide(could_pack):
    assert could_pack("0002-amx-without-avx512-tier.patch") == ["does not pack\n", "packs\n"]


@pytest.mark.parametrize(
    ("patch", "kernel"), [(None, "loop\n"), ("0003-embedding-bag-avx2.patch", "AVX2\n")]
)
def test_embedding_bag_takes_the_kernels_that_the_build_has(tmp_path, patch, kernel):
    if shutil.which("g++") is None or shutil.which("patch") is None:
        pytest.skip("needs g++ and patch")
    for name, text in LOOKUP_FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if patch:
        command = ["patch", "-p1", "--fuzz=0", "-i", str(PATCHES / patch)]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    command = ["g++", "-std=c++17", f"-I{tmp_path}", "-o", "lookup", LOOKUP]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "lookup"], check=True, capture_output=True, text=True)
    assert done.stdout == kernel
