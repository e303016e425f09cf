"""hgemm.junit: the files of --junit. The verbs' own tests read those that the verbs write."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgemm.errors import HgemmError
from hgemm.junit import JunitSuite, JunitTest, write_junit

STATUSES = ("passed", "failure", "error", "skipped")
TESTS = st.lists(
    st.tuples(st.sampled_from(STATUSES), st.text(st.characters(codec="ascii", categories=["L", "N", "P"])))
)


@given(tests=TESTS)
def test_a_suite_counts_its_tests_and_keeps_their_reasons(
    tmp_path_factory: pytest.TempPathFactory, tests: list
) -> None:
    path = tmp_path_factory.mktemp("junit") / "report.xml"
    suite = JunitSuite("one", tuple(JunitTest(str(at), *test) for at, test in enumerate(tests)), 1.5)
    write_junit(path, "hgemm verify", [suite, JunitSuite("none", ())])
    root = ElementTree.parse(path).getroot()
    one, none = root
    counts = {name: int(one.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    statuses = [status for status, _ in tests]
    assert list(counts.values()) == [len(tests), *(statuses.count(status) for status in STATUSES[1:])]
    assert float(one.get("time")) == 1.5 and none.get("time") is None and none.get("tests") == "0"
    for case, (status, message) in zip(one, tests, strict=True):
        found = [(child.tag, child.get("message")) for child in case if child.tag != "system-out"]
        assert found == ([] if status == "passed" else [(status, message)])


def test_unwritable_junit_file_gives_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(HgemmError, match="cannot write") as raised:
        write_junit(tmp_path / "no" / "report.xml", "hgemm run", [])
    assert "\n" not in str(raised.value)
