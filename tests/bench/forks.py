"""The tests of a module, again and again, each time with another text of it: `python forks.py MODULE TEST...`.

The first run, of the module as it is, notes which tests call which of its functions. Every run is a fork of a process
that has imported what the tests need from elsewhere. A changed text meets the tests that call the changed function,
quickest first, until one fails; what they do not notice meets the others too: they may have its results from a cache
or from a process of their own.

A line in: JSON, `line` of the change and `source`, the whole text. A line out: `killed` or `survived`; the first says
`ready`. Runs in a copy of the checkout, since the module's file is overwritten.
"""

import ast
import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

LIMIT_S = 300  # of one run: a change may never end
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")
OWN = ("farm", "tests")  # not kept: the module's changes must reach them


class Notes:
    """Of a run: the first lines of the module's functions that each test calls, and how long each test takes."""

    def __init__(self, module: Path) -> None:
        self.file, self.calls, self.seconds = str(module), {}, {}
        self.now: set[int] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.now = self.calls[item.nodeid] = set()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def trace(self, frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code.co_filename == self.file:
            self.now.add(frame.f_code.co_firstlineno)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration


class Chosen:
    """Of the tests, those that are named, in that order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((each for each in items if each.nodeid in self.places), key=lambda i: self.places[i.nodeid])


def run(arguments: Iterable[str], plugin: object, answer: int | None = None) -> int:
    """pytest's exit code from a fork, or minus the signal that ended it; `answer`: where it writes a `Notes`."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        silent = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1) if answer is not None else (0, 1, 2):
            os.dup2(silent, each)
        sys.dont_write_bytecode = answer is None
        code = int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))
        if isinstance(plugin, Notes) and answer is not None:
            modules = [name for name in sys.modules if name.partition(".")[0] not in OWN and "__m" not in name]
            calls = {name: sorted(lines) for name, lines in plugin.calls.items()}
            with os.fdopen(answer, "w") as out:
                json.dump({"calls": calls, "seconds": plugin.seconds, "modules": modules}, out)
        os._exit(code)
    if answer is not None:
        os.close(answer)
        return child
    return ended(child)


def ended(child: int) -> int:
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def first_run(module: Path, tests: list[str]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = run(tests, Notes(module), writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    if code := ended(child):
        raise SystemExit(f"the tests of {module.name} fail as it is (pytest: {code})")
    found: dict[str, Any] = json.loads(text)
    for name in found["modules"]:
        with contextlib.suppress(Exception):  # some are made while a program runs
            importlib.import_module(name)
    return found


def passed(names: list[str]) -> bool:
    return run(dict.fromkeys(name.partition("::")[0] for name in names), Chosen(names)) == pytest.ExitCode.OK


def functions(source: str) -> list[tuple[int, int]]:
    """First and last line of each function, with its decorators; the inner ones first."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((min(each.lineno for each in (node, *node.decorator_list)), node.end_lineno or 0))
    return sorted(found, key=lambda span: span[1] - span[0])


def main() -> None:
    module, tests = Path(sys.argv[1]).resolve(), sys.argv[2:]
    source = module.read_text(encoding="utf-8")
    found = first_run(module, tests)
    spans = functions(source)
    every = sorted(found["seconds"], key=found["seconds"].__getitem__)

    def around(line: int) -> tuple[int, int] | None:
        return next((span for span in spans if span[0] <= line <= span[1]), None)

    calls = {name: {around(line) for line in lines} for name, lines in found["calls"].items()}
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        span = around(job["line"])
        near = [name for name in every if span is not None and span in calls[name]]
        module.write_text(job["source"], encoding="utf-8")
        far = [name for name in every if name not in set(near)]
        alive = all(passed(names) for names in (near, far) if names)
        module.write_text(source, encoding="utf-8")
        print("survived" if alive else "killed", flush=True)


main()
