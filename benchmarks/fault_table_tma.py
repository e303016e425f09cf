"""Faults of the mma.sync kernels fed by the TMA, as data: see benchmarks/faults.py."""

from __future__ import annotations

from benchmarks.fault_table_sm80 import NUMBERS, Fault
from benchmarks.fault_table_sm90 import OPERAND

# ---- The kernels that faults are seeded into -------------------------------------------------------------------------

BY_TMA = {
    "arch": "sm_90a",
    "mma": "m16n8k16",
    "copy": "tma",
    "tile": "32x64x32",
    "warp_tile": "16x32",
    "stages": "3",
    "schedule": "one_tile",
}
BEHIND = {**BY_TMA, "fragment_stages": "1"}
WORN = {**BY_TMA, "schedule": "persistent", "tile": "16x32x32", "warp_tile": "16x16"}
LOOP, GEMM_TMA = "hgemm/mainloop_tma.cuh", "hgemm/gemm_tma.cuh"
LONG, TURNS = "32x64x352", "160x32x96"

FAULTS_TMA = (
    Fault(
        "fragments read before their k-tile has arrived",
        LOOP,
        "            Stages::await_full();\n",
        "",
        BY_TMA,
        LONG,
        ("race",),
    ),
    Fault(
        "first fragments read before anything has arrived",
        LOOP,
        "    Stages::await_full();\n    HGEMM_UNROLL\n    for (int j = 0;",
        "    HGEMM_UNROLL\n    for (int j = 0;",
        BY_TMA,
        LONG,
        ("race",),
    ),
    Fault(
        "stage given back while it is read",
        LOOP,
        "      warp.read_stage = ring.stage;\n",
        "      warp.read_stage = ring.stage;\n      if constexpr (!ahead) release(warp.read_stage);\n",
        BEHIND,
        LONG,
        ("race", "mbarrier"),
    ),
    Fault(
        "stage given back by one lane for others that read",
        LOOP,
        "    atoms::warp_barrier();\n    Stages::release",
        "    Stages::release",
        BY_TMA,
        LONG,
        ("race",),
    ),
    Fault(
        "stage never given back",
        LOOP,
        "          if constexpr (ahead) release(warp.read_stage);  // all of it is in registers\n",
        "",
        BY_TMA,
        LONG,
        ("deadlock",),
    ),
    Fault(
        "k-tile after the last awaited",
        LOOP,
        "if (k_tiles > 1 || more) {",
        "if (true) {",
        BY_TMA,
        LONG,
        ("deadlock",),
    ),
    Fault(
        "fragments of the next tile read before they have arrived",
        LOOP,
        "if (k_tiles > 1 || more) {\n            ring.advance();\n",
        "ring.advance();\n          if (k_tiles > 1) {\n",
        WORN,
        TURNS,
        ("race",),
    ),
    Fault(
        "pieces read where another swizzle has them",
        OPERAND,
        "(byte >> 3 & (pieces - 1) << 4)",
        "(byte >> 4 & (pieces - 1) << 4)",
        BY_TMA,
        LONG,
        (NUMBERS,),
    ),
    Fault(
        "D staged for fewer warps than there are",
        GEMM_TMA,
        "atoms::named_barrier(1, count);",
        "atoms::named_barrier(1, count - 32);",
        {**BY_TMA, "tile": "32x64x32", "warp_tile": "16x32"},
        LONG,
        ("barrier", "deadlock", "race"),
    ),
)
