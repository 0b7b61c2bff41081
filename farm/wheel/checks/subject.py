"""What every check gets: a wheel that was read, and the policy that it is held to."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from farm.policy.rules import CheckId, Policy
from farm.wheel.archive import Archive
from farm.wheel.library import Contents, Library
from farm.wheel.metadata import DistInfo
from farm.wheel.needs import Need, resolve
from farm.wheel.report import Check, Finding


@dataclass(frozen=True)
class Subject:
    """A wheel under test.

    Attributes:
        filename: The name of its file.
        archive: The open file.
        info: METADATA and WHEEL as far as they are read here.
        metadata: METADATA as it is.
        tags: The tags that pip goes by: those of the file name.
        contents: Its files and libraries, and those of the wheels that it was checked with.
        policy: What it is held to.
    """

    filename: str
    archive: Archive
    info: DistInfo
    metadata: bytes
    tags: frozenset[str]
    contents: Contents
    policy: Policy

    @cached_property
    def needs(self) -> list[Need]:
        """The needs of all libraries, each with who answers it."""
        contents = self.contents
        return resolve(
            contents.libraries, self.policy.exclude, contents.dependencies, contents.dll_folders
        )

    @property
    def loadable(self) -> list[Library]:
        """The libraries that a loader may be asked for."""
        return [library for library in self.contents.libraries if library.is_loadable]


def outcome(check: CheckId, findings: Iterable[Finding], note: str = "") -> Check:
    """A check that was run: failed where it has findings.

    Args:
        check: Which one.
        findings: What is wrong.
        note: What was seen.
    """
    all_findings = tuple(findings)
    return Check(
        id=check, status="failed" if all_findings else "passed", findings=all_findings, note=note
    )


def not_run(check: CheckId, reason: str) -> Check:
    """A check that was not run."""
    return Check(id=check, status="not_run", note=reason)


def fits_any(name: str, patterns: Iterable[str]) -> bool:
    """True if a member's name fits one of the patterns (`fnmatch`)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
