"""Why a wheel does not work here: the texts of a report, matched with what is known (`causes.yaml`)."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.smoke.report import Cause, SmokeReport

_TAIL = 4000  # characters of the output that are looked at: the last words


class _Known(Model):
    """A cause: any of `patterns` (regular expressions, case ignored) in a text, or one of `signals`.

    In a pattern {module} stands for the module that was tested.

    `unless` names causes that explain the same texts better; `hung` asks for a run that did not end, and that could
    use a card, or could not (`gpu`).
    """

    id: str
    patterns: list[str] = []
    signals: list[str] = []
    hung: bool = False
    gpu: bool = True
    unless: list[str] = []
    what: str
    fix: str


class _Causes(Model):
    causes: Annotated[list[_Known], Field(min_length=1)]


@cache
def known() -> tuple[_Known, ...]:
    return tuple(load(Path(__file__).with_name("causes.yaml"), _Causes).causes)


def find_causes(report: SmokeReport, *, hung: bool, gpu: bool = True) -> tuple[Cause, ...]:
    """The causes that the texts of a report show, in the order of `causes.yaml`; empty where nothing is known.

    Args:
        report: What happened.
        hung: The run, or a check of it, did not end in its time.
        gpu: It could use a card.
    """
    texts = [text for check in report.checks if check.status != "passed" for text in (check.seen, check.reason) if text]
    # A signal says enough: last words before a crash are often about something else.
    if report.outcome == "failed" and report.signal is None:
        texts += [report.reason or "", report.output_tail[-_TAIL:]]
    return _matching(report, texts, hung=hung, gpu=gpu)


def causes_of(message: str, module: str) -> tuple[Cause, ...]:
    """The causes of what someone saw outside a smoke test, when they used `module`."""
    return _matching(SmokeReport(module=module, emulated=None, outcome="failed"), [message], hung=False, gpu=True)


def _matching(report: SmokeReport, texts: list[str], *, hung: bool, gpu: bool) -> tuple[Cause, ...]:
    found: list[str] = []
    causes = []
    words = _words(report, texts)
    module = re.escape(report.module)
    for each in known():
        # The order of causes.yaml counts: what a cause gives way to stands before it.
        if any(other in found for other in each.unless):
            continue
        patterns = [pattern.replace("{module}", module) for pattern in each.patterns]
        matched = any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns for text in texts)
        if matched or (report.signal in each.signals and not hung) or (each.hung and hung and each.gpu == gpu):
            found.append(each.id)
            causes.append(Cause(id=each.id, what=each.what.format(**words), fix=each.fix.format(**words)))
    return tuple(causes)


def _words(report: SmokeReport, texts: list[str]) -> dict[str, str]:
    """Placeholders of the texts in `causes.yaml`."""
    seen = {check.name: check.seen or "" for check in report.checks}
    match = re.match(r"(\d+)\.\d+$", seen.get("CUDA version", ""))
    cuda = f"CUDA {match[0]}" if match else "a newer CUDA"
    missing = next((found[1] for text in texts if (found := re.search(r"No module named '([\w.]{1,100})'", text))), "")
    majors = catalog.cuda_majors()
    majors = {match[1]: majors[match[1]]} if match and match[1] in majors else majors
    return {
        "module": report.module,
        "missing": missing or "a module",
        "cuda": cuda,
        "driver_linux": _drivers({name: major.driver_linux for name, major in majors.items()}),
        "driver_windows": _drivers({name: major.driver_windows for name, major in majors.items()}),
        "archs": seen.get("architectures", "") or "unknown",
        "card": seen.get("devices", "") or "the card",
        "cpu": report.emulated or "this CPU",
    }


def _drivers(by_major: Mapping[str, str | None]) -> str:
    """The driver, or those of each CUDA where the report does not say which one it is."""
    found = {name: driver for name, driver in by_major.items() if driver}
    if len(found) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{driver} (CUDA {name})" for name, driver in found.items()) or "the one of its toolkit"
