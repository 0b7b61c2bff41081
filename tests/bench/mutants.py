"""Do the tests notice when the code is wrong? `make mutants MODULES="farm/plan/variant.py …"`, a Markdown table.

cosmic-ray says how one thing in a module can be changed; `forks.py` runs the module's tests with each change, in a copy
of the checkout: a mutant that they do not notice is printed. `tests/mutants.yaml` says which tests are a module's, and
which mutants are equivalent (no test can tell them from the code), each with the reason. Of the operators that stand in
for an arithmetic one at a place one is tried, `is` never in the place of `==`, and nothing in a function's annotations.
A folder stands for its modules. MUTANTS=N tries N of each module, the same each time.
"""

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TOOL = "cosmic-ray==8.7.0"
SEED = 1
# Both run in cosmic-ray's own environment. A JSON line for each change of a file:
LIST = """
import json, sys
from pathlib import Path
from cosmic_ray.commands import init
from cosmic_ray.work_db import WorkDB, use_db
with use_db(":memory:", WorkDB.Mode.create) as db:
    init([Path(sys.argv[1])], db, {})
    for item in db.work_items:
        (change,) = item.mutations
        print(json.dumps([change.operator_name, *change.start_pos, change.operator_args, change.occurrence]))
"""
# The text of the file with each of some changes. It is parsed anew for each, so only those are made that are tried.
MAKE = """
import json, sys
from pathlib import Path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
source = Path(sys.argv[1]).read_text(encoding="utf-8")
for operator, arguments, occurrence in json.load(sys.stdin):
    print(json.dumps(mutate_code(source, get_operator(operator)(**arguments), occurrence)))
"""


@dataclass(frozen=True)
class Mutant:
    """One change: `line` as it stands there, without its indentation."""

    operator: str
    line: str
    number: int
    column: int
    arguments: dict[str, Any]
    occurrence: int


def tool(program: str, module: Path, given: object = None) -> list[Any]:
    """What a program in cosmic-ray's environment says of a module, a JSON value a line."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "tool", "run", "-q", "--from", TOOL, "python", "-c", program, str(module)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cosmic-ray: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def copy(folder: Path) -> Path:
    """The checkout's tracked files with their changes, and its environment."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def mutants(module: Path) -> list[Mutant]:
    lines = module.read_text(encoding="utf-8").splitlines()
    found = []
    for operator, number, column, arguments, occurrence in tool(LIST, module):
        found.append(Mutant(operator, lines[number - 1].strip(), number, column, arguments, occurrence))
    return found


def kind(mutant: Mutant) -> tuple[str, int, int]:
    """One of the eleven operators that stand in for `+` at a place is as good as another."""
    first, name, *_ = [*mutant.operator.split("_"), ""]
    return (f"{first}_{name}" if "Binary" in first else mutant.operator), mutant.number, mutant.column


def says_nothing(mutant: Mutant) -> bool:
    """Identity in the place of a comparison: whether equal values are one object is the interpreter's choice.

    Nor does a dataclass that is not frozen: that one is, is for the reader and for mypy.
    """
    thawed = mutant.operator == "core/ReplaceTrueWithFalse" and mutant.line.startswith("@dataclass(frozen=True")
    return thawed or bool(re.search(r"ReplaceComparisonOperator_(?!Is)\w+_(Is|IsNot)$", mutant.operator))


def annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the annotations of functions and of their variables stand, which no test can tell apart: start and end."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = (node.args.posonlyargs, node.args.args, node.args.kwonlyargs, [node.args.vararg, node.args.kwarg])
            found += [node.returns, *(each.annotation for each in chain(*given) if each)]
            found += [each.annotation for each in ast.walk(node) if isinstance(each, ast.AnnAssign)]
    places = [each for each in found if each]
    return [((p.lineno, p.col_offset), (p.end_lineno or 0, p.end_col_offset or 0)) for p in places]


def examine(module: str, known: dict[str, Any], most: int) -> tuple[str, list[str]]:
    """A row of the table, and the mutants that no test noticed."""
    tests = known["tests"].get(module)
    if not tests:
        raise SystemExit(f"{module}: tests/mutants.yaml does not say which tests are its")
    every = mutants(ROOT / module)
    equal = {(each["operator"], each["line"]) for each in known["equivalent"] if each["module"] == module}
    silent = annotations((ROOT / module).read_text(encoding="utf-8"))
    tried = [
        each
        for each in every
        if (each.operator, each.line) not in equal
        and not says_nothing(each)
        and not any(start <= (each.number, each.column) < end for start, end in silent)
    ]
    tried = list({kind(each): each for each in tried}.values())
    tried = sorted(random.Random(SEED).sample(tried, min(most or len(tried), len(tried))), key=lambda m: m.number)
    sources = tool(MAKE, ROOT / module, [[each.operator, each.arguments, each.occurrence] for each in tried])
    with tempfile.TemporaryDirectory(prefix="farm-mutants-") as folder:
        checkout = copy(Path(folder))
        environ = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
        # -P: modules beside the program would stand in for the library's of the same names
        command = [sys.executable, "-P", str(Path(__file__).with_name("forks.py")), module, *tests]
        with subprocess.Popen(
            command, cwd=checkout, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as forks:
            answered(forks)
            outcomes = [
                answered(forks, {"line": each.number, "source": source})
                for each, source in zip(tried, sources, strict=True)
            ]
    alive = [(each, source) for each, source, o in zip(tried, sources, outcomes, strict=True) if o == "survived"]
    share = 100 * (len(tried) - len(alive)) / max(len(tried), 1)
    counts = (len(every), len(every) - len(tried), len(tried), len(tried) - len(alive))
    shown = [f"{module}:{each.number}: {each.operator}\n{change(module, source)}" for each, source in alive]
    return f"| `{module}` | {' | '.join(map(str, counts))} | {share:.0f} % |", shown


def answered(forks: subprocess.Popen[str], job: dict[str, Any] | None = None) -> str:
    """What the tests made of a mutant; without one: that they are ready."""
    assert forks.stdin
    assert forks.stdout
    if job:
        print(json.dumps(job), file=forks.stdin, flush=True)
    if not (answer := forks.stdout.readline().strip()):
        raise SystemExit(f"forks.py ended: {forks.wait()}")
    return answer


def change(module: str, source: str) -> str:
    before = (ROOT / module).read_text(encoding="utf-8").splitlines()
    lines = difflib.unified_diff(before, source.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def modules(given: str) -> list[str]:
    path = ROOT / given
    if not path.is_dir():
        return [given]
    return [str(each.relative_to(ROOT)) for each in sorted(path.rglob("*.py")) if each.name != "__init__.py"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="such as farm/plan/variant.py")
    parser.add_argument("--most", type=int, default=0, help="so many mutants of each module (default: all)")
    args = parser.parse_args()
    known = yaml.safe_load((ROOT / "tests" / "mutants.yaml").read_text())
    print(
        "| module | mutants | left out | tried | killed | share |\n| --- | ---: | ---: | ---: | ---: | ---: |",
        flush=True,
    )
    found = []
    for module in chain.from_iterable(map(modules, args.modules)):
        row, alive = examine(module, known, args.most)
        print(row, flush=True)
        found += alive
    print("\n" + "\n".join(found) if found else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
