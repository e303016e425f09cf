"""Anchors of seeded faults: the places they find, their edits, and their errors if no place matches, or several."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.anchors import KERNEL, AnchorError, At, Edit, Program, Text
from benchmarks.fault_table import FAULTS, Fault
from benchmarks.faults import faulty_templates, unresolved

HEADER = """
#define HGEMM_DEVICE inline  // { an opened brace
namespace hgemm {

template <class T, int N = (3 > 2 ? 1 : 0)>
struct Ring {
  static constexpr int stages = N < 4 ? N : 4;  // load(0);
  struct alignas(16) Slot { T value; };
  T* first;
  HGEMM_DEVICE explicit Ring(T* from, int count) : first(from + count * 2), slot{count} {}

  HGEMM_DEVICE void advance() {
    load(stage, "}", 1 + 2);   // the first
    if (stage > 0) {
      wait<stages - 1>();
    } else {
      barrier();
    }
    do {
      if constexpr (stages > 1) wait<stages - 1, 2>(); /* } */
      for (int i = 0; i < 4; ++i) load(i, pair(1, 2), i < 2);
    } while (more());
  }
  HGEMM_DEVICE bool operator==(Ring const& other) const { return first == other.first; }
  Slot slot;
};

HGEMM_DEVICE void advance(int by) { step(by); }

}  // namespace hgemm
"""


def edited(edit: Edit, text: str = HEADER) -> str:
    """Return the lines of the text that an edit leaves or makes, without those that it keeps."""
    after = Program({"a.cuh": text}).edited((edit,)).texts["a.cuh"]
    kept = set(text.split("\n"))
    return "\n".join(line.strip() for line in after.split("\n") if line not in kept)


def test_functions_and_structs_are_found_by_qualified_names() -> None:
    names = {scope.name for scope in Text(HEADER).scopes}
    assert names == {
        "hgemm::Ring",
        "hgemm::Ring::Slot",
        "hgemm::Ring::Ring",
        "hgemm::Ring::advance",
        "hgemm::Ring::operator==",
        "hgemm::advance",
    }


@pytest.mark.parametrize(
    "edit, line",
    [
        (At("advance", "step(").argument(0, "@ + 1"), "HGEMM_DEVICE void advance(int by) { step(by + 1); }"),
        (At("Ring::advance", "load(stage").argument(2, "0"), 'load(stage, "}", 0);   // the first'),
        (
            At("Ring::advance", "load(i").argument(2, "true"),
            "for (int i = 0; i < 4; ++i) load(i, pair(1, 2), true);",
        ),
        (
            At("Ring::advance", "load(i").swap_arguments(0, 1),
            "for (int i = 0; i < 4; ++i) load(pair(1, 2), i, i < 2);",
        ),
        (
            At("Ring::advance", "wait<", after="do {").template_argument(0, "0"),
            "if constexpr (stages > 1) wait<0, 2>(); /* } */",
        ),
        (At("Ring::advance", "wait<", occurrence=1).template_argument(0, "@ + 1"), "wait<stages - 1 + 1>();"),
        (At("Ring::Ring", "from + ...)").replace("@1)"), None),
        (At("Ring", "N < 4 ? ... :").replace("@1 +"), "static constexpr int stages = N + 4;  // load(0);"),
        (At("Ring::advance", "if (stage > 0").argument(0, "true"), "if (true) {"),
        (At("Ring::advance", "barrier()").insert_before("fence();"), "fence(); barrier();"),
        (At("Ring::advance", "barrier()").insert_after("fence();"), "barrier(); fence();"),
        (At("", "int by").replace("long by"), "HGEMM_DEVICE void advance(long by) { step(by); }"),
    ],
)
def test_an_edit_changes_one_place(edit: Edit, line: str | None) -> None:
    expected = line or "HGEMM_DEVICE explicit Ring(T* from, int count) : first(count * 2), slot{count} {}"
    assert edited(edit) == expected


def test_a_statement_is_removed_with_its_condition_and_its_comment() -> None:
    def without(edit: Edit) -> list[str]:
        after = Program({"a.cuh": HEADER}).edited((edit,)).texts["a.cuh"]
        return [line.strip() for line in HEADER.split("\n") if line not in after.split("\n")]

    assert without(At("Ring::advance", "load(stage").drop()) == ['load(stage, "}", 1 + 2);   // the first']
    assert without(At("Ring::advance", "load(i").drop()) == ["for (int i = 0; i < 4; ++i) load(i, pair(1, 2), i < 2);"]
    assert without(At("Ring::advance", "if (stage").drop())[:2] == ["if (stage > 0) {", "wait<stages - 1>();"]
    assert without(At("Ring::advance", "stages > 1").drop()) == [
        "if constexpr (stages > 1) wait<stages - 1, 2>(); /* } */"
    ]
    after = Program({"a.cuh": HEADER}).edited((At("Ring::advance", "stages > 1").swap_with_next(),)).texts["a.cuh"]
    assert after.index("load(i") < after.index("wait<stages - 1, 2>")


def test_anchors_ignore_white_space_and_comments() -> None:
    spread = HEADER.replace("load(i, pair(1, 2), i < 2)", "load (i,  // the index\n   pair( 1,2 ) ,i<2)")
    assert "pair( 1,2 ) ,false" in edited(At("advance", "load(i, pair(1, 2), i < 2)").argument(2, "false"), spread)


@pytest.mark.parametrize(
    "at, message",
    [
        (
            At("retreat", "load(stage"),
            "no function or struct is named 'retreat'; 'load(stage' is in hgemm::Ring::advance",
        ),
        (
            At("Ring::Ring", "barrier()"),
            "'barrier()' in 'Ring::Ring' is not found; 'barrier()' is in hgemm::Ring::advance",
        ),
        (At("advance", "fence()"), "'fence()' in 'advance' is not found; no function has 'fence()'"),
        (At("Ring::advance", "load("), "found 2 times .a.cuh:13, a.cuh:21.: make the pattern or the name longer"),
        (At("Ring::advance", "load(", occurrence=3), "found 2 times, not 3"),
    ],
)
def test_an_anchor_must_fit_one_place(at: At, message: str) -> None:
    with pytest.raises(AnchorError, match=message.replace("(", r"\(").replace(")", r"\)")):
        Program({"a.cuh": HEADER}).edited((at.drop(),))


def test_an_edit_must_change_something() -> None:
    with pytest.raises(AnchorError, match="changes nothing"):
        Program({"a.cuh": HEADER}).edited((At("advance", "step(").argument(0, "by"),))


def test_headers_are_those_that_the_kernel_includes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.cuh").write_text('#include "b.cuh"\n#include <two.cuh>\n#include <vector>\n')
    (tmp_path / "one" / "b.cuh").write_text("int b() { return 1; }\n")
    (tmp_path / "two.cuh").write_text("#include <one/a.cuh>\n")
    (tmp_path / "three.cuh").write_text("int b() { return 3; }\n")
    program = Program.of("#include <one/a.cuh>\nint k() { return b(); }\n", tmp_path)
    assert set(program.texts) == {KERNEL, "one/a.cuh", "one/b.cuh", "two.cuh"}
    changed = program.edited((At("b", "1").replace("2"), At("k", "b()").replace("0"))).changes_from(program)
    assert changed == {"one/b.cuh": "int b() { return 2; }\n", KERNEL: "#include <one/a.cuh>\nint k() { return 0; }\n"}


def test_the_anchors_of_all_faults_resolve() -> None:
    """Fails if a header was changed without the fault table: `python -m benchmarks.faults --resolve` says the same."""
    assert unresolved(FAULTS) == []


def test_a_fault_without_its_anchor_is_named() -> None:
    missing = Fault("none", At("no_such_function", "x").drop(), FAULTS[0].options, "", ())
    with pytest.raises(LookupError, match="fault 'none': no function or struct is named"), faulty_templates(missing):
        pass
