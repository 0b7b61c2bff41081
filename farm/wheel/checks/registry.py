"""The checks, in the order of the report."""

from collections.abc import Callable, Mapping

from farm.policy.rules import CheckId
from farm.wheel.checks import (
    abi,
    cpu,
    device,
    imports,
    install,
    link,
    members,
    names,
    numpy,
    platform,
    record,
)
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.report import Check


def _archive(subject: Subject) -> Check:
    """The archive was read: what is wrong with it ended in an error before."""
    return outcome("archive", (), f"{len(subject.contents.files)} files")


CHECKS: Mapping[CheckId, Callable[[Subject], Check]] = {
    "archive": _archive,
    "names": names.check,
    "abi": abi.check,
    "install": install.check,
    "metadata": numpy.check,
    "record": record.check,
    "members": members.check,
    "platform": platform.check,
    "imports": imports.check,
    "link": link.check,
    "sass": device.check_sass,
    "ptx": device.check_ptx,
    "cpu": cpu.check,
}
