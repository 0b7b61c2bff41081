"""Folders that a package's code adds to Windows' search for DLLs: read out of the code, which is not run."""

import os
from pathlib import Path

import pytest

from farm.wheel.dllfolders import folders_added
from farm.wheel.inspect import inspect
from farm.wheel.policy import Policy
from farm.wheel.verify import verify
from farm.wheel.why126 import why_126

INIT = "pkg/__init__.py"
# As packages write it: pygame, PyQt6, rasterio, delvewheel's patch, pathlib's ways.
FORMS = {
    "import os\np = os.path.split(__file__)[0]\nos.add_dll_directory(p)\n": ["pkg"],
    "import os\nos.add_dll_directory(os.path.dirname(os.path.abspath(__file__)))\n": ["pkg"],
    "import os\nd = os.path.dirname(__file__) + '\\\\Qt6\\\\bin'\ntry:\n    os.add_dll_directory(d)\n"
    "except OSError:\n    pass\n": ["pkg/Qt6/bin"],
    "import os\nif os.path.isdir(d := os.path.join(os.path.dirname(__file__), os.pardir, 'x.libs')):\n"
    "    os.add_dll_directory(d)\n": ["x.libs"],
    "import os\nfrom pathlib import Path\nos.add_dll_directory(str(Path(__file__).resolve().parent / 'lib'))\n": [
        "pkg/lib"
    ],
    "import os\nfrom pathlib import Path\nos.add_dll_directory(Path(__file__).parent.joinpath('a', 'b'))\n": [
        "pkg/a/b"
    ],
    "import os\nos.add_dll_directory(os.path.join(__path__[0], 'bin'))\n": ["pkg/bin"],
    "import os\ndef _add():\n    os.add_dll_directory(os.path.dirname(__file__))\n_add()\n": ["pkg"],
    "import os\nhere = os.path.dirname(__file__)\nparents = {here}\nfor each in parents:\n"
    "    os.add_dll_directory(each)\n": ["pkg"],
    "import os\nfound = []\nfound.append(os.path.join(os.path.dirname(__file__), 'd'))\nfor each in found:\n"
    "    os.add_dll_directory(each)\n": ["pkg/d"],
    "from os import add_dll_directory, path\nadd_dll_directory(path.join(path.dirname(__file__), 'c'))\n": ["pkg/c"],
}
NOT_KNOWN = [
    "import os\nfor p in os.environ['PATH'].split(os.pathsep):\n    os.add_dll_directory(p)\n",
    "import os\nos.add_dll_directory('C:\\\\tools')\n",
    "import os\ndef never():\n    os.add_dll_directory(os.path.dirname(__file__))\n",
    "import os\nos.add_dll_directory(os.path.join(os.path.dirname(__file__), '..', '..', 'x'))\n",
    "import os\nos.add_dll_directory(os.path.join(os.path.dirname(__file__), os.environ['X']))\n",
    "a = b\nb = a\nadd_dll_directory(a)\n",
    "a = []\na.append(a)\nfor b in a:\n    a.append(b)\n    add_dll_directory(b)\n",
    "a = b = a\na = b = b\na = b = a\nb = a = b\n" * 9 + "add_dll_directory(a)\n",
    "add_dll_directory(" + "(" * 5000 + ")" * 5000 + ")",
    "add_dll_directory(__file__",
    "add_dll_directory()\nadd_dll_directory(*x)\n",
]


@pytest.mark.parametrize(("source", "folders"), FORMS.items())
def test_the_code_is_followed_as_python_runs_it(source, folders, tmp_path, monkeypatch):
    assert list(folders_added(source.encode(), INIT)) == folders
    # Python is the judge: what the function is called with when this is imported.
    for folder in ("pkg", "x.libs"):
        (tmp_path / folder).mkdir()
    called = []
    monkeypatch.setattr(os, "add_dll_directory", called.append, raising=False)
    exec(source, {"__file__": str(tmp_path / INIT), "__path__": [str(tmp_path / "pkg")]})
    [path] = [os.fspath(path).replace("\\", "/") for path in called]
    assert [os.path.relpath(path, tmp_path)] == folders


@pytest.mark.parametrize("source", NOT_KNOWN)
def test_of_anything_else_nothing_is_known(source):
    assert folders_added(source.encode(), INIT) == ()


ADDS = b"import os\nos.add_dll_directory(os.path.dirname(__file__))\n"


@pytest.fixture
def files(make_pe):
    """As pygame: a module in a subpackage needs a DLL of the package's folder; one elsewhere does too."""
    module = make_pe(needed=["SDL2.dll"])
    return {
        INIT: ADDS,
        "pkg/sdl2.dll": make_pe(),
        "pkg/_sub/__init__.py": b"",
        "pkg/_sub/video.cp311-win_amd64.pyd": module,
        "other/video.cp311-win_amd64.pyd": module,
    }


def unreachable(path: Path) -> list[str]:
    return [need.who.partition("/")[0] for need in inspect(path).needs if need.answer == "unreachable"]


def test_a_dll_of_the_parent_folder_is_found_where_the_package_adds_it(files, make_wheel, tmp_path):
    wheel = make_wheel(tmp_path / "in", files, name="pkg", tag="cp311-cp311-win_amd64")
    assert unreachable(wheel) == ["other"]
    found = [finding for finding in verify(wheel, Policy()).findings if "SDL2" in finding.what]
    assert [finding.where.partition("/")[0] for finding in found] == ["other"]
    silent = make_wheel(tmp_path / "no", {**files, INIT: b""}, name="pkg", tag="cp311-cp311-win_amd64")
    assert unreachable(silent) == ["pkg", "other"]


def test_of_an_installed_package_too(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert why_126(tmp_path / "pkg").named is None
    (tmp_path / INIT).write_bytes(b"")
    assert why_126(tmp_path / "pkg").named == "pkg/_sub/video.cp311-win_amd64.pyd"


@pytest.mark.parametrize("place", ["Qt6Core.dll", "bin/Qt6Core.dll"])  # PySide6's, and PyQt6-Qt6's
def test_a_plugin_takes_what_is_loaded_from_the_folders_above_it(make_pe, make_wheel, tmp_path, place):
    """Qt's: opened by a library of the package, when that is loaded. A module is opened by Python at any time."""
    needs = make_pe(needed=["Qt6Core.dll"])
    paths = ["plugins/styles/a.dll", "qml/Qt/Quick/b.dll", "plugins/c.cp311-win_amd64.pyd", "examples/d.dll"]
    files = {f"pkg/{place}": make_pe(), **{f"pkg/{path}": needs for path in paths}}
    wheel = make_wheel(tmp_path / "in", files, name="pkg", tag="cp311-cp311-win_amd64")
    who = [need.who for need in inspect(wheel).needs if need.answer == "unreachable"]
    assert sorted(who) == ["pkg/examples/d.dll", "pkg/plugins/c.cp311-win_amd64.pyd"]


@pytest.mark.parametrize(
    "folder", ["platforms", "styles", "imageformats", "iconengines", "bearer", "tls", "sqldrivers"]
)
def test_plugins_beside_qt_as_windeployqt_puts_them(make_pe, make_wheel, tmp_path, folder):
    """pymeshlab's."""
    needs = make_pe(needed=["Qt5Core.dll"])
    files = {"pkg/Qt5Core.dll": make_pe(), f"pkg/{folder}/qany.dll": needs, f"pkg/{folder}/c.pyd": needs}
    wheel = make_wheel(tmp_path / "in", files, name="pkg", tag="cp311-cp311-win_amd64")
    assert [need.who for need in inspect(wheel).needs if need.answer == "unreachable"] == [f"pkg/{folder}/c.pyd"]


@pytest.mark.parametrize(
    ("dll", "module"),
    [
        ("pxr/usd_ms.dll", "pxr/Usd/_usd.pyd"),
        ("bpy/usd_ms.dll", "bpy/5.0/python/lib/site-packages/pxr/Usd/_usd.pyd"),
        ("jaxlib/jax_common.dll", "jaxlib/mlir/_mlir_libs/_mlir.pyd"),
        ("tensorflow/python/_pywrap_tensorflow_common.dll", "tensorflow/python/util/_pywrap_utils.pyd"),
    ],
)
def test_folders_that_no_init_shows_are_listed(make_pe, make_wheel, tmp_path, dll, module):
    """usd-core's and Blender's, and those whose DLL the package loads before the modules that need it."""
    needs = make_pe(needed=[dll.rpartition("/")[2]])
    wheel = make_wheel(tmp_path / "in", {dll: make_pe(), module: needs}, name="pkg", tag="cp311-cp311-win_amd64")
    assert unreachable(wheel) == []


LOADS = {  # delvewheel's, by their first lines; PyTables' own
    "add_dll_directory": "os.add_dll_directory(os.path.join(os.path.dirname(__file__), os.pardir, 'pkg.libs'))\n",
    "preload": "libs = os.path.join(libs_dir, '.load-order-pkg')\nWinDLL(os.path.join('pkg.libs', lib))\n",
    "with_suffix": 'ctypes.CDLL(str(Path(__file__).parent.with_suffix(".libs") / "libblosc2.dll"))\n',
}


@pytest.mark.parametrize(
    ("where", "source", "found"),
    [
        ("pkg/__init__.py", LOADS["add_dll_directory"], True),
        ("pkg/_distributor_init.py", LOADS["preload"], True),
        ("pkg-1.0.data/purelib/pkg/__init__.py", LOADS["with_suffix"], True),
        ("pkg.pth", f"import os; {LOADS['add_dll_directory']}", True),
        ("pkg/__init__.py", "import ctypes  # libraries lie in pkg.libs\n", False),
        ("pkg/__init__.py", "import os\nos.add_dll_directory('C:/other')\n", False),
        ("pkg/readme.txt", LOADS["add_dll_directory"], False),
    ],
)
def test_a_libs_folder_needs_code_that_windows_looks_there(make_pe, make_wheel, tmp_path, where, source, found):
    files = {"pkg.libs/dep.dll": make_pe(), "pkg/_C.pyd": make_pe(needed=["dep.dll"]), where: source.encode()}
    wheel = make_wheel(tmp_path / "in", files, name="pkg", tag="cp311-cp311-win_amd64")
    assert unreachable(wheel) == ([] if found else ["pkg"])
    assert [each.check for each in verify(wheel, Policy()).findings] == ([] if found else ["imports"])


@pytest.mark.parametrize("source", [LOADS["add_dll_directory"], ""])
def test_the_libs_folder_beside_an_installed_package(make_pe, tmp_path, source):
    """numpy.libs, scikit_learn.libs of sklearn: the distribution gives the name. Those of others do not count."""
    needs = make_pe(needed=["dep.dll"])
    files = {"pkg/__init__.py": source.encode(), "pkg/_C.pyd": needs, "dist_name.libs/dep.dll": make_pe()}
    files["other.libs/lost.dll"] = make_pe(needed=["nowhere.dll"])
    files["dist_name-1.0.dist-info/RECORD"] = b"pkg/__init__.py,,\npkg/_C.pyd,,\ndist_name.libs/dep.dll,,\n"
    files["other-1.0.dist-info/RECORD"] = b"other/pkg/__init__.py,,\nother.libs/lost.dll,,\n"
    for name, content in files.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    found = why_126(tmp_path / "site-packages" / "pkg")
    assert [(each.name, each.elsewhere) for each in found.missing] == (
        [] if source else [("dep.dll", "dist_name.libs/dep.dll")]
    )
