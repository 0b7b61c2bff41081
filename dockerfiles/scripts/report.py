"""Makes farm-report.zip of a build's record, its log and what CMake left, without secrets.

Usage: report.py ZIP NAME=FILE... Each FILE that exists goes in as NAME, and the first error of
build.log with its cause as cause.txt. report.cmd calls it; standard library and causes.py alone.

Taken out of every text but the plan: the value of each variable of this environment that is not one
of Windows' own and stands in no plan, users and passwords in URLs, what looks like a key, the name
of the user and of the machine.
"""

import os
import re
import sys
import zipfile
from pathlib import Path

import causes

MAX_BYTES = 64 << 20
PLAN = "plan.json"
LOG = "build.log"
SHORTEST = 6  # a shorter value stands in texts by chance
# Variables that every Windows has; SDKs and drivers add such paths too (CUDA_PATH), which a report
# needs.
WINDOWS = re.compile(
    r"ALLUSERSPROFILE|APPDATA|COMMONPROGRAM.*|COMSPEC|CUDA_PATH.*|CHOCOLATEYINSTALL|DRIVERDATA|FARM_(PYTHON|JOBS|TAG|REPORT)"
    r"|GITHUB_(ACTION|EVENT_NAME|JOB|WORKFLOW)|RUNNER_\w+"
    r"|HOMEDRIVE|HOMEPATH|LOCALAPPDATA|LOGONSERVER|NUMBER_OF_PROCESSORS|NVTOOLSEXT_PATH|ONEDRIVE.*|OS|PATH|PATHEXT"
    r"|PROCESSOR_.*|PROGRAM(DATA|FILES|W6432).*|PROMPT|PSMODULEPATH|PUBLIC|SESSIONNAME|SYSTEM(DRIVE|ROOT)|TEMP|TMP"
    r"|USER(DOMAIN.*|NAME|PROFILE)|COMPUTERNAME|VS\d+COMNTOOLS|WINDIR|WINEPATH|PYTHON(UTF8|HOME|PATH)",
    re.IGNORECASE,
)
KEYS = re.compile(
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]+-----"
    r"|(?i:(?<=bearer )|(?<=basic ))[A-Za-z0-9+/=._-]{8,}",
    re.DOTALL,
)
IN_URL = re.compile(r"(?<=://)[^\s/@\"']+@")
IN_QUERY = re.compile(r"(?i)([?&](?:sig|signature|token|key|password|x-amz-[a-z-]+)=)[^&\s\"']+")


def hidden(plan: str) -> list[tuple[re.Pattern[str], str]]:
    """Texts that may not be sent, longest first, and what stands for each. Words of the plan are no
    secret.
    """
    found = {
        value: f"[{name}]"
        for name, value in os.environ.items()
        if len(value) >= SHORTEST and not WINDOWS.fullmatch(name)
    }
    patterns = [
        (re.compile(re.escape(value), re.IGNORECASE), shown) for value, shown in found.items()
    ]
    patterns.sort(key=lambda pair: -len(pair[0].pattern))
    for name, shown in (
        ("USERPROFILE", "%USERPROFILE%"),
        ("USERNAME", "[user]"),
        ("COMPUTERNAME", "[machine]"),
    ):
        if len(value := os.environ.get(name, "")) > 2:
            patterns.append(
                (re.compile(rf"(?<![^\W_]){re.escape(value)}(?![^\W_])", re.IGNORECASE), shown)
            )
    return [(pattern, shown) for pattern, shown in patterns if not pattern.search(plan)]


def cleaned(text: str, secrets: list[tuple[re.Pattern[str], str]]) -> str:
    """The text without them."""
    for pattern, shown in secrets:
        text = pattern.sub(lambda _, shown=shown: shown, text)
    text = KEYS.sub("[key]", IN_URL.sub("", text))
    return IN_QUERY.sub(r"\1[secret]", text)


def read(path: Path) -> str:
    """The end of a file, at most MAX_BYTES. cmd and its tools write UTF-8, UTF-16 or the system's
    encoding.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_BYTES))
        content = file.read()
    if content.startswith(b"\xff\xfe"):
        return content.decode("utf-16", "replace")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def cause_of(log: Path) -> str:
    """What failed first, why and what to do, by the farm's table of failures; empty if no tool
    failed.
    """
    failure = causes.failure_of(log)
    if failure is None:
        return ""
    advice = f"    what to do: {failure.advice}\n" if failure.advice else ""
    return f"{failure.text}\n{advice}"


def main(argv: list[str]) -> int:
    """Writes the zip; 9 with one line where it cannot be written."""
    target = Path(argv[0])
    files = dict(word.split("=", 1) for word in argv[1:])
    plan = Path(files.get(PLAN, PLAN))
    new = target.with_name(target.name + ".new")
    try:
        secrets = hidden(read(plan) if plan.is_file() else "")
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, place in files.items():
                if Path(place).is_file():
                    text = read(Path(place))
                    archive.writestr(name, text if name == PLAN else cleaned(text, secrets))
            log = Path(files.get(LOG, LOG))
            cause = cause_of(log) if log.is_file() else ""
            if cause:
                archive.writestr("cause.txt", cleaned(cause, secrets))
        new.replace(target)
    except OSError as error:
        print(f"report: {error}; check disk space and permissions", file=sys.stderr)
        return 9
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
