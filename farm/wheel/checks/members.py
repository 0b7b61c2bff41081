"""The check `members`: no file that the policy forbids."""

import re
from fnmatch import fnmatchcase, translate

from farm.policy.rules import Forbidden, defaults
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.report import Check, Finding

_NOTHING = r"\b\B"


def check(subject: Subject) -> Check:
    """Look for files that have no place in the wheel."""
    reasons = {}
    for rule in subject.policy.forbidden:
        pattern = rule if isinstance(rule, str) else rule.pattern
        reasons[pattern] = _reason(rule)
    # One expression for all patterns: a wheel may have ten thousand members.
    any_pattern = re.compile("|".join(map(translate, reasons)) or _NOTHING)
    findings = []
    for name in filter(any_pattern.match, subject.contents.files):
        pattern = next(pattern for pattern in reasons if fnmatchcase(name, pattern))
        findings.append(_forbidden(name, pattern, reasons[pattern]))
    return outcome("members", findings)


def _forbidden(where: str, pattern: str, reason: str) -> Finding:
    return Finding(
        check="members",
        where=where,
        what=f"has no place in the wheel (policy: {pattern})",
        why=reason,
        fix="leave it out of the build, or build from a clean folder; PyTorch: BUILD_TEST=0, "
        "INSTALL_TEST=0",
    )


def _reason(rule: str | Forbidden) -> str:
    if not isinstance(rule, str):
        return rule.reason
    if rule in defaults("forbidden"):
        return defaults("forbidden_reason")[0]
    return "the policy forbids such files"
