"""How long modules and functions are, and how many lines are comments: `python -m tools.sizes [FOLDER]`.

Lines of a function are those from `def` to its last one, docstring included. Recipes and the example project are left
out: they are written for other programs. The folder is `farm` where none is named.
"""

import argparse
import ast
import statistics
from pathlib import Path

LEFT_OUT = {"recipes", "example", "__pycache__"}


def row(name: str, lengths: list[int]) -> str:
    lengths = sorted(lengths)
    high = lengths[int(len(lengths) * 0.99)]
    return f"| {name} | {len(lengths)} | {statistics.median(lengths):g} | {high} | {lengths[-1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="sizes", description="How long modules and functions are.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("farm"), help="default: %(default)s")
    root = parser.parse_args().folder
    modules, functions, comments, lines = [], [], 0, 0
    for path in root.rglob("*.py"):
        if LEFT_OUT & set(path.relative_to(root).parts):
            continue
        text = path.read_text(encoding="utf-8")
        modules.append(len(text.splitlines()))
        written = [line.strip() for line in text.splitlines() if line.strip()]
        lines += len(written)
        comments += sum(line.startswith("#") and not line.startswith("#!") for line in written)
        functions += [
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    print("| lines of | how many | median | 99 % | longest |\n|---|---:|---:|---:|---:|")
    print(row("a module", modules))
    print(row("a function", functions))
    print(f"\n{comments} of {lines} written lines are comments of their own ({100 * comments / lines:.1f} %).")


if __name__ == "__main__":
    main()
