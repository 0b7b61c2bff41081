"""verify beside the others, mutation by mutation: what they disagree on."""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.wheel.policy import Policy
from farm.wheel.verify import verify
from tests.differential.drafts import Draft
from tests.differential.judges import Judge, Target, ask
from tests.differential.mutations import Mutation

# Where verify and others differ on purpose: names of mutations (patterns) to words of docs/verify.md that explain it.
OTHERS_REFUSE = {
    "metadata-Unknown-Header-x": "METADATA with fields that nobody knows",
}
VERIFY_REFUSES = {
    "wheel-(Wheel-Version|Root-Is-Purelib)-.*": "`Root-Is-Purelib: maybe`",
    "wheel-cut-by-empty-line": "an empty line ends the headers of WHEEL",
    "record-(extra-row|twice|absolute|climbing|backslashes)": "rows of RECORD that name no file, or one twice",
    "entry-points-(space|backslash|keyword-digit|attr-dot)": "commands that no shell finds",
    "tree-(data-other|data-folder-misnamed|stdlib|shadow|customize|data-over-root)": "what it replaces or shadows",
    "tree-(colon|device|dot-end|double-slash|case-twins|unicode-twins|windows-.*)": "On Linux these names do no harm",
    "tree-(link|fifo)": "symbolic links out of the wheel, and pipes",
    "info-other-version": "a `.dist-info` folder of another version",
    "zip-(comment|gap|local-method|unicode-path-field|folder-with-content)": "archives that two programs read",
    "elf-cut-half": "cut off behind what is loaded",
    "elf-load-alignment": "segments that are not aligned to pages",
    "elf-symbol-version": "glibc reads behind its table of versions",
    "pe-.*": "Windows' loader is asked under Wine",
}
NOBODY = "nobody else refuses it"
_DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


def check_documented() -> None:
    """Each disagreement on purpose is explained in the documentation."""
    text = " ".join(_DOCS.read_text(encoding="utf-8").split())
    assert [words for words in {**OTHERS_REFUSE, **VERIFY_REFUSES}.values() if words not in text] == []


@dataclass(frozen=True)
class Outcome:
    """What was made of one changed wheel. `found`: by verify. `said`: by those who refuse it."""

    mutation: Mutation
    wheel: str
    found: tuple[str, ...]
    said: dict[str, str]

    @property
    def disagreement(self) -> str | None:
        """What is wrong with verify's answer; None: nothing."""
        fits = self.mutation.cause is not None and any(
            re.search(self.mutation.cause, each, re.IGNORECASE) for each in self.found
        )
        if self.found and not fits:
            return "another cause" if self.mutation.cause else "refused without need"
        if self.said and not self.found and not _explained(self.mutation, OTHERS_REFUSE):
            return "accepted"
        if self.mutation.cause and not self.found:
            return "not found"
        if self.found and not self.said and not _explained(self.mutation, VERIFY_REFUSES):
            return NOBODY
        return None

    def __str__(self) -> str:
        others = "; ".join(f"{who}: {what}" for who, what in self.said.items()) or "nobody"
        return f"{self.mutation.name} of {self.wheel}: {self.disagreement}; verify: {self.found[:3]}; others: {others}"


def _explained(mutation: Mutation, table: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, mutation.name) for pattern in table)


def compare(
    mutations: Sequence[tuple[int, Mutation]],
    drafts: Sequence[Draft],
    judges: Sequence[tuple[str, Judge]],
    scratch: Path,
) -> list[Outcome]:
    """Each mutation, with its number, of one wheel: of them in turn, as far as they can be changed so."""
    return [one(mutation, _wheel_for(number, mutation, drafts), judges, scratch) for number, mutation in mutations]


def _wheel_for(number: int, mutation: Mutation, drafts: Sequence[Draft]) -> Draft:
    fitting = [draft for draft in drafts if mutation.fits(draft)]
    assert fitting, mutation.name
    return fitting[number % len(fitting)]


def one(
    mutation: Mutation,
    draft: Draft,
    judges: Sequence[tuple[str, Judge]],
    scratch: Path,
) -> Outcome:
    """Change a wheel and ask everybody."""
    target = Target.of(draft.filename)
    changed = copy.deepcopy(draft)
    mutation.change(changed)
    wheel = changed.write(scratch)
    try:
        report = verify(wheel, Policy())
        said = ask(judges, wheel, target, scratch / "targets")
    finally:
        wheel.unlink()
    found = tuple(f"{finding.where}: {finding.what}" for finding in report.findings)
    return Outcome(mutation, draft.filename, found, said)
