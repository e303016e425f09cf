"""Faults of the mma.sync kernels that copy by way of registers, as data: see benchmarks/faults.py."""

from __future__ import annotations

from benchmarks.fault_table_sm80 import NUMBERS, RAGGED, TAIL, WHOLE, Fault

_SMALL = {"arch": "sm_75", "tile": "32x32x16", "warp_tile": "16x16", "raster": "row"}
AHEAD = {**_SMALL, "stages": "2", "fragment_stages": "2"}
IN_TURN = {**_SMALL, "stages": "2", "fragment_stages": "1"}
ONE_STAGE = {**_SMALL, "stages": "1", "fragment_stages": "1"}
SYNCHRONOUS = {**ONE_STAGE, "prefetch": "off"}
SCALAR = {**AHEAD, "copy": "scalar", "align": "1", "layout": "nt"}
SHIFTED = {**AHEAD, "copy": "shifted", "align": "1"}
SHIFTED_ROWS = {**SHIFTED, "tile": "32x128x16", "warp_tile": "16x128", "layout": "nt"}
"""Threads whose rows of B are 4 apart."""

MAINLOOP, COPY, SHIFTED_COPY = "hgemm/mainloop_sm75.cuh", "hgemm/staged_copy.cuh", "hgemm/shifted_copy.cuh"

FAULTS_SM75 = (
    # ---- Barriers
    Fault(
        "staged: no barrier between k-tiles",
        MAINLOOP,
        "    atoms::cta_barrier();\n    write_stage",
        "    write_stage",
        AHEAD,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: the one stage is stored to while warps read it",
        MAINLOOP,
        "      if (stages == 1 && piece == 0) atoms::cta_barrier();  // all warps have read the k-tile\n",
        "",
        ONE_STAGE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: no barrier after the loop",
        MAINLOOP,
        "    } while (--k_tiles > 0);\n    atoms::cta_barrier();",
        "    } while (--k_tiles > 0);",
        IN_TURN,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: fragments read before the k-tile is there",
        MAINLOOP,
        "          begin();\n          if constexpr (!ahead) warp.read_first(fragments[0]);",
        "          if constexpr (!ahead) warp.read_first(fragments[0]);\n          begin();",
        IN_TURN,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: without prefetch, a k-tile stored before it is loaded",
        MAINLOOP,
        "if (!loads_ahead<Policy> && piece == 0) load_next();",
        "if (!loads_ahead<Policy> && piece == pieces - 1) load_next();",
        SYNCHRONOUS,
        WHOLE,
        (NUMBERS, "uninitialised", "poison"),
    ),
    # ---- Stages
    Fault(
        "staged: stored to the stage that is read",
        MAINLOOP,
        "    write_stage = Warp::next(write_stage);\n",
        "",
        AHEAD,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: stored to the other stage of B alone",
        MAINLOOP,
        "copy_b.store(shared.b[write_stage], piece - CopyA::pieces);",
        "copy_b.store(shared.b[0], piece - CopyA::pieces);",
        IN_TURN,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: a k-tile read behind into the next one",
        MAINLOOP,
        "warp.read_behind(now, block, product, k_blocks);",
        "warp.read_behind(now, block, product);",
        IN_TURN,
        WHOLE,
        ("race",),
    ),
    Fault(
        "staged: stored a piece late",
        MAINLOOP,
        "if (turn != first_store + piece * store_step) continue;",
        "if (turn != first_store + (piece + 1) * store_step) continue;",
        AHEAD,
        WHOLE,
        ("race", NUMBERS),
    ),
    # ---- Global memory
    Fault(
        "staged: a k-tile loaded that is not there",
        MAINLOOP,
        "if (k_tiles_to_load-- <= 0) {",
        "if (k_tiles_to_load-- < 0) {",
        AHEAD,
        TAIL,
        ("bounds",),
    ),
    Fault(
        "staged: the same k-tile loaded again",
        COPY,
        "    advance();\n",
        "",
        AHEAD,
        WHOLE,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "staged: rows past the edge are loaded",
        COPY,
        "owns(pass_row, pass_column) && along < extent_left;",
        "owns(pass_row, pass_column) && along <= extent_left;",
        AHEAD,
        "31x32x80,31x31x80",
        ("bounds",),
    ),
    Fault(
        "staged: chunks that k ends in are loaded whole",
        COPY,
        "elements(first + i, pass_column, k_left) >= chunk;",
        "elements(first + i, pass_column, k_left) > 0;",
        AHEAD,
        TAIL,
        ("bounds",),
    ),
    Fault(
        "staged: chunks that k ends in are left out",
        COPY,
        "    if constexpr (chunk > 1) copy_ends(stage, source + ahead * Chunks::k_tile_step, k_left);\n",
        "",
        AHEAD,
        TAIL,
        (NUMBERS,),
    ),
    Fault(
        "staged: elements past the edge of k are loaded one by one",
        "hgemm/operand.cuh",
        "    return rows > 0 && owns(pass_row, pass_column) ? columns : 0;",
        "    return owns(pass_row, pass_column) ? columns : 0;",
        SCALAR,
        RAGGED,
        ("bounds", NUMBERS),
    ),
    # ---- Shifted pieces
    Fault(
        "shifted: neighbours behind the matrix are loaded",
        SHIFTED_COPY,
        "pass_step + 2 * chunk - 1));",
        "pass_step + chunk - 1));",
        SHIFTED,
        RAGGED,
        ("bounds",),
    ),
    Fault(
        "shifted: neighbours before the matrix are loaded",
        SHIFTED_COPY,
        "return address >= first && address <= last_address;",
        "return address <= last_address;",
        SHIFTED,
        WHOLE,
        ("bounds",),
    ),
    Fault(
        "shifted: what reaches out of the matrix is left out",
        SHIFTED_COPY,
        "    if (by_element) copy_elements(stage, source - k_tile_step, Policy::tile_k);\n",
        "",
        SHIFTED,
        "32x32x49",
        (NUMBERS,),
    ),
    Fault(
        "shifted: the same of the last k-tile",
        SHIFTED_COPY,
        "    if (!inside && elements(0, 0, k_left) > 0) copy_elements(stage, tile, k_left);\n",
        "",
        SHIFTED,
        RAGGED,
        (NUMBERS,),
    ),
    Fault(
        "shifted: neighbours behind the end of k are multiplied",
        SHIFTED_COPY,
        "first_elements(whole, count));",
        "whole);",
        SHIFTED,
        "33x41x43",
        (NUMBERS,),
    ),
    Fault(
        "shifted: by words only",
        SHIFTED_COPY,
        "    if constexpr (row_align_bytes >= 4) return words;",
        "    return words;",
        SHIFTED,
        RAGGED,
        (NUMBERS,),
    ),
    Fault(
        "shifted: all rows as the first",
        SHIFTED_COPY,
        "row_step % chunk == 0 ? 0 :",
        "true ? 0 :",
        SHIFTED_ROWS,
        RAGGED,
        (NUMBERS,),
    ),
)
