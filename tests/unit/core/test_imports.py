"""No circle of imports between files, nor one that an import inside a function hides."""

import ast
import re
import tomllib

from farm.base.zipapps import ROOT

LEFT_OUT = {"recipes", "example"}  # written for other programs


def imports(root):
    """Module name -> the modules of the same tree that it imports, anywhere in the file."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.joinpath("farm").rglob("*.py")
        if not LEFT_OUT & set(path.parts)
    }
    found = {}
    for name, path in files.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                each = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= (each & files.keys()) | ({node.module} if each - files.keys() else set())
        found[name] = (named & files.keys()) - {name}
    return found


def circles(graph):
    """What is left when modules go that import nothing of the rest, again and again."""
    left = {name: set(names) for name, names in graph.items()}
    while done := {name for name, names in left.items() if not names & left.keys()}:
        left = {name: names for name, names in left.items() if name not in done}
    return set(left)


def test_no_circle_of_imports():
    found = imports(ROOT)
    assert "farm.base.errors" in found["farm.run.run"]
    assert circles(found) == set()
    assert circles({"a": {"b", "c"}, "b": {"a"}, "c": set()}) == {"a", "b"}


def test_every_module_is_in_a_layer():
    """import-linter says nothing of one that its contract does not name: it may import what it
    likes.
    """
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = [name.strip() for layer in contract["layers"] for name in re.split("[|:]", layer)]
    packages = {
        "farm",
        "farm.base",
        "farm.machine",
        "farm.plan",
        "farm.plan.platforms",
        "farm.platforms",
        "farm.run",
    }  # of several layers; their modules count
    modules = imports(ROOT).keys() - packages
    assert [
        name for name in modules if not any(f"{name}.".startswith(f"{layer}.") for layer in layers)
    ] == []
