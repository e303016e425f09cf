"""Faults of the mma.sync kernels that copy by way of registers, as data: see benchmarks/faults.py."""

from __future__ import annotations

from benchmarks.fault_table_sm80 import NUMBERS, RAGGED, TAIL, WHOLE, Fault

_SMALL = {"arch": "sm_75", "tile": "32x32x16", "warp_tile": "16x16", "raster": "row"}
AHEAD = {**_SMALL, "stages": "2", "fragment_stages": "2"}
IN_TURN = {**_SMALL, "stages": "2", "fragment_stages": "1"}
ONE_STAGE = {**_SMALL, "stages": "1", "fragment_stages": "1"}
SYNCHRONOUS = {**ONE_STAGE, "prefetch": "off"}
SCALAR = {**AHEAD, "copy": "scalar", "align": "1", "layout": "nt"}

MAINLOOP, COPY = "hgemm/mainloop_sm75.cuh", "hgemm/staged_copy.cuh"

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
        COPY,
        "    return rows > 0 && owns(pass_row, pass_column) ? columns : 0;",
        "    return owns(pass_row, pass_column) ? columns : 0;",
        SCALAR,
        RAGGED,
        ("bounds", NUMBERS),
    ),
)
