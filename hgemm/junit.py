"""JUnit files, which CI systems read. All commands that build, check or measure write them with --junit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import click

from hgemm.disk import write_atomically
from hgemm.options import FILE

Status = Literal["passed", "failure", "error", "skipped"]
_COUNTED: dict[Status, str] = {"failure": "failures", "error": "errors", "skipped": "skipped"}


@dataclass(frozen=True)
class JunitTest:
    """A test: what ran, how it ended, and why. `message` is the reason of a test that did not pass, or what another one printed."""

    name: str
    status: Status = "passed"
    message: str = ""


@dataclass(frozen=True)
class JunitSuite:
    """Tests of one thing, such as a kernel. `seconds` is their time, if it is known."""

    name: str
    tests: tuple[JunitTest, ...]
    seconds: float | None = None


junit_option = click.option("--junit", type=FILE, metavar="FILE", help="Also write a JUnit file.")
"""Callers check the file with hgemm.disk.require_writable before long work."""


def write_junit(path: Path, command: str, suites: Iterable[JunitSuite]) -> None:
    """Write the suites of a command. Raises: LibraryError if the file cannot be written."""
    root = ElementTree.Element("testsuites", name=command)
    for suite in suites:
        root.append(_element(suite))
    ElementTree.indent(root)
    write_atomically(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True), "--junit")


def _element(suite: JunitSuite) -> ElementTree.Element:
    statuses = [test.status for test in suite.tests]
    attributes = {"name": suite.name, "tests": str(len(statuses))}
    attributes |= {name: str(statuses.count(status)) for status, name in _COUNTED.items()}
    if suite.seconds is not None:
        attributes["time"] = f"{suite.seconds:.3f}"
    element = ElementTree.Element("testsuite", attributes)
    for test in suite.tests:
        case = ElementTree.SubElement(element, "testcase", classname=suite.name, name=test.name)
        if test.status != "passed":
            ElementTree.SubElement(case, test.status, message=test.message)
        elif test.message:
            ElementTree.SubElement(case, "system-out").text = test.message
    return element
