"""How long a job may run on a cluster: the limits of partition, QOS and association."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from farm.plan.settings import SlurmCard

LIMITS = r"""
sinfo --noheader --format='partition|%P|%l' 2>/dev/null || true
sacctmgr --noheader --parsable2 show qos format=Name,MaxWall 2>/dev/null | sed 's/^/qos|/'
sacctmgr --noheader --parsable2 show assoc user="$(id -un)" format=Account,MaxWall 2>/dev/null | sed 's/^/account|/'
true
"""
"""Prints `kind|name|limit` lines; a cluster without accounting has only partitions."""


@dataclass(frozen=True)
class TimeLimit:
    """The longest time of a job, in minutes, and what sets it."""

    minutes: int
    source: str


def minutes_of(text: str) -> int | None:
    """Read a time of Slurm's, `[days-]hours:minutes:seconds` or `minutes:seconds`; None: no
    limit.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, _seconds = (int(group or 0) for group in match.groups())
    return (days * 24 + hours) * 60 + minutes


def time_limit(lines: Iterable[str], card: SlurmCard) -> TimeLimit | None:
    """Find the shortest limit that holds for jobs with these options of sbatch.

    `lines`: what `LIMITS` printed. Of several partitions that a job may use, and of several
    associations, the longest counts: Slurm takes the one that fits.
    """
    by_kind: dict[str, list[TimeLimit]] = {"partition": [], "qos": [], "account": []}
    unlimited = set()
    for line in lines:
        kind, _, name_and_limit = line.partition("|")
        name, _, text = name_and_limit.partition("|")
        if kind not in by_kind or not _holds(kind, name, card):
            continue
        minutes = minutes_of(text)
        if minutes:
            by_kind[kind].append(TimeLimit(minutes, f"{kind} {name.rstrip('*')}"))
        else:
            unlimited.add(kind)
    limits = []
    for kind, kind_limits in by_kind.items():
        if kind_limits and kind not in unlimited:
            limits.append(max(kind_limits, key=lambda limit: limit.minutes))
    return min(limits, key=lambda limit: limit.minutes, default=None)


def _holds(kind: str, name: str, card: SlurmCard) -> bool:
    """True if a partition, QOS or account is one that a job with these options uses."""
    if kind == "partition":
        if card.partition is None:
            return name.endswith("*")  # the default one
        return name.rstrip("*") in card.partition.split(",")
    if kind == "qos":
        return name == card.qos
    return card.account in (None, name)
