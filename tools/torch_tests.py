"""PyTorch's own tests against an installed wheel: `tools/torch_tests.py --python ENV/bin/python
--source TREE -o DIR`.

TREE is the release's source tree, or a folder that has its `test` alone; ENV has the wheel
installed, with numpy, pytest, expecttest and hypothesis. The tests run in a copy of `test`, so that
`import torch` finds the wheel and not the tree. Which tests, and which failures are understood:
torch_tests.yaml; --rules names another such file, of torchvision's tests too. Leaves in DIR logs of
each file, results.json (every test) and summary.txt. Exit code 0: every failure is explained; 1:
one is not; 2: usage.

This file is the pytest plugin too: it selects, and writes down each result as it comes, because a
test that crashes takes the interpreter with it. The rest then runs in a new one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CRASHES = 10
RULES = "TORCH_TESTS_RULES"
KEPT = 800  # characters of a failure
SHOWN = 6  # reasons of skips in a summary
OWN_PROCESS = os.getpid()


# --- the plugin: runs in the environment of the wheel, under any Python that pytest runs under ---


def _rules() -> "dict[str, Any]":
    rules: dict[str, Any] = json.loads(os.environ[RULES])
    return rules


def _note(line: "dict[str, Any]") -> None:
    if os.getpid() != OWN_PROCESS:  # a test that forks: what its child reports is no result
        return
    with Path(_rules()["log"]).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: "list[Any]") -> None:
    """Keeps every N-th test, without those that are skipped by rule or that have a result
    already.
    """
    rules = _rules()
    done = {line["test"] for line in read(Path(rules["log"])) if "test" in line}
    _note({"collected": len(items)})
    # Counted before anything is left out: the same tests are chosen in every process, also after a
    # crash.
    share, shares = rules["share"]
    chosen = [item for item in items if any(fnmatchcase(item.nodeid, p) for p in rules["only"])]
    mine = chosen[:: rules["every"]][share::shares]
    selected = [
        item for item in mine if not any(fnmatchcase(item.nodeid, p) for p in rules["skip"])
    ]
    items[:] = [item for item in selected if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    _note({"test": nodeid, "outcome": "crashed"})  # until there is a result


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    if isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
    else:
        reason = str(report.longrepr or "")
    if report.outcome == "skipped" and hasattr(report, "wasxfail"):
        outcome = "xfailed"
    else:
        outcome = report.outcome
    _note(
        {
            "test": report.nodeid,
            "outcome": outcome,
            "seconds": round(report.duration, 2),
            "text": reason[-KEPT:],
        }
    )


# --- the command ---


def read(log: Path) -> "list[dict[str, Any]]":
    """The lines of a log, without a last one that was cut off."""
    if not log.exists():
        return []
    return [
        json.loads(line)
        for line in log.read_text(encoding="utf-8").splitlines()
        if line.endswith("}")
    ]


def results(log: Path) -> "dict[str, dict[str, Any]]":
    """Test -> its result; a failure, in whichever phase, outweighs what else was reported."""
    outcomes: dict[str, dict[str, Any]] = {}
    for line in read(log):
        if "test" in line and outcomes.get(line["test"], {}).get("outcome") != "failed":
            outcomes[line["test"]] = line
    return outcomes


class Task(NamedTuple):
    """Every `shares`-th of a file's selected tests, from the `share`-th on, as one process."""

    file: "dict[str, Any]"
    share: int
    shares: int
    environment: "dict[str, str]"

    @property
    def name(self) -> str:
        if self.shares == 1:
            return str(self.file["file"])
        return f"{self.file['file']}-{self.share}"


class Ended(NamedTuple):
    """Result of one test file, or of one share of it."""

    results: "dict[str, dict[str, Any]]"  # of each test that was begun
    collected: int
    why: str  # it ended early; empty: it did not
    seconds: float


def run_share(python: str, tests: Path, task: Task, rules: "dict[str, Any]", out: Path) -> Ended:
    """Runs one share of a file's tests to its end or limit."""
    name = task.file["file"]
    limit_s = rules["timeout_s"][task.file["file"]]
    log = out / f"{task.name}.jsonl"
    log.unlink(missing_ok=True)
    own = {
        "only": task.file.get("only", ["*"]),
        "every": task.file["every"],
        "share": (task.share, task.shares),
        "skip": list(rules["skip"]),
        "log": str(log),
    }
    environ = {**os.environ, **rules["environment"], RULES: json.dumps(own), **task.environment}
    # For `-p torch_tests`: this very file is the plugin.
    environ["PYTHONPATH"] = str(Path(__file__).parent)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "torch_tests",
        "-p",
        "no:cacheprovider",
        f"{name}.py",
    ]
    begun = time.monotonic()
    end = begun + limit_s
    with (out / f"{task.name}.log").open("w", encoding="utf-8") as output:
        for _ in range(MAX_CRASHES):
            try:
                code = subprocess.run(
                    command, cwd=tests, env=environ, stdout=output, stderr=output, check=False,
                    stdin=subprocess.DEVNULL, timeout=max(1.0, end - time.monotonic()),
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                why = f"stopped at its limit of {limit_s} s"
                break
            if code in (0, 1, 5):  # passed, some failed, nothing (left) to run
                why = ""
                break
            crashed = [
                test for test, result in results(log).items() if result["outcome"] == "crashed"
            ]
            # A crash is a negative code, and names its test. Everything else would only fail again.
            if code > 0 or not crashed:
                why = f"pytest ended with exit code {code}: see {task.name}.log"
                break
        else:
            why = f"crashed {MAX_CRASHES} times"
    collected = [line["collected"] for line in read(log) if "collected" in line]
    found = results(log)
    if why.startswith("stopped"):
        running = [line["test"] for line in read(log) if "test" in line][-1:]
        # The one that ran at the limit did not crash: it was stopped.
        found = {
            test: r for test, r in found.items() if test not in running or r["outcome"] != "crashed"
        }
    return Ended(found, collected[0] if collected else 0, why, time.monotonic() - begun)


def run_files(
    python: str,
    tests: Path,
    files: "list[dict[str, Any]]",
    rules: "dict[str, Any]",
    out: Path,
    jobs: int,
    cards: int,
) -> "Iterator[tuple[dict[str, Any], Ended]]":
    """Runs `jobs` shares at a time; yields each file with all that came of it, in the order of the
    selection.
    """
    tasks: list[Task] = []
    for file in files:
        shares = file.get("shares", 1)
        for share in range(shares):
            if cards:
                environment = {"CUDA_VISIBLE_DEVICES": str(len(tasks) % cards)}
            else:
                environment = {}
            tasks.append(Task(file, share, shares, environment))
    with ThreadPoolExecutor(jobs) as pool:
        ended = pool.map(lambda task: run_share(python, tests, task, rules, out), tasks)
        for file in files:
            parts = [next(ended) for _ in range(file.get("shares", 1))]
            everything = {test: result for part in parts for test, result in part.results.items()}
            why = "; ".join(dict.fromkeys(part.why for part in parts if part.why))
            yield (
                file,
                Ended(
                    everything, max(p.collected for p in parts), why, max(p.seconds for p in parts)
                ),
            )


def explanation(test: str, rules: "dict[str, str]") -> "str | None":
    """The reason that a rule file gives for a test, by the first pattern that fits."""
    return next((reason for pattern, reason in rules.items() if fnmatchcase(test, pattern)), None)


def report(
    file: "dict[str, Any]", ended: Ended, known: "dict[str, str]"
) -> "tuple[list[str], list[str]]":
    """(lines of the summary, failures without an explanation)."""
    outcomes = ended.results
    count = Counter(result["outcome"] for result in outcomes.values())
    bad = {
        test: result
        for test, result in outcomes.items()
        if result["outcome"] in ("failed", "crashed")
    }
    unexplained = [test for test in bad if explanation(test, known) is None]
    head = (
        f"{file['file']}: {ended.collected} collected, every {file['every']}: {len(outcomes)} run, "
    )
    head += (
        f"{count['passed']} passed, {len(bad)} failed ({len(bad) - len(unexplained)} explained), "
    )
    head += (
        f"{count['xfailed']} failed as upstream expects, {count['skipped']} skipped, "
        f"{ended.seconds:.0f} s"
    )
    lines = [head + (f"; {ended.why}" if ended.why else "")]
    for test, result in sorted(bad.items()):
        lines.append(
            f"  {result['outcome']}: {test}: {explanation(test, known) or 'NOT EXPLAINED'}"
        )
    skipped = (
        result["text"] or "no reason"
        for result in outcomes.values()
        if result["outcome"] == "skipped"
    )
    reasons = Counter(text.removeprefix("Skipped: ").splitlines()[0][:90] for text in skipped)
    lines += [f"  {number} skipped: {reason}" for reason, number in reasons.most_common(SHOWN)]
    for test, result in sorted(outcomes.items()):
        if result["outcome"] == "passed" and explanation(test, known):
            lines.append(f"  passed, though explained as failing: {test}")
    return lines, unexplained


def main() -> int:
    import yaml  # noqa: PLC0415 the plugin runs where there may be none

    here = Path(__file__).parent
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--python", required=True, help="interpreter of the environment that has the wheel"
    )
    parser.add_argument("--source", required=True, type=Path, help="the release's source tree")
    parser.add_argument("--rules", type=Path, default=here / "torch_tests.yaml")
    parser.add_argument(
        "--file", action="append", help="only this one of the selection; may be repeated"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at a time: files, and shares of files"
    )
    parser.add_argument(
        "--cards", type=int, default=0, help="give the processes the first N GPUs in turn, one each"
    )
    parser.add_argument("-o", "--output", required=True, type=Path)
    args = parser.parse_args()
    rules = yaml.safe_load(args.rules.read_text(encoding="utf-8"))
    first = f"test/{rules['selection'][0]['file']}.py"
    if not (args.source / first).is_file():
        parser.error(f"{args.source}: no {first} in it")
    result = subprocess.run(
        [args.python, "-c", "import torch; print(torch.__version__)"],
        # not in a tree that has a torch
        capture_output=True, text=True, check=False, cwd=tempfile.gettempdir(),
    )  # fmt: skip
    version = result.stdout.strip()
    if version.partition("+")[0] != rules["release"]:
        parser.error(
            f"{args.python}: torch is {version or 'not importable'}; the rules are for "
            f"{rules['release']}"
        )
    out = args.output.resolve()
    out.mkdir(parents=True, exist_ok=True)
    everything = {}
    lines = [f"torch {version}"]
    unexplained = []
    early = False
    with tempfile.TemporaryDirectory(prefix="torch-tests-") as folder:
        tests = Path(shutil.copytree(args.source / "test", Path(folder, "test"), symlinks=True))
        files = [file for file in rules["selection"] if not args.file or file["file"] in args.file]
        for file, ended in run_files(args.python, tests, files, rules, out, args.jobs, args.cards):
            more, bad = report(file, ended, rules["known"])
            print("\n".join(more), flush=True)
            lines += more
            unexplained += bad
            early = early or bool(ended.why) or not ended.results
            tests_of = list(ended.results.values())
            everything[file["file"]] = {
                "collected": ended.collected,
                "ended_early": ended.why,
                "tests": tests_of,
            }
    (out / "results.json").write_text(
        json.dumps({"torch": version, "files": everything}, indent=1) + "\n"
    )
    (out / "summary.txt").write_text("\n".join(lines) + "\n")
    return 1 if unexplained or early else 0


if __name__ == "__main__":
    sys.exit(main())
