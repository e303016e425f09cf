"""Pictures agree with the layouts, and `hgemm draw` writes them."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from conftest import ROOT

from generator.cli import inspect as draw
from generator.errors import RequestError
from generator.families.base import Plan
from generator.layouts import conflicts
from generator.planner import plan_of, resolve
from generator.report.draw import Svg, fragments_of, group_of, picture_of, png_of, unswizzled, view_of
from generator.spec import parse_field
from generator.store.library import Library


def plan(text: str) -> Plan:
    return plan_of(
        resolve({name: parse_field(name, value) for name, value in (word.split("=") for word in text.split())})
    )


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_ldmatrix_lanes_cover_four_matrices_once(layout: str) -> None:
    made = plan(f"arch=89 cta_tile=128x128x32 layout={layout}")
    for name, tile in (("A", made.a), ("B", made.b)):
        view = view_of(name, tile)
        places = [view.lane_place(lane) for lane in range(32)]
        assert {*places} == {(row, piece) for row in range(16) for piece in range(2)}
        for first in range(0, 32, 8):
            groups = [group_of(tile, *place) for place in places[first : first + 8]]
            offsets = [tile.offset(row, piece * 8) * 2 for row, piece in places[first : first + 8]]
            assert max(Counter(groups).values()) - 1 == conflicts(offsets, 16) == 0
            plain = [group_of(unswizzled(tile), *place) for place in places[first : first + 8]]
            assert max(Counter(plain).values()) > 1


def test_registers_of_a_follow_the_order_of_matrices() -> None:
    """Matrix i of an ldmatrix.x4 lands in register i: its rows are m for A, n for B, and its pieces k."""
    made = plan("arch=89 cta_tile=128x128x32")
    a, b, _ = fragments_of(16, True)
    for lane in range(32):
        matrix = lane // 8
        row, piece = view_of("A", made.a).lane_place(lane)
        assert a.owner(row, piece * 8) == (row % 8 * 4, matrix)
        row, piece = view_of("B", made.b).lane_place(lane)
        assert b.owner(piece * 8, row % 8) == (row % 8 * 4, matrix % 2)


def test_tf32_fragments_match_ldmatrix() -> None:
    """A row of a matrix is 16 bytes, 4 elements: lane l gets element l % 4 of row l / 4."""
    made = plan("arch=89 cta_tile=128x128x16 dtype_a=tf32")
    a, b, _ = fragments_of(8, True, neighbours=1)
    for lane in range(32):
        matrix = lane // 8
        row, piece = view_of("A", made.a).lane_place(lane)
        assert [a.owner(row, piece * 4 + e) for e in range(4)] == [(row % 8 * 4 + e, matrix) for e in range(4)]
        row, piece = view_of("B", made.b).lane_place(lane)
        assert [b.owner(piece * 4 + e, row % 8) for e in range(4)] == [(row % 8 * 4 + e, matrix % 2) for e in range(4)]


def test_tf32_is_drawn_if_ldmatrix_or_wgmma_reads_it() -> None:
    for text, words in (
        ("arch=89 dtype_a=tf32", "each element of A and B and each pair of D"),
        ("arch=90a dtype_a=tf32", "for 8 of k"),
    ):
        picture = picture_of(plan(text), "a_symbol")
        assert words in picture and "4 elements of tf32" in picture and ElementTree.fromstring(picture) is not None
    with pytest.raises(RequestError, match="without ldmatrix"):
        picture_of(plan("arch=89 dtype_a=tf32 layout=nn"), "a_symbol")


@pytest.mark.parametrize(("mma_k", "mma_n"), [(8, 8), (16, 8), (16, 16)])
def test_all_lanes_hold_equally_many_elements(mma_k: int, mma_n: int) -> None:
    for fragment in fragments_of(mma_k, True, mma_n=mma_n):
        rows, columns = fragment.extents
        lanes = Counter(fragment.owner(row, column)[0] for row in range(rows) for column in range(columns))
        assert [*lanes.values()] == [rows * columns // 32] * 32


def test_wmma_fragments_are_two_instructions_side_by_side() -> None:
    a, b, d = fragments_of(16, True)
    wide_a, wide_b, wide_d = fragments_of(16, True, mma_n=16)
    assert wide_a == a
    for i, j in itertools.product(range(16), range(16)):
        lane, pair = b.owner(i, j % 8)
        assert wide_b.owner(i, j) == (lane, pair + j // 8 * 2)
        lane, pair = d.owner(i, j % 8)
        assert wide_d.owner(i, j) == (lane, pair + j // 8 * 2)


@pytest.mark.parametrize("fields", ["mma=wmma16", "smem_a=pad_alternate:8 smem_b=pad_alternate:8"])
def test_padded_operands_are_drawn_with_their_conflicts(fields: str) -> None:
    words = texts_of(picture_of(plan(f"arch=89 cta_tile=128x128x32 {fields}"), "hgemm_x"))
    assert words.count("Reading all of it once: 0 bank conflicts.") == 2 and words.count("1 pass") == 8
    assert ("D (m 16, n 16)" in words) == ("wmma16" in fields)


def texts_of(picture: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("text")]


def test_picture_is_valid_and_reproducible() -> None:
    made = plan("arch=89 cta_tile=128x128x32 acc=f16 layout=nt")
    text = picture_of(made, "hgemm_x")
    assert text == picture_of(made, "hgemm_x")
    root = ElementTree.fromstring(text)
    words = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    assert "hgemm_x" in words and sum(word.endswith("passes") for word in words) == 8 and words.count("1 pass") == 8
    assert words.count("Reading all of it once: 0 bank conflicts.") == 2


@pytest.mark.parametrize("fields", ["", " layout=nt", " swap_ab=true cta_tile=128x64x64"])
def test_wgmma_kernels_are_drawn_by_boxes(fields: str) -> None:
    """Eight rows of 16 bytes meet in one bank group without the swizzle, and nowhere with it."""
    words = [
        "".join(node.itertext())
        for node in ElementTree.fromstring(picture_of(plan(f"arch=90a{fields}"), "hgemm_x")).iter()
        if node.tag.endswith("text")
    ]
    assert words.count("8 passes") == words.count("1 pass") == 8 and not any("lanes 0..7" in word for word in words)
    assert sum(word.startswith("One TMA box of") for word in words) == 2
    rows, columns = ("k", "m") if "layout=nt" in fields else ("m", "k")
    assert {f"{columns} 0, {rows} 0..7", f"{columns} 0, {rows} 8..15"} <= {*words}  # of A
    assert ("D (n 16, m 8)" if "swap_ab" in fields else "D (m 16, n 8)") in words


def test_text_is_escaped() -> None:
    svg = Svg()
    svg.text(0, 10, "a < b & c")
    assert "".join(ElementTree.fromstring(svg.document()).itertext()).strip() == "a < b & c"


def test_draw_takes_a_kernel_of_the_library(small_library: Library, tmp_path: Path) -> None:
    place = tmp_path / "tile.svg"
    arguments = ["hgemm_sm80_nt_*", "--library", str(small_library.folder)]
    printed = CliRunner().invoke(draw.draw_command, arguments)
    written = CliRunner().invoke(draw.draw_command, [*arguments, "--to", str(place)])
    assert printed.exit_code == written.exit_code == 0 and written.stdout == f"{place}\n"
    assert printed.stdout == place.read_text() and "hgemm_sm80_nt_" in printed.stdout
    several = CliRunner().invoke(draw.draw_command, ["hgemm_*", "--library", str(small_library.folder)])
    assert "matches 4 kernels" in str(several.exception)


def test_a_picture_is_written_as_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg = Svg()
    svg.text(10, 20, "$a$ < b & c")
    found = png_of(svg.document())
    assert found.startswith(b"\x89PNG") and len(found) > 500


def test_svg_is_written_to_svg_files_only(tmp_path: Path) -> None:
    done = CliRunner().invoke(draw.draw_command, ["hgemm_x", "--to", str(tmp_path / "tile.pdf")])
    assert isinstance(done.exception, RequestError) and "neither SVG nor PNG" in str(done.exception)
    assert not [*tmp_path.iterdir()]


def test_readme_picture_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import draw_swizzle

    assert (ROOT / "docs" / "swizzle.svg").read_text() == draw_swizzle.picture()
    sys.modules.pop("draw_swizzle")
