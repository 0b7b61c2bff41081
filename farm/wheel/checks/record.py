"""The check `record`: RECORD lists every file with its hash and length."""

import re

from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.metadata import compare_record, read_record
from farm.wheel.report import Check, Finding

_EMPTY_LINE = re.compile(rb"(?:\A|\n)\r?\n")


def check(subject: Subject) -> Check:
    """Compare RECORD with the files, whose hashes are computed anew."""
    record = subject.info.record
    files = subject.contents.files
    content, rows = read_record(subject.archive, record)
    problems = compare_record(subject.archive, rows, record, files)
    if _EMPTY_LINE.search(content):
        problems.append((record, "an empty line, at which pip fails"))
    findings = [_wrong(path, problem) for path, problem in problems]
    return outcome("record", findings, f"{len(files)} hashes recomputed")


def _wrong(where: str, what: str) -> Finding:
    return Finding(
        check="record",
        where=where,
        what=what,
        why="installers that check RECORD refuse the wheel; a file may have been exchanged",
        fix="repair the wheel, which rebuilds RECORD, or build it again if the file should not "
        "have changed",
    )
