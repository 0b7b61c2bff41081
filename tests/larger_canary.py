"""The canary with more to compile: for tests and benches that need a build which takes a while."""

import shutil
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[1]

HEAVY = """\
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>
// The work of one file: templates of its own types.
namespace n{number} {{
const char* token() {{ return "{token}"; }}
struct Own {{ std::map<std::string, std::vector<std::function<int(const std::string&)>>> all; }};
int use(Own& own, const std::string& text) {{
  own.all[text].push_back(
      [](const std::string& word) {{ return int(std::count(word.begin(), word.end(), 'a')) + {number}; }});
  return own.all[text].back()(text);
}}
}}
"""


def copy_farm(folder: Path) -> None:
    """A copy of the farm's code, with the channels and templates that come with it."""
    for part in ("farm", "ci", "dockerfiles"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)


def larger_canary(folder: Path, files: int, *, ccache: bool) -> Path:
    """A copy of the farm's code in `folder`, with a canary of `files` more sources; each takes
    about a second.

    No compiler cache knows them from a time before. As PyTorch's own setup.py, it keeps its build
    folder.
    """
    token = uuid.uuid4().hex
    copy_farm(folder)
    recipe = folder / "farm/recipes/canary"
    for number in range(files):
        (recipe / f"src/csrc/heavy_{number}.cpp").write_text(
            HEAVY.format(number=number, token=token)
        )
    names = " ".join(f"csrc/heavy_{number}.cpp" for number in range(files))
    _replace(recipe / "src/CMakeLists.txt", "csrc/tensor.cpp ", f"csrc/tensor.cpp {names} ")
    _replace(recipe / "src/setup.py", "        shutil.rmtree(build, ignore_errors=True)\n", "")
    if ccache:
        _replace(recipe / "recipe.yaml", "apt: [cmake,", "apt: [ccache, cmake,")
        _replace(recipe / "recipe.yaml", "env:\n", "env:\n  CMAKE_CXX_COMPILER_LAUNCHER: ccache\n")
    return folder


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path}: no {old!r}"
    path.write_text(text.replace(old, new, 1))
