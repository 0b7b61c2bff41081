"""Loads the libraries and modules of a wheel one by one: `load_each.py ROOT OUTPUT FILE...`.

The number of each is written before it is loaded, so that the last one is what killed the process.
Behind the last one the process ends as Python does, with what libraries run at exit.
A module is imported as its users do; where its package cannot be imported (a dependency is not
there), by itself if it is an extension. Of `absent:FILE` it is said whether it was loaded by then.
"""

import ctypes
import importlib.machinery
import importlib.util
import sys
from pathlib import Path


def _import_module(path: str) -> None:
    importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def _is_loaded(file: Path) -> bool:
    return any(line.rstrip().endswith(f" {file}") for line in Path("/proc/self/maps").open())


def _load(file: Path, path: str) -> None:
    name = file.name.partition(".")[0]
    if name.startswith("lib") or not path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        ctypes.CDLL(str(file))
        return
    dotted = ".".join([*path.split("/")[:-1], name])
    try:
        importlib.import_module(dotted)
    except BaseException:
        loader = importlib.machinery.ExtensionFileLoader(dotted, str(file))
        spec = importlib.machinery.ModuleSpec(dotted, loader, origin=str(file))
        loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "__main__":
    root, output, *libraries = sys.argv[1:]
    sys.path.insert(0, root)
    with Path(output).open("w", buffering=1, encoding="utf-8") as out:
        for number, path in enumerate(libraries):
            if path.startswith("absent:"):
                is_loaded = _is_loaded(Path(root, path.removeprefix("absent:")).resolve())
                print(number, "present" if is_loaded else "absent", file=out)
                continue
            print(number, "load", file=out)
            try:
                if path.endswith(".py"):
                    _import_module(path)
                else:
                    _load(Path(root, path), path)
                print(number, "loaded", file=out)
            except BaseException as error:
                print(
                    number,
                    "error",
                    type(error).__name__,
                    str(error).partition("\n")[0][:200],
                    file=out,
                )
        print(len(libraries), "exit", file=out)
