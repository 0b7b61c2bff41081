"""The farm command as a user sees it: exit codes, one JSON document, what to do next, and never a
traceback.
"""

import errno
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import UsageError
from farm.base.text import duration
from farm.cli import progress, show
from farm.cli.main import COMMANDS, GROUPS, TEXT_ONLY, command_parser, handler, main, parse, parser
from farm.run.workspace import Outcomes, Step
from tests.answers import CANARY, HOSTILE, control, failed


def test_every_command_has_help_that_works_and_no_program_takes_abbreviated_options(capsys, root):
    files = [*root.glob("farm/**/*.py"), *root.glob("tools/*.py")]
    assert not [
        file
        for file in files
        if re.search(r"ArgumentParser\((?!\s*allow_abbrev=False)", file.read_text())
    ]
    actions = next(a for a in parser()._actions if a.dest == "command")
    assert set(actions.choices) == set(COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            parser().parse_args([name, "--help"])
        assert caught.value.code == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: farm {name}")
        assert "--json" in out or name in TEXT_ONLY
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    assert "2 usage or configuration" in " ".join(capsys.readouterr().out.split())


def test_help_lists_every_command_in_one_group(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    out = capsys.readouterr().out
    assert [line[:-1] for line in out.splitlines() if line.endswith(":") and line[0] != " "] == [
        "options",
        *GROUPS,
    ]
    words = " ".join(out.split())
    for name, text in COMMANDS.items():
        assert words.count(f" {name} {text}") == 1


@pytest.mark.parametrize(
    ("given", "wrong", "meant"),
    [
        (["smok"], "no command 'smok'", "farm smoke"),
        (
            ["plan", "--variant", "x", "--pakage", "y"],
            "unrecognized arguments: --pakage y",
            "--package",
        ),
        (
            ["plan", "--variant", "x", "--whithout", "magma"],
            "unrecognized arguments: --whithout magma",
            "--without",
        ),
        (["plan", "--vari=x"], "unrecognized arguments: --vari", "--variant"),
        (["plan", "--variant", "x", "--zzzzzz"], "unrecognized arguments: --zzzzzz", None),
        (
            ["index", "yank", "--reas", "y", "x"],
            "farm index yank: unrecognized arguments: --reas",
            "--reason",
        ),
        (["matrix", "--format", "tabel"], "invalid choice: 'tabel'", "table"),
        (["index", "chekc"], "invalid choice: 'chekc'", "check"),
        (["--project", "smoke", "statsu"], "no command 'statsu'", "farm status"),
    ],
)
def test_a_typo_gets_the_nearest_word(capsys, given, wrong, meant):
    with pytest.raises(SystemExit) as caught:
        parse(given)
    err = capsys.readouterr().err
    assert caught.value.code == 2
    first, second, *usage = err.splitlines()
    assert wrong in first
    assert second == f"  did you mean: {meant}?" if meant else "did you mean" not in err
    assert len(usage) <= 1


def test_unknown_names_are_refused(farm):
    text = failed(farm("plan", "--variant", "sm34-avx-py311"), 2)
    assert "unknown variant 'sm34-avx-py311'" in text
    assert "  next: nearest: sm35-avx-py311" in text
    assert "next: nearest: canary" in failed(
        farm("plan", "--variant", "sm35-avx-py311", "--package", "canry"), 2
    )
    assert "rebuild = -1 (from --rebuild)" in failed(farm("plan", *CANARY, "--rebuild", "-1"), 2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("status --limit 0", "argument --limit: '0': a number from 1"),
        ("status --limit -3", "argument --limit: '-3': a number from 1"),
        ("--rebuild x", "invalid int value: 'x'"),
        ("--package canary --torch 2.0.1", "--torch does not apply to recipe canary"),
        (
            "plan --variant cpu-avx-py311 --cuda 11.4",
            "--cuda does not apply to variant cpu-avx-py311",
        ),
        ("--without ncll", "next: did you mean 'nccl'?"),
        ("--without foo,nccl --without=bar", "foo, bar (from --without): recipe torch-de"),
        ("--without nccl,", "'nccl,' (from --without): an empty name"),
        ("--without mkl", "next: --blas openblas"),
        ("--without nccl --channel debian-1.13.1", "recipe torch-debian has no features"),
    ],
)
def test_a_value_that_is_refused(farm, words, text):
    answer = farm(*(words if words[0] != "-" else f"plan --variant sm35-avx-py311 {words}").split())
    assert (answer.returncode, text in answer.stderr) == (2, True), answer.stderr


def test_an_impossible_build_is_refused_with_exit_code_3(farm):
    text = failed(farm("plan", *CANARY, "--cuda", "12.8"), 3)
    assert "  - CUDA 12.8 cannot compile for sm35" in text
    assert "  next: nearest that can: --cuda 11.8" in text


def test_why_gives_reasons_facts_and_sources(farm):
    answer = farm("why", *CANARY, "--cuda", "12.8", "--json")
    assert (answer.returncode, answer.stderr) == (3, "")
    data = json.loads(answer.stdout)
    assert data["buildable"] is False
    assert [reason["rule"] for reason in data["reasons"]] == ["cuda-sm", "cuda-driver-gpu"]
    assert all(reason["fact"] and reason["source"] for reason in data["reasons"])
    table = farm("why", *CANARY, "--cuda", "12.8")
    assert table.returncode == 3
    assert "cannot be built" in table.stdout
    first, *proved = farm("why", *CANARY).stdout.splitlines()
    assert first == "canary for sm35-avx-py311 on linux can be built"
    assert [line.partition(":")[0] for line in proved] == ["tested", "not tested"]
    document = json.loads(farm("why", *CANARY, "--json").stdout)
    assert (document["buildable"], document["reasons"], document["nearest"]) == (True, [], None)
    assert [row["what"] for row in document["evidence"]] == ["tested", "not tested"]


def test_an_unusable_path_is_a_usage_error(farm, tmp_path):
    (tmp_path / "file").touch()
    assert "file" in failed(farm("render", *CANARY, "-o", tmp_path / "file" / "x"), 2)
    for command in (("inspect",), ("verify", *CANARY), ("publish", *CANARY)):
        answer = farm(*command, tmp_path / "absent-1.0-cp311-cp311-linux_x86_64.whl")
        assert "absent-1.0" in failed(answer, answer.returncode)
        assert answer.returncode in {2, 6}


@pytest.mark.parametrize(
    "args",
    [("plan", *CANARY), ("plan", "--variant", "sm35-avx-py311"), ("why", *CANARY), ("status",)],
    ids=lambda args: " ".join(args[:3]),
)
def test_json_is_one_document(farm, project, args):
    answer = farm("--project", project, *args, "--json")
    assert answer.returncode == 0
    assert answer.stdout.endswith("\n")
    json.loads(answer.stdout)
    plain = farm("--project", project, *args)
    assert plain.returncode == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(plain.stdout)


def test_render_lists_what_it_wrote(farm, tmp_path):
    answer = farm("render", *CANARY, "-o", tmp_path / "out", "--json")
    files = json.loads(answer.stdout)
    assert answer.returncode == 0
    assert {str(p) for p in (tmp_path / "out").rglob("*") if p.is_file()} == set(files)
    assert farm("render", *CANARY, "-o", tmp_path / "out").stdout.splitlines() == files


def test_the_plan_as_a_table(farm):
    out = farm("plan", *CANARY, "--all", env={"FARM_PTX": "1"}).stdout
    assert re.search(
        r"canary 0\.1\.0\+cu118\.sm35\.avx for sm35-avx-py311 on linux \(plan [0-9a-f]{12}\)", out
    )
    assert re.search(r"ptx +True +environment FARM_PTX", out)
    assert re.search(r"env CFLAGS +-mavx +variant: avx", out)


def test_hostile_text_is_shown_without_its_control_characters(farm, project):
    failed(farm("plan", "--variant", HOSTILE), 2)
    failed(farm("plan", *CANARY, "--channel", HOSTILE), 2)
    assert "red" in failed(farm("plan", *CANARY, "--cuda", HOSTILE), 2)
    why = farm("why", *CANARY, env={"FARM_CUDA": HOSTILE})
    assert why.returncode == 2
    assert "red" in why.stderr
    assert not control(why.stdout + why.stderr)
    path = project / "ci" / "matrix.yaml"
    path.write_text('channels: {a: 1}\n"\\e]0;x\\a\\e[31mred": 1\n')
    failed(farm("--project", project, "plan", *CANARY), 2)


# --- show ---


def test_errors_are_explained_line_by_line(capsys):
    show.explain(UsageError(f"first\nsecond {HOSTILE}", hint=f"do\x1b[2J this {HOSTILE}"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "farm: first\n    second red2J\n  next: do this red2J\n"


def test_tables_show_cells_as_they_are(capsys):
    show.table(
        f"title {HOSTILE}",
        ("a", "seconds"),
        [("[bold]x[/bold] :smile: \\", "1.0"), (HOSTILE, "22.0")],
    )
    out = capsys.readouterr().out
    assert not control(out)
    assert [line.split() for line in out.splitlines()] == [
        ["title", "red2J"],
        ["a", "seconds"],
        ["[bold]x[/bold]", ":smile:", "\\", "1.0"],
        ["red2J", "22.0"],
    ]


WORDS = st.text(st.sampled_from("abc   -.\u2026\u4e2d"), max_size=200)


@given(st.data(), st.sampled_from([60, 80, 120, 240]))
def test_tables_fit_and_lose_no_character(data, room):
    columns = data.draw(
        st.lists(st.sampled_from(["seconds", "what", "a value", "why"]), min_size=1, max_size=5)
    )
    rows = data.draw(st.lists(st.tuples(*(WORDS for _ in columns)), max_size=5))
    lines = list(show.lines(columns, rows, room))
    assert all(len(line) + line.count("\u4e2d") <= room for line in lines)
    written = Counter("".join([*columns, *("".join(row) for row in rows)]).replace(" ", ""))
    assert Counter("".join(lines).replace(" ", "")) == written


def test_the_end_of_a_run(capsys):
    result = Outcomes(run="r1", pip_line=f"pip install x {HOSTILE}")
    with result.timed("build", progress.LogWatcher()) as step:
        step.result = f"x.whl {HOSTILE}"
    show.outcomes(result)
    out, err = capsys.readouterr()
    assert re.fullmatch(r"==> build\n    done after 0\.\d s: x\.whl red2J\n", err)
    assert "x.whl red2J" in out
    assert out.endswith("\npip install x red2J\n")
    assert not control(out)


def test_a_log_gets_a_line_for_each_step_and_for_what_the_farm_does(capsys):
    watcher = progress.LogWatcher()
    watcher.step("build")
    watcher.progress(1, 200)
    watcher.line("cc -c x.c")
    watcher.note(f"+ git clone {HOSTILE}")
    watcher.note("passed   import  0.02 s")
    waits = (
        "farm: waits for another build in the same tree: run 20261127-013611, log: "
        f"/{'x' * 100}/build.log"
    )
    watcher.note(waits)  # whole: the log's path is at its end
    assert capsys.readouterr().err.splitlines() == [
        "==> build",
        "    + git clone red2J",
        f"    {waits}",
    ]


def test_a_log_says_how_far_a_step_is_where_nothing_else_is_said(capsys, monkeypatch):
    """Here `Heartbeat` does not wait."""
    monkeypatch.setattr("farm.base.heartbeat.TICK_S", 0.001)
    monkeypatch.setattr(progress, "ALIVE_S", 0.0)
    event = threading.Event()
    monkeypatch.setattr(progress, "note", lambda text: (print(text, file=sys.stderr), event.set()))
    with progress.watching(parse(["submit", "--variant", "x"])) as watcher:
        watcher.step("build")
        watcher.progress(3, 7)
        watcher.line("[3/7] cc -c x.c")
        event.clear()
        assert event.wait(60)
    assert "    3/7 (42 %): [3/7] cc -c x.c" in capsys.readouterr().err.splitlines()


def test_the_line_of_a_log_about_a_step_under_way(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    watcher = progress.LogWatcher()
    assert watcher.view() is None
    watcher.step("repair")
    now += 7
    assert watcher.view() == "    repair for 7.0 s"
    now += 13
    assert watcher.view() == "    (no output for 20 s)"
    watcher.line("Get:1 gcc")
    assert watcher.view() == "    Get:1 gcc"
    watcher.progress(10, 40)
    now += 10
    watcher.progress(20, 40)
    assert watcher.view() == "    20/40 (50 %), 60 a minute, about 20 s left: Get:1 gcc"
    # It only moves forward, and the end of a count is not the end of the step.
    watcher.progress(15, 40)
    assert watcher.view().startswith("    20/40 (50 %), ")
    for noise in (
        "    7 |   int x;",
        "      |       ^~~",
        "/usr/bin/c++ -O2 x.o -o x",
        "ccache g++-12 -shared x.o",
    ):
        watcher.line(noise)
        assert watcher.view().endswith(": Get:1 gcc")
    watcher.line("g++-12 -O2 -Icsrc -c csrc/basis.cpp -o basis.o")
    assert watcher.view().endswith(": compiling csrc/basis.cpp")
    watcher.line("x" * 300)
    assert len(watcher.view()) == progress.WIDTH
    watcher.progress(40, 40)
    assert watcher.view().startswith("    40/40, finishing: x")
    watcher.progress(0, 0)
    watcher.line("ldconfig")
    assert watcher.view() == "    ldconfig"
    watcher.ended(Step("repair"))
    assert watcher.view() is None


@pytest.fixture
def terminal(monkeypatch):
    """A watcher that draws on a terminal of 80 columns, what stands on its last lines now, and all
    that it wrote.
    """
    from rich.console import Console

    written = io.StringIO()
    made = Console(file=written, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(progress, "console", lambda: made)
    watcher = progress.TerminalWatcher()

    def shown():
        file = io.StringIO()
        Console(file=file, width=80, color_system=None).print(watcher.view())
        return file.getvalue()

    yield watcher, shown, written
    watcher.close()


def test_a_terminal_shows_the_step_its_progress_and_its_newest_line(terminal):
    watcher, shown, written = terminal
    watcher.step("image")
    watcher.line(f"[red]cc[/red] {HOSTILE} {'x' * 200}")
    text = shown()
    assert "[red]cc[/red] red2J" in text
    assert not control(text.replace("\n", ""))
    assert max(map(len, text.splitlines())) <= 80
    watcher.step("build")
    watcher.progress(3, 7)
    assert "3/7 (42 %)" in shown()
    assert "no output" not in shown()
    assert "owned" not in written.getvalue()


def test_a_terminal_says_how_long_a_program_prints_nothing(terminal, monkeypatch):
    watcher, shown, _ = terminal
    watcher.step("build")
    watcher.line("[7/8] linking")
    later = progress.time.monotonic() + 75
    monkeypatch.setattr(progress.time, "monotonic", lambda: later)
    assert "(no output for 1 min 15 s) [7/8] linking" in shown()
    watcher.line("[8/8] done")
    assert "no output" not in shown()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "look at its owner and mode"),
        (errno.EROFS, "its file system is mounted read-only"),
        (errno.ENOSPC, "make room"),
        (errno.EIO, None),
    ],
)
def test_a_project_that_cannot_be_written_has_advice(project, number, advice, capsys, monkeypatch):
    def refused(path, *_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "mkdir", refused)
    assert main(["--project", str(project), "submit", *CANARY]) == 9
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"farm: {project / 'artifacts'}: {os.strerror(number)}\n")
    assert (f"\n  next: {advice}" in stderr) if advice else ("next:" not in stderr)


def test_steps_that_ended_stay_with_their_time(terminal):
    watcher, shown, written = terminal
    with pytest.raises(OSError, match="gone"):
        watch_two_steps(watcher)
    assert shown().strip() == ""
    watcher.close()
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    assert any(re.search(r"✓ image  \d\.\d s  farm/toolchain:1, built$", line) for line in lines)
    assert any(re.search(r"✗ build  \d\.\d s$", line) for line in lines)


def watch_two_steps(watcher):
    result = Outcomes(run="r1")
    with result.timed("image", watcher) as step:
        step.result = "farm/toolchain:1, built"
    with result.timed("build", watcher):
        raise OSError("gone")


def watcher_of(*words):
    with progress.watching(parse(["submit", "--variant", "x", *words])) as watcher:
        return watcher


def test_the_probe_as_one_file_for_a_machine_without_the_farm(tmp_path, monkeypatch, capsys, root):
    monkeypatch.chdir(tmp_path)
    assert main(["smoke", "--write-probe", "probe.pyz"]) == 0
    texts = [root / "README.md", *root.glob("docs/**/*.md"), root / "farm/smoke/probe/__init__.py"]
    written = re.findall(
        r"python3? probe\.pyz (--[^`\n]*)", "\n".join(path.read_text() for path in texts)
    )
    assert "--expect-arch sm_35" in written
    for form in written:
        command = [sys.executable, "-I", "probe.pyz", *form.split(), "--module", "no_such_module"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout[:16]) == (1, "failed   import "), done.stderr
    assert "no_such_module" in (tmp_path / "report.json").read_text()
    assert main(["smoke"]) == 2
    assert "no variant is chosen" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["submit", "build", "render", "retry", "publish", "smoke"])
def test_every_command_with_steps_can_be_quiet_or_verbose(command):
    made = command_parser(parser(), command)
    options = [option for action in made._actions for option in action.option_strings]
    assert {"-q", "--quiet", "-v", "--verbose"} <= set(options)


def test_no_command_shows_steps_without_the_options():
    steps = re.compile(r"\b(watching|carry_out|hand_over|_verified)\(\s*args")
    shown = {name for name in COMMANDS if steps.search(inspect.getsource(handler(name)))}
    assert {"build", "publish", "render", "retry", "smoke", "submit"} == shown
    for name in shown:
        assert {"--quiet", "--verbose"} <= command_parser(
            parser((name,)), name
        )._option_string_actions.keys(), name


def test_quiet_and_verbose(capsys):
    for words, lines in (((), 0), (("-q",), 0), (("-v",), 1)):
        watcher_of(*words).line("cc -c x.c")
        assert capsys.readouterr().err.count("cc -c x.c") == lines
    watcher_of("--quiet").step("build")
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        parse(["submit", "--variant", "x", "-q", "-v"])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599, "59 min 59 s"),
        (11250, "3 h 07 min"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_rebuild_alone_forces_and_with_a_number_is_the_version(capsys):
    from farm.cli.arguments import AGAIN

    assert parse(["submit", "--variant", "x", "--rebuild"]).rebuild == AGAIN
    assert parse(["submit", "--variant", "x", "--rebuild", "2"]).rebuild == 2
    assert parse(["submit", "--variant", "x"]).rebuild is None
    with pytest.raises(SystemExit):
        parse(["plan", "--variant", "x", "--rebuild"])


def test_the_answer_that_the_readme_shows_is_the_farms(root, capsys):
    page = (root / "README.md").read_text()
    command, shown = re.search(
        r"^\$ farm (why [^\n]* --msvc 2022)\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ).groups()
    assert main(["--project", str(root), *shlex.split(command)]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    lines = [" ".join(line.split()) for line in shown.splitlines() if line != "…"]
    assert lines[-1] in printed
    # The table folds long reasons: their words stand in other columns' rows.
    assert len(lines) == 4
    assert all(word in printed for line in lines for word in line.split())
