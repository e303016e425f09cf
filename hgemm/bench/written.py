"""Results as files of other programs' forms: CSV, JUnit."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from hgemm.bench.results import Result, line, row
from hgemm.bench.work import Work
from hgemm.errors import LibraryError


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write a row a result. Raises LibraryError where the file cannot be written."""
    rows = [row(result) for result in results]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise LibraryError(f"cannot write {path}: {error.strerror or error}") from None


def write_junit(path: Path, results: Sequence[Result]) -> None:
    """Write a suite a group and a test a result, which fails where ours is wrong. Raises LibraryError as above."""
    root = ElementTree.Element("testsuites", name="hgemm bench")
    for group in dict.fromkeys(result["work"]["group"] for result in results):
        chosen = [result for result in results if result["work"]["group"] == group]
        suite = ElementTree.SubElement(root, "testsuite", name=group, tests=str(len(chosen)))
        for result in chosen:
            name = f"{Work(**result['work']).key} {result['state']}"
            case = ElementTree.SubElement(suite, "testcase", classname=group, name=name)
            if not result.get("ours"):
                ElementTree.SubElement(case, "skipped", message=line(result))
            elif result["ours"] in result["refused"]:
                ElementTree.SubElement(case, "failure", message=result["refused"][result["ours"]])
            else:
                ElementTree.SubElement(case, "system-out").text = line(result)
    ElementTree.indent(root)
    try:
        path.write_bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
    except OSError as error:
        raise LibraryError(f"cannot write {path}: {error.strerror or error}") from None
