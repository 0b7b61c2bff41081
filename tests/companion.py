"""A project with a small `torch` and a package that is built against it: companions without the
hours of PyTorch.
"""

from pathlib import Path

import yaml

CHANNEL = "small"
COMPILED = """\
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_C", NULL, -1, NULL}};
PyMODINIT_FUNC PyInit__C(void) {{
    PyObject *made = PyModule_Create(&module);
    if (made) PyModule_AddStringConstant(made, "built_against", {against});
    return made;
}}
"""
SETUP = """\
import os
from setuptools import Extension, setup
{before}
setup(
    name="{name}", version=os.environ["BUILD_VERSION"], packages=["{name}"], install_requires="{requires}",
    ext_modules=[Extension("{name}._C", ["_C.c"]{options})],
)
"""
MEASURED = """\
import companion, torch
assert companion.built_against == torch.__version__, (companion.built_against, torch.__version__)
"""
RECIPE = {
    "platforms": ["linux"],
    "components": [],
    "device_code": False,
    "source": {"kind": "path", "path": "src"},
    "apt": ["python3-build", "python3-dev", "python3-pip", "python3-setuptools", "python3-wheel"],
    "env": {"BUILD_VERSION": "{version}"},
    "memory_per_job_gb": 0.5,
    "disk_gb": 0.5,
    "timeout_minutes": 10,
}


def add_companion(project: Path) -> None:
    """Adds recipes `torch` and `companion` to the project, and the channel that builds them."""
    _package(
        project,
        "torch",
        {"version": "2.6.0", "verify": {"numpy": False}},
        against='"nothing"',
        module="",
    )
    _package(
        project,
        "companion",
        {"version": "1.0.0", "needs": ["torch"]},
        # As torchvision's: its build imports torch, and the wheel is for this torch alone.
        before="import torch",
        requires="torch==2.6.0+cpu.avx",
        options=""", define_macros=[("AGAINST", '"%s"' % torch.__version__)]""",
        against="AGAINST",
        module="from companion._C import built_against\n",
    )
    (project / "recipes/companion/measured.py").write_text(MEASURED)
    path = project / "ci/matrix.yaml"
    data = yaml.safe_load(path.read_text())
    data["channels"][CHANNEL] = {
        "summary": "a small torch and its companion",
        "platforms": ["linux"],
        "packages": ["torch", "companion"],
        "base": "debian-bookworm",
        "toolkit": "debian",
        "cuda": "11.8",
        "torch": "2.6.0",
        "blas": "openblas",
        "gpus": ["cpu"],
        "cpus": ["avx"],
        "pythons": ["py311"],
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def add_addon(project: Path) -> None:
    """Adds a package that is built against the companion: the third of a chain."""
    _package(
        project,
        "addon",
        {"version": "0.5.0", "needs": ["torch", "companion"]},
        before="import companion",
        requires="companion==1.0.0+cpu.avx",
        options=""", define_macros=[("AGAINST", '"%s"' % companion.__version__)]""",
        against="AGAINST",
        module="from addon._C import built_against\n",
    )
    path = project / "ci/matrix.yaml"
    data = yaml.safe_load(path.read_text())
    data["channels"][CHANNEL]["packages"].append("addon")
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def _package(project, name, recipe, *, against, module, before="", requires="", options=""):
    folder = project / "recipes" / name
    smoke = {"imports": [name]} | ({"script": "measured.py"} if name == "companion" else {})
    text = (
        RECIPE
        | {"package": name, "summary": name, "vendor_into": f"{name}.libs", "smoke": smoke}
        | recipe
    )
    (folder / "src" / name).mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(text))
    (folder / "src/_C.c").write_text(COMPILED.format(against=against))
    (folder / "src/setup.py").write_text(
        SETUP.format(name=name, before=before, requires=requires, options=options)
    )
    version = f'from importlib.metadata import version\n__version__ = version("{name}")\n'
    (folder / f"src/{name}/__init__.py").write_text(version + module)
