"""Completion in a real bash: `farm completion`, and what Tab offers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli.main import main

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("farm smo", ["smoke"]),
        ("farm matrix --format gi", ["github"]),
        ("farm submit --no-p", ["--no-ptx", "--no-publish"]),
        ("farm completion f", ["fish"]),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(line, offered, capsys):
    assert main(["completion", "bash"]) == 0
    words = line.split()
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
        f"COMP_LINE='{line}'; "
    )
    script += (
        f"COMP_POINT={len(line)}; _python_argcomplete farm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == offered, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} on this machine")
    (tmp_path / "script").write_text(capsys.readouterr().out)
    done = subprocess.run(
        [program, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_start_of_a_shell_loads_no_command():
    """`eval "$(farm completion bash)"` stands in a user's .bashrc."""
    program = (
        "import sys; from farm.cli.main import main; main(['completion', 'bash']); "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "argcomplete" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(("pydantic.main", "farm.plan", "farm.cli.builds"))
    ]
