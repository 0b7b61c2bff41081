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
    stem = name.replace(".", "/")
    if "." not in name or not any(
        path.startswith(f"{stem.partition('/')[0]}/") for path in files.names
    ):
        return None
    binary = [
        path
        for path in files.names
        if re.fullmatch(re.escape(stem) + r"\.([\w-]+\.)?(so|pyd)", path)
    ]
    if binary:
        suffixes = ", ".join(path.removeprefix(stem) for path in binary)
        cure = (
            "python -c 'import _imp; print(_imp.extension_suffixes())' lists what it imports: use "
            "the Python that the "
            "suffix names, or the wheel for this one; if the suffix is listed, another folder of "
            "this name comes first "
            "(the current folder, PYTHONPATH)"
        )
        return (
            f"{name} is there, and the Python that looked for it does not import {suffixes}",
            binary,
            cure,
        )
    if any(path in files.names for path in (f"{stem}.py", f"{stem}/__init__.py")):
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
    lacks = [
        f"{path} has no {name}"
        for path, table in files.contents.symbols.items()
        if called.search(path) and name not in table.exports
    ]
    cause = (
        f"Python calls {name} of a module, and the file that it found does not have it: it was "
        "renamed, its symbols "
        "were stripped or hidden, or it is no extension module"
    )
    cure = (
        "build it under the name that its source gives to PyInit_ (PYBIND11_MODULE, "
        "TORCH_EXTENSION_NAME)"
    )
    if lacks:
        advice = ""
    else:
        advice = (
            "; these files are not to blame: print the package's __file__, another copy comes first"
        )
    return cause, lacks, cure + advice
