"""The report as JUnit's XML, as CI systems read it."""

from __future__ import annotations

import re
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from .outcome import FAILED, NOT_RUN, PASSED


def junit(suite: str, rows: list[tuple[str, str, str, float, str, str]]) -> str:
    """JUnit's XML, as CI systems read it. A row is (group, name, status, seconds, headline, text)."""
    counts = {status: sum(1 for row in rows if row[2] == status) for status in (FAILED, NOT_RUN)}
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(
        "<testsuite name={} tests={} failures={} errors={} skipped={} time={}>".format(
            *(
                quoteattr(xml_text(str(value)))
                for value in (
                    suite, len(rows), counts[FAILED], 0, counts[NOT_RUN], round(sum(row[3] for row in rows), 3),
                )
            )
        )
    )  # fmt: skip
    for group, name, status, seconds, headline, text in rows:
        attributes = "classname={} name={} time={}".format(
            quoteattr(xml_text(f"{suite}.{group}")), quoteattr(xml_text(name)), quoteattr(str(round(seconds, 3)))
        )
        tag = {PASSED: "system-out", FAILED: "failure", NOT_RUN: "skipped"}[status]
        message = "" if status == PASSED else f" message={quoteattr(xml_text(headline))}"
        body = escape(xml_text(text))
        lines.append(f" <testcase {attributes}><{tag}{message}>{body}</{tag}></testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def xml_text(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def junit_rows(checks: list[dict[str, Any]]) -> list[tuple[str, str, str, float, str, str]]:
    return [
        (
            check["group"],
            check["name"],
            check["status"],
            check["seconds"],
            check["reason"] or check["seen"] or "",
            "\n".join(
                f"{key}: {check[key]}"
                for key in ("seen", "expected", "reason", "warning")
                if check.get(key) is not None
            ),
        )
        for check in checks
    ]
