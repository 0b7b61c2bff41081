"""How many of its packages apt or debootstrap has fetched, unpacked, configured: counted in what it prints.

Both print a line for each package and number none. The words are those of `LC_ALL=C.UTF-8`.
"""

import re

_TOTAL = re.compile(r"\d+ upgraded, \d+ newly installed,")
"""apt's summary, before it fetches: `0 upgraded, 37 newly installed, 0 to remove and 2 not upgraded.`"""
_COUNTED = re.compile(r"(\d+) (?:upgraded|newly installed|reinstalled|downgraded)")
_APT = re.compile(r"(Get|Unpacking|Setting up)(?::\d+)? (\S.*)")
_DEBOOTSTRAP = re.compile(r"I: (?:(Retrieving) (\S+) \S+|(Extracting|Unpacking|Configuring) (\S+)\.\.\.)$")


_PHASES = (("Get", "Unpacking", "Setting up"), ("Extracting", "Unpacking", "Configuring"))
"""The phases of apt and of debootstrap, once everything is retrieved: each package goes through all three."""


class PackageCounts:
    """Give it each line of one program in order; a summary of apt starts anew."""

    def __init__(self) -> None:
        self._total = self._done = 0
        # By phase, the packages that came: a trigger configures one again.
        self._seen: dict[str, set[str]] = {}

    def line(self, text: str) -> tuple[int, int] | None:
        """Packages done over all phases, and in all, three a package; None for a line of no package.

        The total is 0 while it is unknown (debootstrap names a package first when it retrieves it), and when dpkg is
        at the triggers, its last phase.
        """
        if _TOTAL.match(text):
            self._total = sum(int(count) for count in _COUNTED.findall(text))
            self._seen.clear()
            self._done = 0
        elif self._total and (found := _APT.match(text)):
            return self._over_phases(_PHASES[0], found[1], found[2], self._total)
        elif text.startswith("Processing triggers for "):
            return 0, 0
        elif found := _DEBOOTSTRAP.match(text):
            # Package lists have no version.
            if found[1]:
                return self._come(found[1], found[2]), 0
            return self._over_phases(_PHASES[1], found[3], found[4], len(self._seen.get("Retrieving", ())))
        return None

    def _over_phases(self, phases: tuple[str, ...], phase: str, package: str, total: int) -> tuple[int, int]:
        # What an earlier phase left out (a package of apt's cache is not fetched) counts as done: it only goes forward.
        self._done = max(self._done, phases.index(phase) * total + min(self._come(phase, package), total))
        return self._done, len(phases) * total

    def _come(self, phase: str, package: str) -> int:
        self._seen.setdefault(phase, set()).add(package)
        return len(self._seen[phase])
