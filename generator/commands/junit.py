"""The JUnit file that CI systems read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from generator.commands.device_check import Outcome
from hgemm.disk import write_whole


def write_junit(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a suite a variant and a test a case. Raises LibraryError where the file cannot be written."""
    root = ElementTree.Element("testsuites", name="hgemm verify")
    for outcome in outcomes:
        root.append(_suite(outcome))
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True), "--junit")


def _suite(outcome: Outcome) -> ElementTree.Element:
    failures = len(outcome.checks) - outcome.passed_cases
    counts = {
        "tests": len(outcome.checks) or 1,
        "failures": failures,
        "errors": int(bool(outcome.error)),
        "skipped": int(bool(outcome.skipped)),
    }
    written = {name: str(count) for name, count in counts.items()}
    suite = ElementTree.Element("testsuite", name=outcome.symbol, time=f"{outcome.seconds:.3f}", **written)
    for check in outcome.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=outcome.symbol, name=check["case"])
        if not check["passed"]:
            ElementTree.SubElement(case, "failure", message=check["reason"])
    for tag, reason in (("error", outcome.error), ("skipped", outcome.skipped)):
        if reason:
            case = ElementTree.SubElement(suite, "testcase", classname=outcome.symbol, name="load")
            ElementTree.SubElement(case, tag, message=reason)
    return suite
