"""`farm report read`: show the report of a build on Windows."""

import argparse
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farm.base import failures
from farm.base.errors import UsageError
from farm.base.zips import DAMAGED
from farm.cli import show
from farm.platforms.facts import WINDOWS

MAX_BYTES = 256 << 20
MOST = 10
STEP = re.compile(r"^(?P<time>.*?) farm: (?P<text>.*)$", re.MULTILINE)
CACHED = re.compile(r"^(?P<name>[A-Za-z_][\w.-]*):[A-Z]+=(?P<value>.*)$", re.MULTILINE)
SWITCHES = ("USE_", "BUILD_")
"""How the switches of PyTorch begin."""
ON = {"1", "ON", "TRUE", "YES", "Y"}


def run_report(args: argparse.Namespace) -> int:
    """Machine, steps, what failed first, and where CMake's settings are not the plan's."""
    texts = read_report(args.zip)
    try:
        plan: dict[str, Any] = json.loads(texts["plan.json"])
        env = dict(plan["env"])
        version = f"{plan['package']} {plan['version']} for {plan['variant']}"
        windows = dict(plan[WINDOWS])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(
            f"{args.zip}: its plan.json is no plan", hint="give the zip that report.cmd wrote"
        ) from None
    show.say(version)
    for line in texts["farm-report.txt"].splitlines():
        if re.match(
            r"Microsoft Windows|cores:|build\.cmd|git version|installationPath|displayName",
            line.strip(),
        ):
            show.say(f"  {line.strip()}")
    log = texts["build.log"]
    for step in STEP.finditer(log):
        show.say(f"{step['time'].strip()}  {step['text'].strip()}")
    _print_failures(log.splitlines())
    settings = {}
    for match in CACHED.finditer(texts["CMakeCache.txt"]):
        settings[match["name"]] = match["value"].strip()
    if not settings:
        show.say("CMake: not configured")
        return 0
    rows = list(settings_unlike(env, windows, settings))
    if rows:
        show.table("settings of CMake that are not the plan's", ("setting", "plan", "CMake"), rows)
    else:
        show.say(f"CMake: configured, with all that the plan says ({len(settings)} settings)")
    return 0


def _print_failures(log: list[str]) -> None:
    """Print the error lines of a build's log, the cause of the first and what to do."""
    errors = failures.errors(log)
    title = f"failures in the log: {len(errors)}"
    if len(errors) > MOST:
        title += f", the first {MOST}:"
    show.say(title)
    for line in errors[:MOST]:
        show.say(f"  {line[:300]}")
    if not errors:
        return
    failure = failures.read(log, build=True, machine=True)
    if failure.cause is None:
        show.say("cause: not known; the first line above is what the tool itself says")
        return
    show.say(f"cause: {failure.cause}")
    show.say(f"what to do: {failure.advice}")


def read_report(path: Path) -> dict[str, str]:
    """The texts of a report by name; empty, where it has none of that name."""
    names = ("plan.json", "farm-report.txt", "build.log", "CMakeCache.txt")
    try:
        with zipfile.ZipFile(path) as archive:
            texts = dict.fromkeys(names, "")
            for name in sorted(set(names) & set(archive.namelist())):
                with archive.open(name) as member:
                    content = member.read(MAX_BYTES + 1)
                if len(content) > MAX_BYTES:
                    raise UsageError(f"{path}: {name} is larger than {MAX_BYTES >> 20} MiB")
                texts[name] = content.decode(errors="replace").replace("\r\n", "\n")
    except (OSError, *DAMAGED) as error:
        raise UsageError(
            f"{path}: cannot be read: {error}", hint="give the zip that report.cmd wrote"
        ) from None
    return texts


def settings_unlike(
    env: dict[str, str], windows: dict[str, Any], found: dict[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Switches of PyTorch and its OpenMP library that are not what the plan says; absent settings
    are not compared.
    """
    planned = {}
    for name, value in env.items():
        if name.startswith(SWITCHES) or name == "BLAS":
            planned[name] = value
    planned["OpenMP_libomp_LIBRARY"] = str(windows.get("openmp", ""))
    for name, value in planned.items():
        actual = found.get(name)
        if actual is None or actual == value:
            continue
        is_switch = name.startswith(SWITCHES)
        if not is_switch or (actual.upper() in ON) != (value.upper() in ON):
            yield name, value, actual
