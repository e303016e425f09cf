"""Faults of the mma.sync kernels, as data: see benchmarks/faults.py."""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS = "numbers"
"""What catches a fault where the executor found nothing, and D is wrong."""

# ---- The kernels that faults are seeded into -------------------------------------------------------------------------

_SMALL = {
    "arch": "sm_80",
    "tile": "32x32x16",
    "warp_tile": "16x16",
    "stages": "3",
    "fragment_stages": "2",
    "raster": "row",
}
PIPELINED = {**_SMALL, "store": "smem"}
DIRECT = {**_SMALL, "store": "direct"}
IN_PLACE = {**_SMALL, "tile": "96x32x16", "warp_tile": "96x16", "fragment_stages": "1", "stages": "4"}
ONE_STAGE = {**_SMALL, "fragment_stages": "1", "stages": "1"}
SPLIT = {**_SMALL, "schedule": "split_k:3"}
PROMOTED = {**_SMALL, "acc": "f16_promoted"}
BIASED = {**_SMALL, "bias": "row"}
TRANSPOSED = {**_SMALL, "layout": "nt"}
NARROW = {**_SMALL, "align": "4"}
WMMA = {**_SMALL, "mma": "wmma16"}

WHOLE, RAGGED, TAIL, BATCHES = "32x64x80", "33x41x40", "32x32x75", "32x64x32@3"


@dataclass(frozen=True)
class Fault:
    """One fault. Fields: the text `before` stands once in `file` of the templates and becomes `after`; `options` are of the
    kernel that is built, as `generate` takes them; `caught_by` are the findings, or NUMBERS, of which one must be there."""

    name: str
    file: str
    before: str
    after: str
    options: dict[str, str]
    shapes: str
    caught_by: tuple[str, ...]


MAINLOOP, OPERAND, EPILOGUE = "hgemm/mainloop_sm80.cuh", "hgemm/operand.cuh", "hgemm/epilogue.cuh"
PRODUCTS = "hgemm/warp_products.cuh"
SPLIT_K, GEMM, SCHEDULER, SUMS = (
    "hgemm/split_k.cuh",
    "hgemm/gemm.cuh",
    "hgemm/scheduler.cuh",
    "hgemm/accumulators.cuh",
)

FAULTS_SM80 = (
    # ---- Waiting for copies
    Fault(
        "one cp.async wait less, in the loop",
        MAINLOOP,
        "advance();\n          atoms::cp_async_wait<stages_ahead - 1>();",
        "advance();\n          atoms::cp_async_wait<stages_ahead>();",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "one cp.async wait less, before the loop",
        MAINLOOP,
        "Fragments fragments[Policy::fragment_stages];\n    atoms::cp_async_wait<stages_ahead - 1>();",
        "Fragments fragments[Policy::fragment_stages];\n    atoms::cp_async_wait<stages_ahead>();",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no wait in a loop of one stage",
        MAINLOOP,
        "do {\n      atoms::cp_async_wait<0>();\n      atoms::cta_barrier();\n      if constexpr (stages > 1)",
        "do {\n      atoms::cta_barrier();\n      if constexpr (stages > 1)",
        ONE_STAGE,
        WHOLE,
        ("race",),
    ),
    Fault("commit missing", MAINLOOP, "    atoms::cp_async_commit();\n", "", PIPELINED, WHOLE, ("race",)),
    Fault(
        "no wait after the loop",
        MAINLOOP,
        "    atoms::cp_async_wait<0>();\n    atoms::cta_barrier();\n  }\n\n  // Copy, wait",
        "    atoms::cta_barrier();\n  }\n\n  // Copy, wait",
        PIPELINED,
        WHOLE,
        ("race", "pending"),
    ),
    # ---- Barriers
    Fault(
        "no barrier in the loop",
        MAINLOOP,
        "advance();\n          atoms::cp_async_wait<stages_ahead - 1>();\n          atoms::cta_barrier();",
        "advance();\n          atoms::cp_async_wait<stages_ahead - 1>();",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no barrier before the loop",
        MAINLOOP,
        "    atoms::cta_barrier();  // the last k-tile, which copy_last() may have stored, is there\n",
        "",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no barrier after the loop",
        MAINLOOP,
        "    atoms::cp_async_wait<0>();\n    atoms::cta_barrier();\n  }\n\n  // Copy, wait",
        "    atoms::cp_async_wait<0>();\n  }\n\n  // Copy, wait",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no barrier before the one stage is filled again",
        MAINLOOP,
        "  HGEMM_DEVICE void refill() {\n    atoms::cta_barrier();\n",
        "  HGEMM_DEVICE void refill() {\n",
        ONE_STAGE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "rows staged before the last ones are stored",
        EPILOGUE,
        "store_rows(rows, row_first + turn * staged_rows);\n      Threads::barrier();",
        "store_rows(rows, row_first + turn * staged_rows);",
        {**PIPELINED, "warp_tile": "32x16"},
        WHOLE,
        ("race",),
    ),
    Fault(
        "rows stored before they are staged",
        EPILOGUE,
        "      Threads::barrier();\n      store_rows",
        "      store_rows",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    # ---- Stages
    Fault(
        "stage overwritten one k-tile early",
        MAINLOOP,
        "pipelined ? stages - stages_in_use : 1;",
        "pipelined ? stages : 1;",
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "stage overwritten while its last fragments are read",
        MAINLOOP,
        "stages == 1 || ahead ? 1 : 2;",
        "1;",
        IN_PLACE,
        "96x32x112",
        ("race",),
    ),
    Fault(
        "fragments of the stage before",
        PRODUCTS,
        "int const stage = next_block == 0 ? following : read_stage;",
        "int const stage = read_stage;",
        PIPELINED,
        WHOLE,
        ("race", NUMBERS),
    ),
    # ---- Addresses in shared memory
    Fault(
        "swizzle on the side of the copies only",
        OPERAND,
        "return Layout::at(stage, linear, delta);",
        "return stage + linear + delta;",
        {**PIPELINED, "tile": "32x32x32", "smem": "xor:2,3,3"},
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "swizzle on the side of the reads only",
        OPERAND,
        "return Layout::place(linear, to_row(pass_row) + pass_column * column_step);",
        "return linear + to_row(pass_row) + pass_column * column_step;",
        {**PIPELINED, "tile": "32x32x32", "smem": "xor:2,3,3"},
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "columns for the pitch of a padded stage",
        OPERAND,
        "linear = Layout::linear(row(), column());",
        "linear = row() * Layout::columns + column();",
        {**PIPELINED, "smem": "pad:8"},
        WHOLE,
        ("uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "fragments of WMMA in the order of the other operand",
        "hgemm/wmma_reader.cuh",
        "atoms::wmma_load<In, OF_A, Operand::k_major == OF_A>(",
        "atoms::wmma_load<In, OF_A, Operand::k_major>(",
        WMMA,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "columns for the pitch of WMMA's rows",
        "hgemm/wmma_reader.cuh",
        "(stage + linear + delta, Layout::pitch, r);",
        "(stage + linear + delta, Layout::columns, r);",
        {**WMMA, "smem": "pad:8"},
        WHOLE,
        ("uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "the sums of WMMA's halves exchanged",
        SUMS,
        "(floats[i][2 * j], floats[i][2 * j + 1], a, b);",
        "(floats[i][2 * j + 1], floats[i][2 * j], a, b);",
        WMMA,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "a pair of rows too few between odd rows",
        OPERAND,
        "int const pairs = row_step % 2 == 0 ? rows >> 1 : (rows + (row() & 1)) >> 1;",
        "int const pairs = rows >> 1;",
        {**_SMALL, "tile": "128x48x16", "warp_tile": "128x16", "layout": "nn", "align": "4", "smem": "pad_alternate:8"},
        "128x48x48",
        ("race", "uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "copies that are not as aligned as they are wide",
        OPERAND,
        "static constexpr int chunk = Operand::align;",
        "static constexpr int chunk = 8;",
        NARROW,
        "33x41x44",
        ("alignment",),
    ),
    # ---- Global memory
    Fault(
        "leading dimension of the other operand",
        MAINLOOP,
        "problem.batch_stride_b, problem.ldb,",
        "problem.batch_stride_b, problem.lda,",
        TRANSPOSED,
        "32x48x40",
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "k tail not filled with zeros",
        OPERAND,
        "copy_chunk(to, from + pass_column * column_step, rows > 0 ? columns : 0);",
        "copy_chunk(to, from + pass_column * column_step, rows > 0 ? chunk : 0);",
        PIPELINED,
        TAIL,
        ("bounds",),
    ),
    Fault(
        "rows past the edge are copied",
        OPERAND,
        "source + pass_column * column_step, along < extent_left);",
        "source + pass_column * column_step, along <= extent_left);",
        PIPELINED,
        "31x32x80,31x31x80",
        ("bounds",),
    ),
    Fault(
        "row past the edge of D",
        EPILOGUE,
        "int const left = first + row < problem.m ?",
        "int const left = first + row <= problem.m ?",
        PIPELINED,
        RAGGED,
        ("bounds",),
    ),
    Fault(
        "column past the edge of D",
        EPILOGUE,
        "} else if (row < problem.m && column < problem.n) {",
        "} else if (row < problem.m && column <= problem.n) {",
        DIRECT,
        "33x42x40",
        ("bounds",),
    ),
    Fault(
        "elements of D stored twice",
        EPILOGUE,
        "turn < pieces; turn += 32)",
        "turn < pieces; turn += 16)",
        PIPELINED,
        WHOLE,
        ("write_once",),
    ),
    Fault(
        "batch stride of the other operand",
        MAINLOOP,
        "batch * problem.batch_stride_a,",
        "batch * problem.batch_stride_b,",
        PIPELINED,
        BATCHES,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "bias of another column",
        EPILOGUE,
        "x += atoms::to_float(atoms::ld_global(bias + column + e));",
        "x += atoms::to_float(atoms::ld_global(bias + column));",
        BIASED,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "a tile computed by two CTAs",
        SCHEDULER,
        "work.tile_n = tile % tiles_n;",
        "work.tile_n = 0;",
        PIPELINED,
        WHOLE,
        ("write_once", "race"),
    ),
    # ---- Sums
    Fault(
        "accumulators not cleared",
        GEMM,
        "    accumulators.clear();\n",
        "",
        PIPELINED,
        WHOLE,
        ("poison", "uninitialised", NUMBERS),
    ),
    Fault(
        "promoted sums counted twice",
        SUMS,
        "            halves[i][j][r] = 0;\n",
        "",
        PROMOTED,
        WHOLE,
        (NUMBERS,),
    ),
    # ---- Split-K
    Fault(
        "partial sums announced without a fence",
        SPLIT_K,
        "    atoms::global_fence();\n    Threads::barrier();\n    if",
        "    Threads::barrier();\n    if",
        SPLIT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "partial sums read without a fence",
        SPLIT_K,
        "before == sharers - 1));\n      atoms::global_fence();",
        "before == sharers - 1));",
        SPLIT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "partial sums announced before all threads stored them",
        SPLIT_K,
        "    atoms::global_fence();\n    Threads::barrier();\n    if",
        "    atoms::global_fence();\n    if",
        SPLIT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "counter not reset",
        SPLIT_K,
        "    if (Threads::index() == 0) atoms::st_global(counter, 0u);\n",
        "",
        SPLIT,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "epilogue overwrites the answer of the split",
        SPLIT_K,
        "    Threads::barrier();  // the epilogue writes where the answer was\n",
        "",
        SPLIT,
        WHOLE,
        ("race",),
    ),
)
