"""Results as files of other programs' forms: CSV, JUnit."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from hgemm.bench.results import Result, line, row
from hgemm.bench.work import Work
from hgemm.disk import write_whole


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write a row a result. Raises LibraryError where the file cannot be written."""
    rows = [row(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode(), "--csv")


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
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True), "--junit")
