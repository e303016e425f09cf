"""Faults in PTX: how they are seeded, and the rules for those that change nothing."""

from __future__ import annotations

import pytest

from benchmarks.ptx_equivalence import equivalence
from benchmarks.ptx_faults import KERNELS, PtxFault, faults_of
from generator.ptx.parser import Instruction, parse
from generator.sweep import sweep

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u32 kernel_param_0)
{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .shared .align 8 .b8 words[256];
  mov.u32 %r1, words;
"""
STORE, LOAD, BARRIER = "st.shared.u32 [%r1], %r2;", "ld.shared.u32 %r3, [%r1];", "bar.sync 0;"
AGAIN = "setp.lt.u32 %p1, %r2, 9;\n@%p1 bra $L_loop;"


def ptx_of(*lines: str) -> str:
    return HEAD + "\n".join(lines) + "\nret;\n}\n"


def dropped(ptx: str) -> list[bool]:
    """Return for each barrier whether dropping it changes nothing."""
    kernel = parse(ptx).kernel()
    barriers = [at for at, one in enumerate(kernel.body) if isinstance(one, Instruction) and one.opcode == "bar.sync"]
    return [bool(equivalence(kernel, at, "drop")) for at in barriers]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((STORE, BARRIER, LOAD), [False]),
        ((STORE, BARRIER, "add.u32 %r2, %r2, 1;", BARRIER, LOAD), [True, True]),  # either, not both
        ((STORE, BARRIER, STORE, BARRIER, LOAD), [False, False]),
        ((STORE, BARRIER), [True]),
        ((STORE, "bar.sync 1;", BARRIER, LOAD), [False, False]),
        ((STORE, "$L_loop:", BARRIER, LOAD, BARRIER, STORE, AGAIN, BARRIER, LOAD), [False, False, False]),
        ((STORE, "$L_loop:", LOAD, BARRIER, AGAIN, BARRIER, STORE), [False, True]),
        (("@%p1 bra $L_on;", STORE, BARRIER, "$L_on:", BARRIER, LOAD), [True, False]),
    ],
)
def test_a_barrier_is_not_needed_next_to_an_equal_one(lines: tuple[str, ...], expected: list[bool]) -> None:
    assert dropped(ptx_of(*lines)) == expected


def by_way(ptx: str) -> dict[str, list[PtxFault]]:
    found: dict[str, list[PtxFault]] = {}
    for fault in faults_of(ptx):
        found.setdefault(fault.way, []).append(fault)
    return found


def test_an_instruction_moves_behind_the_next_access() -> None:
    faults = by_way(ptx_of(STORE, BARRIER, "add.u32 %r2, %r2, 1;", LOAD, "@%p1 bra $L_on;", STORE, "$L_on:", BARRIER))
    (moved,) = faults["move"]
    lines = moved.ptx.splitlines()
    assert lines.index(BARRIER) == lines.index(LOAD) + 1 and parse(moved.ptx).kernel()
    assert len(faults["drop"]) == 2 and len(faults["flip"]) == 1


def test_mbarrier_fences_serve_clusters_and_tma() -> None:
    fence = "fence.mbarrier_init.release.cluster;"
    init = "mbarrier.init.shared::cta.b64 [%r1], 1;"
    alone = by_way(ptx_of(init, fence, BARRIER, LOAD))["drop"]
    assert "only threads of the CTA" in next(fault for fault in alone if "fence" in fault.instruction).equivalent
    remote = ptx_of(init, fence, BARRIER, "mapa.shared::cluster.u32 %r4, %r1, %r2;", LOAD)
    assert not next(fault for fault in by_way(remote)["drop"] if "fence" in fault.instruction).equivalent


def test_the_kernels_of_the_table_are_legal_and_differ() -> None:
    plans = {name: sweep([options]).plans for name, options in KERNELS.items()}
    assert all(len(found) == 1 for found in plans.values()) and len({*plans.values()}) == len(KERNELS) == 13
