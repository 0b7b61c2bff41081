"""Folders that a package's own code has Windows look for DLLs in: `os.add_dll_directory`, as pygame's `__init__.py`.

What counts is what has run whenever a module is loaded: `__init__.py` of the packages that the module lies in. The
code is read, never run: of paths it is followed how they are made of `__file__`, and of anything else nothing is known.
"""

import ast
import posixpath
from collections.abc import Callable, Iterable, Iterator

from farm.wheel.library import Library
from farm.wheel.needs import installed_path
from farm.wheel.windows import added_folders

_CALL = "add_dll_directory"
_LOADS = (_CALL.encode(), b"DLL(", b"LoadLibrary")
LONGEST = 1 << 20
"""Bytes: more of `__init__.py` files that call it are not looked into, in one wheel."""
_DEEPEST = 20  # names that stand for one another
_MOST_STEPS = 10_000  # of following them: names with several values may lead to one another in very many ways
_SAME = {"abspath", "realpath", "normpath", "fspath", "str", "Path", "PurePath", "WindowsPath", "resolve", "absolute"}


def with_added_folders(
    libraries: Iterable[Library], read: Callable[[str], bytes | None], modules: Iterable[str]
) -> list[Library]:
    """The libraries, those of Windows with `search_path`: what their packages add, from site-packages on.

    Args:
        libraries: Of a wheel or of an installed package.
        read: The content of a file by its path below site-packages; None where there is none.
        modules: The paths of all that Python runs (`.py`, `.pth`).
    """
    libraries = list(libraries)
    libs = _libs_folders(libraries, read, modules)
    # Packages of which the folders are known need no look: torch's `__init__.py` takes longer to read than its DLLs.
    added: dict[str, tuple[str, ...]] = {"": (), **{posixpath.dirname(known): () for known in added_folders()}}

    left = LONGEST

    def of(folder: str) -> tuple[str, ...]:
        nonlocal left
        if folder not in added:
            init = f"{folder}/__init__.py"
            source = read(init) or b""
            left -= len(source) if _CALL.encode() in source else 0
            own = folders_added(source, init) if left >= 0 else ()
            added[folder] = (*of(posixpath.dirname(folder)), *own)
        return added[folder]

    return [
        library._replace(search_path=(*of(posixpath.dirname(installed_path(library.path))), *libs))
        if library.format == "pe" and library.is_loadable
        else library
        for library in libraries
    ]


def _libs_folders(
    libraries: Iterable[Library], read: Callable[[str], bytes | None], modules: Iterable[str]
) -> tuple[str, ...]:
    """The `<name>.libs` folders, if a module names such a folder and loads DLLs or has Windows look for them.

    delvewheel and others write that in many ways, so it is not followed which folder the code leads to.
    """
    folders = {posixpath.dirname(installed_path(each.path)) for each in libraries if each.format == "pe"}
    libs = sorted(folder for folder in folders if folder.lower().endswith(".libs"))
    if not libs:
        return ()
    # delvewheel writes into the packages' own `__init__.py`, which is read first.
    order = sorted(modules, key=lambda path: (not path.endswith("__init__.py"), path.count("/"), path))
    sources = (read(path) or b"" for path in order)
    return tuple(libs) if any(b".libs" in each and any(word in each for word in _LOADS) for each in sources) else ()


def folders_added(source: bytes, path: str) -> tuple[str, ...]:
    """The folders, from site-packages on, that a module of this path adds when it is imported, as far as is known."""
    if _CALL.encode() not in source:
        return ()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # none that Python could import either
        return ()
    return _Module(tree, path).folders()


class _Module:
    def __init__(self, tree: ast.Module, path: str) -> None:
        self.path = path
        self.steps = 0
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        run = list(_run(tree.body))
        called = {node.func.id for node in run if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        for name in called & functions.keys():
            run += _run(functions[name].body)
        self.calls = [node for node in run if isinstance(node, ast.Call) and _name(node.func) == _CALL and node.args]
        self.values: dict[str, list[ast.expr]] = {}
        for node in run:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.values.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.NamedExpr):
                self.values.setdefault(node.target.id, []).append(node.value)
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self.values.setdefault(node.target.id, []).append(node.iter)
            elif isinstance(node, ast.Call) and _name(node.func) in ("add", "append") and len(node.args) == 1:
                # `folders.add(path)`: what a collection holds counts as the name's own values.
                collection = node.func.value if isinstance(node.func, ast.Attribute) else None
                if isinstance(collection, ast.Name):
                    self.values.setdefault(collection.id, []).append(node.args[0])

    def folders(self) -> tuple[str, ...]:
        found = []
        for call in self.calls:
            for path in self._paths(call.args[0], _DEEPEST):
                folder = posixpath.normpath(path.replace("\\", "/"))
                if folder not in (".", "..") and not folder.startswith(("../", "/")):
                    found.append(folder)
        return tuple(dict.fromkeys(found))

    def _paths(self, node: ast.expr, depth: int) -> Iterator[str]:
        """What a path may be, from site-packages on."""
        self.steps += 1
        if not depth or self.steps > _MOST_STEPS:
            return
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                yield self.path
            for value in self.values.get(node.id, ())[:_DEEPEST]:
                yield from self._paths(value, depth - 1)
        elif isinstance(node, ast.NamedExpr):
            yield from self._paths(node.value, depth - 1)
        elif isinstance(node, ast.Set | ast.List | ast.Tuple):  # that a loop goes through
            for each in node.elts[:_DEEPEST]:
                yield from self._paths(each, depth - 1)
        elif isinstance(node, ast.Attribute) and node.attr == "parent":
            yield from map(posixpath.dirname, self._paths(node.value, depth - 1))
        elif isinstance(node, ast.Subscript):
            yield from self._item(node, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
            with_slash = "/" if isinstance(node.op, ast.Div) else ""
            end = _text(node.right)
            if end is not None:
                yield from (f"{start}{with_slash}{end}" for start in self._paths(node.left, depth - 1))
        elif isinstance(node, ast.Call):
            yield from self._call(node, depth)

    def _item(self, node: ast.Subscript, depth: int) -> Iterator[str]:
        first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        if first and isinstance(node.value, ast.Name) and node.value.id == "__path__":
            yield posixpath.dirname(self.path)
        elif first and isinstance(node.value, ast.Call) and _name(node.value.func) == "split" and node.value.args:
            yield from map(posixpath.dirname, self._paths(node.value.args[0], depth - 1))

    def _call(self, node: ast.Call, depth: int) -> Iterator[str]:
        name = _name(node.func)
        # `Path(x).resolve()` has what it is about in front of the dot, `os.path.abspath(x)` between the brackets.
        subject = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
        if subject is None:
            return
        if name in _SAME:
            yield from self._paths(subject, depth - 1)
        elif name == "dirname":
            yield from map(posixpath.dirname, self._paths(subject, depth - 1))
        elif name in ("join", "joinpath"):
            if name == "joinpath" and isinstance(node.func, ast.Attribute):
                subject, rest = node.func.value, node.args
            else:
                rest = node.args[1:]
            parts = [_text(each) for each in rest]
            if None not in parts:
                yield from ("/".join([start, *map(str, parts)]) for start in self._paths(subject, depth - 1))


def _run(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All that is executed of some statements: not what stands in functions and classes."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def _name(function: ast.expr) -> str:
    """`join` of `os.path.join`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr) -> str | None:
    """A part of a path that is written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Attribute | ast.Name):
        return {"pardir": "..", "curdir": ".", "sep": "/"}.get(_name(node))
    return None
