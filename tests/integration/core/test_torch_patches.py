"""Patches of PyTorch 2.6.0, on stand-ins for the files that they change.

That for CVE-2026-24747 was also tried by hand on the real files (docs/evidence/torch-2.6.0-whole.md).

The one for CPUs with AMX: which code packs depends on the tier that was compiled, not on the CPU
alone. No emulator of the test machines has AMX, so a stand-in for the CPU says that it has.
"""

import ctypes
import shutil
import subprocess
from collections import Counter, OrderedDict
from copy import copy
from pathlib import Path
from pickle import SETITEM, SETITEMS, UnpicklingError

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


UNPICKLER = "torch/_weights_only_unpickler.py"
READER = "torch/csrc/jit/python/init.cpp"
CVE_FILES = {
    UNPICKLER: """\
from collections import Counter, OrderedDict
from pickle import SETITEM, SETITEMS, UnpicklingError


class Unpickler:
    def __init__(self, stack, metastack):
        self.stack = stack
        self.metastack = metastack

    def run(self, key):
        while True:
            if not key:
                return self.stack[-1]
            elif key[0] == 0:
                list_obj = items = []
                list_obj.extend(items)
            elif key[0] == SETITEM[0]:
                (v, k) = (self.stack.pop(), self.stack.pop())
                self.stack[-1][k] = v
            elif key[0] == SETITEMS[0]:
                items = self.pop_mark()
                for i in range(0, len(items), 2):
                    self.stack[-1][items[i]] = items[i + 1]
            elif key[0] == MARK[0]:
                self.metastack.append(self.stack)
                self.stack = []
                self.append = self.stack.append
            key = key[1:]

    def pop_mark(self):
        items = self.stack
        self.stack = self.metastack.pop()
        self.append = self.stack.append
        return items

    def persistent_load(self, pid):
        raise UnpicklingError("unsupported persistent id encountered")

""",
    READER: """\
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tuple>
#define TORCH_CHECK(condition, ...) if (!(condition)) throw std::runtime_error("refused")
enum ScalarType { Byte, Int };
static size_t elementSize(ScalarType type) { return type == Int ? 4 : 1; }
struct THPDtype { ScalarType scalar_type; };
namespace py { struct object { void* pointer; void* ptr() { return pointer; } }; }
namespace at { using DataPtr = std::string; }
struct PyTorchStreamReader {
  std::tuple<at::DataPtr, size_t> getRecord(const std::string&) { return {"", 16}; }
};
namespace c10 {
struct Storage {
  static int use_byte_size_t() { return 0; }
  Storage(int, size_t bytes, at::DataPtr) { std::printf("%zu bytes\\n", bytes); }
};
}
auto get =
          [](PyTorchStreamReader& self,
             const std::string& key,
             size_t numel,
             py::object data_type_obj) {
            at::DataPtr data(std::get<0>(self.getRecord(key)));
            auto scalar_type =
                reinterpret_cast<THPDtype*>(data_type_obj.ptr())->scalar_type;

            c10::Storage storage(
                c10::Storage::use_byte_size_t(),
                numel * elementSize(scalar_type),
                std::move(data));
          };
int main(int, char** arguments) {
  PyTorchStreamReader reader;
  THPDtype type{std::atoi(arguments[2]) == 4 ? Int : Byte};
  try {
    get(reader, "0", std::strtoull(arguments[1], nullptr, 10), py::object{&type});
  } catch (std::runtime_error&) {
    std::puts("refused");
  }
}
""",
}


@pytest.fixture
def checkpoint_readers(tmp_path):
    """A function that lays the two files, patched or as they are in 2.6.0, into a folder."""
    if shutil.which("g++") is None or shutil.which("patch") is None:
        pytest.skip("needs g++ and patch")

    def laid(*, patched):
        for name, text in CVE_FILES.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        if patched:
            patch = PATCHES / "0004-CVE-2026-24747.patch"
            command = ["patch", "-p1", "--fuzz=0", "-i", str(patch)]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return tmp_path

    return laid


@pytest.mark.parametrize(
    ("target", "is_set_when_patched"),
    [({}, True), (OrderedDict(), True), (Counter(), True), ([0], False), (bytearray(1), False)],
)
@pytest.mark.parametrize("opcode", [SETITEM, SETITEMS])
def test_a_checkpoint_sets_items_of_dictionaries_alone(
    checkpoint_readers, opcode, target, is_set_when_patched
):
    for patched in (False, True):
        text = (checkpoint_readers(patched=patched) / UNPICKLER).read_text()
        module = {}
        exec(compile(text, UNPICKLER, "exec"), module)
        owner = copy(target)
        items = [0, 7]
        if opcode == SETITEM:
            unpickler = module["Unpickler"]([owner, *items], [])
        else:
            unpickler = module["Unpickler"](items, [[owner]])
        if patched and not is_set_when_patched:
            with pytest.raises(UnpicklingError, match="items of dictionaries"):
                unpickler.run(opcode)
            assert owner == target
        else:
            assert unpickler.run(opcode)[0] == 7


@pytest.mark.parametrize(
    ("numel", "element_size", "upstream", "mended"),
    [
        (16, 1, "16 bytes\n", "16 bytes\n"),
        (4, 4, "16 bytes\n", "16 bytes\n"),
        (17, 1, "17 bytes\n", "refused\n"),
        (5, 4, "20 bytes\n", "refused\n"),
        (2**62 + 1, 4, "4 bytes\n", "refused\n"),
    ],
)
def test_a_storage_ends_where_its_bytes_in_the_checkpoint_end(
    checkpoint_readers, numel, element_size, upstream, mended
):
    said = []
    for patched in (False, True):
        folder = checkpoint_readers(patched=patched)
        command = ["g++", "-std=c++17", "-w", "-o", "reader", READER]
        subprocess.run(command, cwd=folder, check=True)
        run = [str(folder / "reader"), str(numel), str(element_size)]
        said.append(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert said == [upstream, mended]


BUILDER = "torch/_inductor/cpp_builder.py"
# The lines around the patch, in the place that they have in the real file.
BUILDER_FILE = (
    "#\n" * 1071
    + """\
def flags(sys_libs_include_dirs, omp_include_dir_paths, sys_libs_cflags, omp_cflags, omp_ldflags,
          python_libraries_dirs, torch_libraries_dirs, omp_lib_dir_paths, torch_libraries, omp_lib):
    include_dirs = (
        sys_libs_include_dirs
        + omp_include_dir_paths
    )
    cflags = sys_libs_cflags + omp_cflags
    ldflags = omp_ldflags
    libraries_dirs = python_libraries_dirs + torch_libraries_dirs + omp_lib_dir_paths
    libraries = torch_libraries + omp_lib
    passthough_args = (
        []
    )
    return ldflags
"""
)


@pytest.mark.parametrize(
    ("patch", "loads"), [(None, False), ("0005-inductor-finds-sleef.patch", True)]
)
def test_code_of_torch_compile_finds_sleef_behind_the_library_it_is_linked_with(
    tmp_path, patch, loads
):
    if shutil.which("gcc") is None or shutil.which("patch") is None:
        pytest.skip("needs gcc and patch")
    builder = tmp_path / BUILDER
    builder.parent.mkdir(parents=True)
    builder.write_text(BUILDER_FILE)
    if patch:
        command = ["patch", "-p1", "--fuzz=0", "-i", str(PATCHES / patch)]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    module = {}
    exec(builder.read_text(), module)
    flags = [f"-{flag}" for flag in module["flags"](*([] for _ in range(10)))]

    def link(name, text, *options):
        (tmp_path / f"{name}.c").write_text(text)
        command = ["gcc", "-shared", "-fPIC", "-o", f"lib{name}.so", f"{name}.c", "-L."]
        subprocess.run([*command, *options], cwd=tmp_path, check=True)

    here = f"-Wl,-rpath,{tmp_path}"
    link("sleef", "float vector_exp(float x) { return x; }\n")
    link("torch_cpu", "float vector_exp(float); float e(void) { return vector_exp(1); }\n",
         "-lsleef", here)  # fmt: skip
    kernel = "float vector_exp(float); float kernel(void) { return vector_exp(2); }\n"
    link("kernel", kernel, "-Wl,--as-needed", *flags, "-ltorch_cpu", here)

    try:
        library = ctypes.CDLL(str(tmp_path / "libkernel.so"), mode=2)  # RTLD_NOW
    except OSError:
        library = None
    assert (library is not None) == loads
