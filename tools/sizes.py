"""How many lines each package has and how long functions are: `python -m tools.sizes [FOLDER]`.

Lines of a function are those from `def` to its last one, docstring included. The lengths leave recipes and the example
project out: they are written for other programs. The folder is `farm` where none is named.
"""

import argparse
import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {"recipes", "example", "__pycache__"}


def functions(root: Path) -> Iterator[tuple[Path, str, int]]:
    """The file, name and number of lines of every function below a folder."""
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT & set(path.relative_to(root).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def packages(root: Path) -> dict[str, list[int]]:
    """The lengths of the modules by the folder directly below `root`, "." for its own; recipes included."""
    found: dict[str, list[int]] = {}
    for path in sorted(root.rglob("*.py")):
        folders = path.relative_to(root).parts[:-1]
        lines = len(path.read_text(encoding="utf-8").splitlines())
        found.setdefault(folders[0] if folders else ".", []).append(lines)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="sizes", description="How many lines packages have.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("farm"), help="default: %(default)s")
    root = parser.parse_args().folder
    rows = packages(root)
    print("| package | modules | lines | longest |\n|---|---:|---:|---:|")
    for name, lengths in sorted(rows.items(), key=lambda row: -sum(row[1])):
        print(f"| {name} | {len(lengths)} | {sum(lengths):,} | {max(lengths)} |")
    every = [length for lengths in rows.values() for length in lengths]
    print(f"| all | {len(every)} | {sum(every):,} | {max(every)} |")
    lines = sorted(length for _, _, length in functions(root))
    middle, high = statistics.median(lines), lines[int(len(lines) * 0.99)]
    print(f"\n{len(lines):,} functions: median {middle:g} lines, 99 % within {high}, longest {lines[-1]}.")


if __name__ == "__main__":
    main()
