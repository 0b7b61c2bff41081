"""Causes of what Python says of modules."""

import re

from farm.wheel.explain.files import Cause, Files, given


def module_not_found(files: Files, match: re.Match[str]) -> Cause:
    """A module that Python does not find, looked up in the files; None if another package should
    have it.
    """
    if "member" in match.re.groupindex:
        name = ".".join(match.group("package", "member"))
    else:
        name = given(match)
    package, dot, _ = name.partition(".")
    stem = name.replace(".", "/")
    if not dot or not any(path.startswith(f"{package}/") for path in files.names):
        return None
    pattern = re.compile(re.escape(stem) + r"(\.([\w-]+\.)?(so|pyd))")
    binary = []
    suffixes = []
    for path in files.names:
        path_match = pattern.fullmatch(path)
        if path_match:
            binary.append(path)
            suffixes.append(path_match[1])
    if binary:
        cause = (
            f"{name} is there, and the Python that looked for it does not import "
            f"{', '.join(suffixes)}"
        )
        cure = (
            "python -c 'import _imp; print(_imp.extension_suffixes())' lists what it imports: use "
            "the Python that the "
            "suffix names, or the wheel for this one; if the suffix is listed, another folder of "
            "this name comes first "
            "(the current folder, PYTHONPATH)"
        )
        return cause, binary, cure
    if f"{stem}.py" in files.names or f"{stem}/__init__.py" in files.names:
        cure = "another folder of this name comes first: run Python elsewhere, and unset PYTHONPATH"
        return f"{name} is there", (), cure
    cure = (
        "the build left it out, or the code that imports it is for another version: install the "
        "versions that belong "
        "together, or build the wheel with it"
    )
    return f"{name} is not among these files", (), cure


def entry(files: Files, match: re.Match[str]) -> Cause:
    """A library with the name of a module, and none inside."""
    name = f"PyInit_{match['name']}"
    called = re.compile(rf"(^|/){re.escape(match['name'])}\.([\w-]+\.)?(so|pyd)$")
    lacks = []
    for path, table in files.contents.symbols.items():
        if called.search(path) and name not in table.exports:
            lacks.append(f"{path} has no {name}")
    cause = (
        f"Python calls {name} of a module, and the file that it found does not have it: it was "
        "renamed, its symbols "
        "were stripped or hidden, or it is no extension module"
    )
    cure = (
        "build it under the name that its source gives to PyInit_ (PYBIND11_MODULE, "
        "TORCH_EXTENSION_NAME)"
    )
    if not lacks:
        cure += (
            "; these files are not to blame: print the package's __file__, another copy comes first"
        )
    return cause, lacks, cure
