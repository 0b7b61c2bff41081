import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))


@dataclass(frozen=True)
class Workflow:
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def data(self) -> dict:
        return yaml.safe_load(self.text)

    @property
    def on(self) -> dict:
        return self.data[True]  # YAML 1.1 reads `on` as true

    @property
    def jobs(self) -> dict:
        return self.data["jobs"]

    def steps(self):
        """(job, step) of every step."""
        for name, job in self.jobs.items():
            for step in job["steps"]:
                yield name, step

    def environment(self, job: str, step: dict) -> set[str]:
        return {*self.data.get("env", {}), *self.jobs[job].get("env", {}), *step.get("env", {})}


@pytest.fixture(params=WORKFLOWS, ids=[path.name for path in WORKFLOWS])
def workflow(request) -> Workflow:
    return Workflow(request.param)


@pytest.fixture
def root() -> Path:
    return ROOT


def farm_commands(script: str) -> list[list[str]]:
    """The words of every `farm` command line in a shell script, redirections left out."""
    found: list[list[str]] = []
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>"):
                if words[:1] == ["farm"]:
                    found.append(words[1:])
                words = []
            else:
                words.append(word)
    return found
