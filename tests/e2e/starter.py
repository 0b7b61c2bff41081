"""A stand-in for GitHub Actions that carries out a whole workflow: its jobs in the order of their
needs, each matrix entry in a fresh checkout, artifacts between them.

Real are the scripts of the steps. Not real are the actions: artifacts are folders, credentials and
pages are only noted. Expressions are those that `farm init`'s workflow has; any other is an error.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.conftest import TIMEOUT_S

EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
NAME = re.compile(r"\b(vars|needs|inputs|matrix|steps|github)((?:\.\w+)+)")


@dataclass
class Actions:
    """The repository on GitHub.

    Attributes:
        project: The files that are checked out.
        path: A folder for PATH with `farm`, `pipx` and `gh`.
        variables: Variables of the repository.
        last: Artifacts of the last successful run, by name.
    """

    project: Path
    path: Path
    work: Path
    variables: dict[str, str] = field(default_factory=dict)
    last: dict[str, Path] = field(default_factory=dict)

    def run(self, workflow: str, **inputs: str) -> "WorkflowRun":
        """Carry out a workflow that somebody started with these inputs."""
        data = yaml.safe_load((self.project / ".github/workflows" / workflow).read_text())
        run = WorkflowRun(self, data, inputs)
        run.carry_out()
        if not run.failed:
            self.last = run.artifacts
        return run


@dataclass
class WorkflowRun:
    """One run. `results` of jobs: success, failure or skipped; `used`: actions, in their order."""

    actions: Actions
    data: dict[str, Any]
    inputs: dict[str, str]
    results: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    machines: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def failed(self) -> bool:
        return "failure" in self.results.values()

    def carry_out(self) -> None:
        for name, job in self.data["jobs"].items():
            needs = job.get("needs", [])
            needed = [needs] if isinstance(needs, str) else needs
            assert set(needed) <= self.results.keys(), f"{name} comes before what it needs"
            condition = job.get("if", "success()")
            good = all(self.results[need] == "success" for need in needed)
            if not self._is_true(condition, {}, success=good) or (
                not good and "cancelled()" not in condition
            ):
                self.results[name] = "skipped"
                continue
            entries = self._entries(job)
            outcomes = [self._job(name, job, entry) for entry in entries]
            self.results[name] = "success" if all(outcomes) else "failure"

    def _entries(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        matrix = job.get("strategy", {}).get("matrix")
        if matrix is None:
            return [{}]
        [(key, expression)] = matrix.items()
        values = self._value(expression, {})
        assert 0 < len(values) <= 256
        return [{key: value} for value in values]

    def _job(self, name: str, job: dict[str, Any], entry: dict[str, Any]) -> bool:
        self.machines[name] = self._value(job["runs-on"], entry)
        place = self.actions.work / f"{len(list(self.actions.work.iterdir()))}-{name}"
        place.mkdir(parents=True)
        steps: dict[str, str] = {}
        env = {
            key: str(self._value(value, entry))
            for key, value in {**self.data.get("env", {}), **job.get("env", {})}.items()
        }
        good = True
        for step in job["steps"]:
            if not self._is_true(step.get("if", "success()"), entry, success=good):
                continue
            if "uses" in step:
                self._action(step, entry, place)
            else:
                more = {key: str(self._value(v, entry)) for key, v in step.get("env", {}).items()}
                good &= self._script(step["run"], place, {**env, **more}, steps, step.get("id"))
        outputs = job.get("outputs", {})
        self.outputs[name] = {key: steps.get(value, "") for key, value in outputs.items()}
        return good

    def _script(
        self, script: str, place: Path, env: dict[str, str], steps: dict[str, str], id_: str | None
    ) -> bool:
        outputs, paths = place.parent / f"{place.name}.outputs", place.parent / f"{place.name}.path"
        outputs.write_text("")
        before = paths.read_text().splitlines() if paths.exists() else []
        outside = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("FARM_", "GITHUB_"))
        }
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=place,
            env=outside
            | env
            | {
                "PATH": ":".join([*before, str(self.actions.path), outside["PATH"]]),
                "CI": "true",
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_PATH": str(paths),
                "LAST": str(self.actions.work.parent / "last"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        self.log += done.stdout + done.stderr
        for line in outputs.read_text().splitlines():
            key, value = line.split("=", 1)
            steps[f"${{{{ steps.{id_}.outputs.{key} }}}}"] = value
        return done.returncode == 0

    def _action(self, step: dict[str, Any], entry: dict[str, Any], place: Path) -> None:
        action = step["uses"].partition("@")[0]
        options = {key: self._value(value, entry) for key, value in step.get("with", {}).items()}
        self.used.append(action)
        if action == "actions/checkout":
            shutil.copytree(self.actions.project, place, dirs_exist_ok=True)
        elif action == "actions/upload-artifact":
            source = place / options["path"]
            if not source.exists():
                assert options.get("if-no-files-found") == "ignore", f"no {source}"
                return
            assert options["name"] not in self.artifacts, "an artifact of that name is there"
            kept = self.actions.work / f"artifact {len(list(self.actions.work.iterdir()))}"
            shutil.copytree(source, kept)
            self.artifacts[options["name"]] = kept
        elif action == "actions/download-artifact":
            self._download(options, place)
        else:
            assert action in (
                "aws-actions/configure-aws-credentials",
                "actions/upload-pages-artifact",
                "actions/deploy-pages",
            ), action
            assert action != "actions/upload-pages-artifact" or (place / options["path"]).is_dir()

    def _download(self, options: dict[str, Any], place: Path) -> None:
        target = place / options["path"]
        if "name" in options:
            shutil.copytree(self.artifacts[options["name"]], target, dirs_exist_ok=True)
            return
        for name, folder in self.artifacts.items():
            if fnmatchcase(name, options["pattern"]):
                to = target if options.get("merge-multiple") else target / name
                shutil.copytree(folder, to, dirs_exist_ok=True)

    def _is_true(self, condition: Any, entry: dict[str, Any], *, success: bool) -> bool:
        text = EXPRESSION.sub(r"\1", str(condition))
        if "cancelled()" not in text and not success:
            return False
        return bool(self._evaluated(text, entry))

    def _value(self, value: Any, entry: dict[str, Any]) -> Any:
        if isinstance(value, bool) or not isinstance(value, str):
            return value
        if whole := EXPRESSION.fullmatch(value.strip()):
            return self._evaluated(whole[1], entry)
        return EXPRESSION.sub(lambda match: str(self._evaluated(match[1], entry)), value)

    def _evaluated(self, text: str, entry: dict[str, Any]) -> Any:
        """GitHub's expression as Python's: both know strings in single quotes, ==, != and ()."""
        values: list[Any] = []

        def named(match: re.Match[str]) -> str:
            values.append(self._named(match[1], match[2][1:].split("."), entry))
            return f"values[{len(values) - 1}]"

        python = NAME.sub(named, text)
        python = python.replace("&&", " and ").replace("||", " or ").replace("!cancelled()", "True")
        python = python.replace("success()", "True").strip()
        assert re.fullmatch(r"(values\[\d+\]|'[^']*'|fromJSON|and|or|True|==|!=|[() ])*", python), (
            text
        )
        return eval(python, {"fromJSON": json.loads, "values": values})

    def _named(self, root: str, way: list[str], entry: dict[str, Any]) -> Any:
        if root == "vars":
            return self.actions.variables.get(way[0], "")
        if root == "inputs":
            return self.inputs[way[0]]
        if root == "github":
            return "token"
        if root == "needs":
            job, kind, *rest = way
            return self.results[job] if kind == "result" else self.outputs[job].get(rest[0], "")
        value: Any = entry
        for part in way:
            value = value[part]
        return value
