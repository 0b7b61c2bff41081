"""The folders that a package's own code adds to Windows' search for DLLs."""

import pytest

from farm.wheel.explain.files import Files
from farm.wheel.inspect import inspect

TAG = "cp311-cp311-win_amd64"
OPENVINO = """import os, sys
if sys.platform == "win32":
    libs = [os.path.join(os.path.dirname(__file__), "libs")]
    for lib in libs:
        os.add_dll_directory(os.path.abspath(os.path.join(os.path.dirname(__file__), lib)))
"""
PATHLIB = "import os, pathlib\nos.add_dll_directory(str(pathlib.Path(__file__).parent / 'Libs'))\n"
ABOVE = "import os\nos.add_dll_directory(os.path.join(os.path.dirname(__file__), '..', 'libs'))\n"
BACKSLASH = "import os\nos.add_dll_directory(os.path.dirname(__file__) + r'\\..\\libs')\n"


def answer(make_wheel, make_pe, folder, path, loader):
    """Who answers the extension module's need of a DLL in another folder of the package."""
    files = {
        "pkg/core/_native.pyd": make_pe(needed=["own.dll", "KERNEL32.dll"]),
        "pkg/libs/own.dll": make_pe(needed=["KERNEL32.dll"]),
        path: loader.encode(),
    }
    wheel = make_wheel(folder, files, name="pkg", tag=TAG)
    [need] = [need for need in inspect(wheel).needs if need.name == "own.dll"]
    return need.answer


@pytest.mark.parametrize(
    ("path", "loader"),
    [
        ("pkg/utils.py", OPENVINO),
        ("pkg/__init__.py", PATHLIB),
        ("pkg/core/__init__.py", ABOVE),
        ("pkg/core/loader.py", BACKSLASH),
    ],
)
def test_a_folder_that_the_packages_code_adds_is_searched(
    make_wheel, make_pe, tmp_path, path, loader
):
    assert answer(make_wheel, make_pe, tmp_path, path, loader) == "wheel"


@pytest.mark.parametrize(
    ("path", "loader"),
    [
        ("pkg/utils.py", OPENVINO.replace("add_dll_directory", "listdir")),
        ("pkg/utils.py", OPENVINO.replace('"libs"', '"other"')),
        ("other/utils.py", OPENVINO.replace('"libs"', '"../pkg/libs"')),
        ("pkg/a/b/c/utils.py", ABOVE),
        ("pkg/utils.py", OPENVINO + "#" * (1 << 20)),
    ],
    ids=["no call", "another folder", "another package", "deep below", "too large"],
)
def test_other_code_adds_no_folder(make_wheel, make_pe, tmp_path, path, loader):
    assert answer(make_wheel, make_pe, tmp_path, path, loader) == "unreachable"


def test_the_code_of_an_installed_package_is_read_too(make_pe, tmp_path):
    for name, content in {
        "pkg/core/_native.pyd": make_pe(needed=["own.dll"]),
        "pkg/libs/own.dll": make_pe(),
        "pkg/utils.py": OPENVINO.encode(),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    [need] = Files(tmp_path / "pkg").needs
    assert need.answer == "wheel"
