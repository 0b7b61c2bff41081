"""The pages on Windows by the letter: its commands exist, and what it says that appears is what
the scripts print.
"""

import contextlib
import re

import pytest

from farm.cli.main import GROUPS, parser
from farm.plan.render import render
from tests.plans import plan_of
from tests.powershell import reads, started

CODE = re.compile(r"```console\n(.*?)```|`([^`\n]+)`", re.DOTALL)
FARM = re.compile(r"^(?:[>$] )?farm ([a-z].*?)(?: *[#>].*)?$")
# What the table of interrupted builds and the first steps quote: the scripts hold it, but for
# names.
PAGES = (
    "docs/tutorials/first-windows-build.md",
    "docs/how-to/windows.md",
    "docs/reference/windows.md",
    "docs/explanation/windows.md",
)
QUOTED = [
    "is C: writable and not full?",
    "a program holds a file in ",
    "another build runs on this machine",
    "make room: less than 256 MB are free",
    "can this machine reach ",
    "FARM_ARCHIVES",
]


@pytest.fixture(scope="module")
def page(root):
    return "\n".join((root / name).read_text(encoding="utf-8") for name in PAGES)


@pytest.fixture(scope="module")
def rendered(root, tmp_path_factory):
    """Every text that a Windows build of the page's example and of a companion consists of, by
    path.
    """
    folder = tmp_path_factory.mktemp("rendered")
    for package, into in (("torch", folder), ("torchvision", folder / "companion")):
        plan = plan_of("sm35-avx-py311", package, "kepler-2.0.1", "windows")
        render(root, plan).write(into)
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.*")
    }


def written(page):
    """Each piece of code on the page, a command line each."""
    for block, span in CODE.findall(page):
        yield from (block or span).strip().replace("\\\n", " ").splitlines()


def commands(page):
    return [found[1] for line in written(page) if (found := FARM.match(line.strip()))]


def test_every_command_of_the_farm_exists_and_takes_its_options(page):
    known = {name for names in GROUPS.values() for name in names}
    whole = []
    for command in commands(page):
        words = [word.replace("<plan>", "0" * 12).replace("….", "x.") for word in command.split()]
        assert words[0] in known, command
        part = "…" in words
        # A part of a command, or its name alone, is asked for its help, which ends with 0.
        words = [
            *words[: words.index("…") if part else None],
            *(["--help"] if part or "-" not in command else []),
        ]
        context = pytest.raises(SystemExit) if words[-1] == "--help" else contextlib.nullcontext()
        with context as ended:
            parser().parse_args(words)
        assert ended is None or ended.value.code == 0, f"farm {command}"
        whole.append(words[0])
    assert {"render", "doctor", "repair", "verify", "submit"} <= set(whole)


def test_the_first_steps_start_the_same_programs_in_powershell(page):
    lines = [
        line.strip() for line in re.findall(r"^ +> (.*)$", page.split("\n## ")[1], re.MULTILINE)
    ]
    assert len(lines) > 8
    for line in lines:
        program, *_ = started(line.replace("<plan>", "0" * 12).replace("….", "1."))
        # No name that PowerShell has itself: `mkdir` and `set` are no programs there.
        assert program in {"cmd", "farm", "py", r".\report.cmd"}, line


def test_powershell_reads_what_the_scripts_give_it(rendered):
    everything = "\n".join(rendered.values())
    given = set(re.findall(r'^powershell .*-Command "([^"]*)"', everything, re.MULTILINE))
    followed = set(re.findall("in PowerShell, (Get-Content .*?) follows", everything))
    assert (len(given), len(followed)) == (3, 1)
    assert [
        text
        for text in given | followed
        if not reads(text.replace("%FARM_LOG%", r"C:\farm\build.log"))
    ] == []


def test_the_steps_are_those_of_the_scripts_in_their_order(page, rendered):
    match = re.search(r"one line\s+for each step: (.*?) \(with", page, re.DOTALL)
    steps = re.findall(r"`([^`]+)`", match[1])
    build, prepare = rendered["job/build.cmd"], rendered["job/prepare.cmd"]
    text = build.replace(r"call .\prepare.cmd", prepare)
    found = [name for name in re.findall(r'set "FARM_STEP=([^"]+)"', text) if name != "folders"]
    assert steps == list(dict.fromkeys(found))


def test_quoted_messages_are_those_of_the_scripts(page, rendered):
    everything = "\n".join(rendered.values())
    for text in QUOTED:
        assert text in page
        assert text in everything, text
    for beginning in ("done:", "next:"):
        assert f"`{beginning}`" in page
        assert f'set "FARM_TEXT={beginning} ' in rendered["job/build.cmd"]
    # `… farm: torch 2.0.1+… for sm35-avx-py311, plan …; log: C:\farm\out\…\build.log`
    [line] = [line for line in written(page) if "farm: torch" in line]
    pattern = ".*".join(re.escape(part) for part in line.split("farm: ")[1].split("…"))
    script = rendered["job/build.cmd"].replace("%FARM_LOG%", r"C:\farm\out\0\build.log")
    assert re.search(pattern, script), pattern


def test_exit_codes_are_those_of_the_script(page, rendered):
    codes = re.findall(r'set "FARM_CODE=(\d)"', rendered["job/build.cmd"])
    text = re.search(r"^Exit codes: (.*?)\.$", page, re.MULTILINE | re.DOTALL)[1]
    assert {int(code) for code in codes} | {0} == {
        int(code) for code in re.findall(r"(?:^|,\s)(\d) ", text)
    }


def test_scripts_files_and_variables_named_on_the_pages_exist(page, rendered):
    everything, names = "\n".join(rendered.values()), {path.rpartition("/")[2] for path in rendered}
    for line in written(page):
        for name in re.findall(r"\b[a-z_]+\.cmd\b", line):
            assert name in names, line
        for name in re.findall(r"\bFARM_[A-Z_]+", line):
            assert f"%{name}%" in everything or f"defined {name} " in everything, line


def test_every_component_that_the_first_steps_name_is_what_the_plan_asks_for(page):
    """The toolsets by CUDA, and Python's version."""
    for toolset, cuda in re.findall(r"(14\.\d\d) for CUDA (\d+(?:\.\d+)?)", page):
        channel = {"11": "kepler-2.0.1", "12.8": "rtx50-windows"}[cuda]
        variant = {"11": "sm35-avx-py311", "12.8": "sm120-avx2-py311"}[cuda]
        plan = plan_of(variant, channel=channel, platform="windows")
        assert plan.windows.toolset == toolset
        assert plan.toolkit.cuda.startswith(cuda)
