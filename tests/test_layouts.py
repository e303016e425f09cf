"""Shared-memory layouts: placements are one-to-one, keep vectors whole, and have the predicted bank conflicts."""

from __future__ import annotations

import itertools

import pytest
import specs
from hypothesis import given, settings
from hypothesis import strategies as st
from pycute import Swizzle

from generator.families.mma_sync import rules
from generator.layouts import OperandTile, conflict_free, conflicts, read_conflicts, write_conflicts
from generator.planner import plan_of, resolve
from generator.spec import Smem

PLAN = plan_of(resolve({"arch": "sm_80"}))
SWIZZLES = [
    Smem("xor", numbers)
    for numbers in itertools.product(range(10), range(15), range(15))
    if not rules.swizzle(PLAN.replace(smem_a=Smem("xor", numbers)))
]
"""All that the rules accept."""

extents = st.integers(1, 16).map(lambda i: 16 * i)
operands = st.builds(
    lambda chunk, element_bytes, **others: OperandTile(
        chunk=min(chunk, 16 // element_bytes), element_bytes=element_bytes, **others
    ),
    element_bytes=st.sampled_from([2, 4]),
    k_major=st.booleans(),
    rows=extents,
    columns=extents,
    chunk=specs.aligns,
    threads=st.integers(1, 32).map(lambda warps: 32 * warps),
    smem=st.sampled_from(
        [Smem("none"), *SWIZZLES, *(Smem(kind, (pad,)) for kind in ("pad", "pad_alternate") for pad in range(8, 65, 8))]
    ),
)


@pytest.mark.parametrize("smem", SWIZZLES, ids=str)
def test_swizzles_are_bijective_and_keep_16_byte_pieces(smem: Smem) -> None:
    tile = OperandTile(True, 16, 16, 8, 32, smem)
    swizzle = Swizzle(*smem.swizzle)
    placed = [swizzle(element) for element in range(tile.period)]
    assert sorted(placed) == [*range(tile.period)]
    assert all(placed[element] == placed[element // 8 * 8] + element % 8 for element in range(tile.period))
    assert [swizzle(tile.period * 3 + element) for element in range(tile.period)] == [
        3 * tile.period + p for p in placed
    ]


def test_rejected_swizzles_are_invalid() -> None:
    """Of the small ones all; those beyond 2^13 elements are not served."""
    for bits, base, shift in itertools.product(range(1, 4), range(1, 5), range(1, 5)):
        mask, period = ((1 << bits) - 1) << base, 1 << (bits + base + shift)
        placed = [element ^ (element >> shift & mask) for element in range(period)]
        whole = all(placed[element] == placed[element // 8 * 8] + element % 8 for element in range(period))
        apart = mask & mask << shift == 0  # the bits that are XORed and those that they are XORed with
        assert (Smem("xor", (bits, base, shift)) in SWIZZLES) == (whole and apart)


@settings(max_examples=80, deadline=None)
@given(operands)
def test_elements_of_a_stage_have_distinct_addresses(tile: OperandTile) -> None:
    places = [tile.offset(row, column) for row in range(tile.rows) for column in range(tile.columns)]
    assert len({*places}) == len(places) and min(places) >= 0 and max(places) < tile.stage_elements
    assert tile.stage_elements * tile.element_bytes % 128 == 0


@settings(max_examples=80, deadline=None)
@given(operands, st.data())
def test_ldmatrix_rows_are_whole_and_aligned(tile: OperandTile, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, tile.rows - 1))
    piece = 16 // tile.element_bytes
    column = data.draw(st.integers(0, tile.columns // piece - 1)) * piece
    first = tile.offset(row, column)
    assert first % piece == 0
    assert [tile.offset(row, column + e) for e in range(piece)] == [*range(first, first + piece)]


def test_two_rows_of_32_elements_share_one_padding_of_8() -> None:
    """Both operands of a CTA tile of 256 x 256 x 32 then take 36 KiB."""
    tile = OperandTile(True, 256, 32, 8, 256, Smem("pad_alternate", (8,)))
    assert [tile.offset(row, 0) for row in range(5)] == [0, 32, 72, 104, 144]
    assert 2 * tile.stage_elements * 2 == 36 * 1024
    assert read_conflicts(tile) == write_conflicts(tile) == 0


@pytest.mark.parametrize("columns", range(16, 257, 16))
def test_alternate_padding_needs_rows_of_half_the_banks(columns: int) -> None:
    """Pairs of rows then fill them; other rows meet the second one in the same banks, or the next pair."""
    tile = OperandTile(True, 64, columns, 8, 128, Smem("pad_alternate", (8,)))
    assert (read_conflicts(tile) == 0) == (columns % 64 == 32)


# ---- Bank conflicts -------------------------------------------------------------------------------------------------


def extra_passes(accesses: list[int], elements: int, size: int) -> int:
    """Count passes beyond the first, one quarter, half or whole warp at a time: the most words that one bank has to give."""
    lanes = 128 // max(4, elements * size)
    total = 0
    for first in range(0, len(accesses), lanes):
        phase = accesses[first : first + lanes]
        words = {(element + e) * size // 4 for element in phase for e in range(elements)}
        total += max(sum(word % 32 == bank for word in words) for bank in range(32)) - 1
    return total


@settings(max_examples=30, deadline=None)
@given(operands)
def test_conflicts_match_an_independent_count(tile: OperandTile) -> None:
    size, piece = tile.element_bytes, 16 // tile.element_bytes
    if tile.k_major or size == 2:  # by ldmatrix, 8 rows at once
        matrices = itertools.product(range(0, tile.rows, 8), range(0, tile.columns, piece))
        reads = [[tile.offset(row + lane, column) for lane in range(8)] for row, column in matrices]
        expected = sum(extra_passes(read, piece, size) for read in reads)
    else:  # registers of mma.m16n8k8: lane l has k = l % 4 and m or n = l / 4
        registers = itertools.product(range(0, tile.rows, 4), range(0, tile.columns, 8))
        reads = [[tile.offset(k + lane % 4, at + lane // 4) for lane in range(32)] for k, at in registers]
        expected = sum(extra_passes(read, 1, size) for read in reads)
    assert read_conflicts(tile) == expected
    per_row = tile.columns // tile.chunk
    rows = max(1, tile.threads // per_row)
    chunks = [tile.offset(i // per_row, i % per_row * tile.chunk) for i in range(min(rows, tile.rows) * per_row)]
    warps = [chunks[i : i + 32] for i in range(0, len(chunks), 32)]
    assert write_conflicts(tile) == sum(extra_passes(warp, tile.chunk, size) for warp in warps)


@pytest.mark.parametrize(
    ("step_bytes", "width", "expected"),
    [(4, 4, 0), (128, 4, 31), (8, 4, 1), (0, 4, 0), (16, 16, 0), (32, 16, 4), (128, 16, 28)],
)
def test_conflicts_of_strides_match_the_textbook(step_bytes: int, width: int, expected: int) -> None:
    assert conflicts([lane * step_bytes for lane in range(32)], width) == expected


@given(st.lists(st.integers(0, 200), min_size=1, max_size=32), st.sampled_from([1, 2, 4, 8]))
def test_conflicts_of_random_accesses_match_an_independent_count(starts: list[int], width: int) -> None:
    """Of halves at any place, also where an access begins within the width of another one."""
    assert conflicts([2 * start for start in starts], 2 * width) == extra_passes(starts, width, 2)


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("extent", range(16, 257, 16))
def test_planned_placements_have_no_read_conflicts(k_major: bool, extent: int, element_bytes: int) -> None:
    """For every extent, and none in copies either where copies are of 16 bytes."""
    chunk = 16 // element_bytes
    for depth in range(2 * chunk, 8 * chunk + 1, 2 * chunk):
        rows, columns = (extent, depth) if k_major else (depth, extent)
        smem = conflict_free(k_major, rows, columns, chunk, 128, element_bytes)
        tile = OperandTile(k_major, rows, columns, chunk, 128, smem, element_bytes)
        assert read_conflicts(tile) == 0, (smem, rows, columns)
        assert write_conflicts(tile) == 0, (smem, rows, columns)
