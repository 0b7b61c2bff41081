"""Do the tests notice when the code is wrong? `make mutants MODULES="farm/variant.py …"`, a Markdown table.

cosmic-ray changes one thing in a module, in a copy of the checkout, and runs the module's tests: a mutant that they do
not notice is printed with its line. `tests/mutants.yaml` says which tests are a module's, and which mutants are
equivalent (no test can tell them from the code), each with the reason. Of the operators that stand in for an arithmetic
one at a place one is tried, and `is` never in the place of `==`. MUTANTS=N tries N of them, the same each time.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TOOL = "cosmic-ray==8.7.0"
TIMEOUT_S = 300
SEED = 1
# Runs in cosmic-ray's own environment: takes the ids of mutants to leave out.
SKIP = """
import json, sys
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkResult
with use_db(sys.argv[1], WorkDB.Mode.open) as db:
    for job in json.load(sys.stdin):
        db.set_result(job, WorkResult(output="", test_outcome=None, diff="", worker_outcome=WorkerOutcome.SKIPPED))
"""


@dataclass(frozen=True)
class Mutant:
    """One change; `outcome` None: not tried."""

    job: str
    operator: str
    line: str
    number: int
    column: int
    outcome: str | None
    diff: str


def tool(*arguments: str, cwd: Path, given: str | None = None) -> str:
    command = [str(Path(sys.executable).with_name("uv")), "tool", "run", "-q", "--from", TOOL, *arguments]
    done = subprocess.run(command, cwd=cwd, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def copy(folder: Path) -> Path:
    """The checkout's tracked files with their changes, and its environment."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def mutants(session: Path, module: Path) -> list[Mutant]:
    lines = module.read_text(encoding="utf-8").splitlines()
    found = []
    for text in tool("cosmic-ray", "dump", str(session), cwd=session.parent).splitlines():
        item, result = json.loads(text)
        (change,) = item["mutations"]
        number, column = change["start_pos"]
        outcome = (result or {}).get("test_outcome")
        diff = (result or {}).get("diff") or ""
        line = lines[number - 1].strip()
        found.append(Mutant(item["job_id"], change["operator_name"], line, number, column, outcome, diff))
    return found


def kind(mutant: Mutant) -> tuple[str, int, int]:
    """One of the eleven operators that stand in for `+` at a place is as good as another."""
    first, name, *_ = [*mutant.operator.split("_"), ""]
    return (f"{first}_{name}" if "Binary" in first else mutant.operator), mutant.number, mutant.column


def says_nothing(mutant: Mutant) -> bool:
    """Identity in the place of a comparison: whether equal values are one object is the interpreter's choice."""
    return bool(re.search(r"ReplaceComparisonOperator_(?!Is)\w+_(Is|IsNot)$", mutant.operator))


def examine(module: str, known: dict[str, Any], most: int) -> tuple[str, list[Mutant]]:
    """A row of the table, and the mutants that no test noticed."""
    tests = known["tests"].get(module)
    if not tests:
        raise SystemExit(f"{module}: tests/mutants.yaml does not say which tests are its")
    with tempfile.TemporaryDirectory(prefix="farm-mutants-") as folder:
        checkout = copy(Path(folder, "checkout"))
        session, config = Path(folder, "session.sqlite"), Path(folder, "config.toml")
        command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {' '.join(tests)}"
        # json.dumps: TOML's basic strings are written the same way
        config.write_text(
            f"[cosmic-ray]\nmodule-path = {json.dumps(module)}\ntimeout = {TIMEOUT_S}\n"
            f"excluded-modules = []\ntest-command = {json.dumps(command)}\n"
            '[cosmic-ray.distributor]\nname = "local"\n'
        )
        os.environ |= {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
        tool("cosmic-ray", "baseline", str(config), cwd=checkout)
        tool("cosmic-ray", "init", str(config), str(session), cwd=checkout)
        every = mutants(session, checkout / module)
        equal = {(each["operator"], each["line"]) for each in known["equivalent"] if each["module"] == module}
        tried = [each for each in every if (each.operator, each.line) not in equal and not says_nothing(each)]
        tried = list({kind(each): each for each in tried}.values())
        tried = sorted(random.Random(SEED).sample(tried, min(most or len(tried), len(tried))), key=lambda m: m.number)
        left_out = {each.job for each in every} - {each.job for each in tried}
        tool("python", "-c", SKIP, str(session), cwd=checkout, given=json.dumps(sorted(left_out)))
        tool("cosmic-ray", "exec", str(config), str(session), cwd=checkout)
        done = [each for each in mutants(session, checkout / module) if each.job not in left_out]
    alive = [each for each in done if each.outcome == "survived"]
    share = 100 * (len(done) - len(alive)) / max(len(done), 1)
    counts = (len(every), len(every) - len(tried), len(done), len(done) - len(alive))
    return f"| `{module}` | {' | '.join(map(str, counts))} | {share:.0f} % |", alive


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="such as farm/variant.py")
    parser.add_argument("--most", type=int, default=0, help="so many mutants of each module (default: all)")
    args = parser.parse_args()
    known = yaml.safe_load((ROOT / "tests" / "mutants.yaml").read_text())
    print(
        "| module | mutants | left out | tried | killed | share |\n| --- | ---: | ---: | ---: | ---: | ---: |",
        flush=True,
    )
    found = []
    for module in args.modules:
        row, alive = examine(module, known, args.most)
        print(row, flush=True)
        found += [f"{module}:{each.number}: {each.operator}\n{each.diff}" for each in alive]
    print("\n" + "\n".join(found) if found else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
