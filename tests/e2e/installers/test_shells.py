"""Completion in the shells themselves: what Tab makes of a command line that is being typed."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
LIMIT_S = 120
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(farm completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit && compinit -D -u && eval "$(farm completion zsh)"',
    ),
}
CASES = [
    ("farm smo", "farm smoke"),
    ("farm index che", "farm index check"),
    ("farm index ke", "farm index keys"),
    ("farm index reconcile --ta", "farm index reconcile --take-back"),
    ("farm --project . plan --pla", "farm --project . plan --platform"),
    ("farm plan --platform win", "farm plan --platform windows"),
    ("farm completion fi", "farm completion fish"),
    ("farm --project . sta", "farm --project . status"),
]


def need(shell: str) -> str:
    program = shutil.which(shell)
    if program is None:
        if os.environ.get("FARM_REQUIRE"):
            pytest.fail(f"no {shell} on this machine")
        pytest.skip(f"no {shell} on this machine")
    return program


@pytest.fixture
def environment(tmp_path):
    kept = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}


class Typed:
    """A shell in a terminal."""

    def __init__(self, shell: str, environment: dict[str, str]) -> None:
        self.screen = b""
        command, setup = START[shell]
        need(shell)
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execvpe(command[0], command, {**environment, "PS1": "ready> "})
        self.type(f"PS1='ready> '; {setup}; echo LOA''DED\n")
        self.wait(rb"LOADED")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait(self, pattern: bytes) -> str:
        """Reads until the pattern is there; the rest stays."""
        end = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.screen)) is None:
            left = end - time.monotonic()
            assert left > 0, self.screen.decode(errors="replace")
            if select.select([self._terminal], [], [], left)[0]:
                self.screen += os.read(self._terminal, 65536)
        self.screen = self.screen[found.end() :]
        return found[0].decode()

    def completed(self, typed: str) -> str:
        """The command line after Tab: made an argument of echo, which prints it."""
        self.type(f"{typed}\t")
        self.type("\x01echo '<\x05>'\n")
        return self.wait(rb"(?<=\n<)farm [^>\r\n]*(?=>)").strip()

    def close(self) -> None:
        self.type("\x15exit\n")
        os.close(self._terminal)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("shell", sorted(START))
def test_tab(shell, environment):
    typed = Typed(shell, environment)
    try:
        assert [(line, typed.completed(line)) for line, _ in CASES] == CASES
    finally:
        typed.close()


@pytest.mark.parametrize("shell", sorted(START))
def test_an_option_that_takes_a_file_offers_files_alone(shell, environment, tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "only.whl").touch()
    typed = Typed(shell, environment)
    try:
        typed.type(f"cd {tmp_path}/place\n")
        lines = ["farm smoke --wheel ", "farm --project ", "farm verify --policy "]
        assert [typed.completed(line) for line in lines] == [f"{line}only.whl" for line in lines]
    finally:
        typed.close()


def test_fish(environment):
    """Fish says itself what it would offer."""
    fish = need("fish")
    script = subprocess.run(
        [BIN / "farm", "completion", "fish"], capture_output=True, text=True, check=True
    ).stdout
    ask = "".join(f"complete -C '{line}'; echo =\n" for line, _ in CASES)
    command = [fish, "--no-config", "-c", f"{script}\n{ask}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    offered = [
        [line.split("\t")[0] for line in part.splitlines()]
        for part in done.stdout.split("=\n")[:-1]
    ]
    assert offered == [[line.split()[-1]] for _, line in CASES]


def test_fish_offers_the_words_of_a_group_once(environment):
    fish = need("fish")
    script = subprocess.run(
        [BIN / "farm", "completion", "fish"], capture_output=True, text=True, check=True
    ).stdout
    command = [
        fish,
        "--no-config",
        "-c",
        f"{script}\ncomplete -C 'farm index '\necho =\ncomplete -C 'farm index check '",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.split("=\n")
    words = [line.split("\t")[0] for line in first.splitlines()]
    assert "check" in words
    assert len(words) == len(set(words))
    assert "yank" not in [line.split("\t")[0] for line in second.splitlines()]
