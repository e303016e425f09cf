"""Faults of the wgmma kernels, as data: see benchmarks/faults.py."""

from __future__ import annotations

from benchmarks.fault_table_sm80 import NUMBERS, Fault

# ---- The kernels that faults are seeded into -------------------------------------------------------------------------

ALONE = {
    "arch": "sm_90a",
    "tile": "128x64x64",
    "stages": "3",
    "cluster": "1x1",
    "schedule": "one_tile",
    "raster": "row",
}
CLUSTER = {**ALONE, "cluster": "2x1"}
PERSISTENT = {**ALONE, "schedule": "persistent"}
SPLIT = {**ALONE, "schedule": "cluster_k:2"}
IN_TURN = {**PERSISTENT, "tile": "64x64x64", "cooperation": "pingpong"}
STREAM = {**ALONE, "tile": "64x64x64", "schedule": "stream_k", "out": "f32"}
STREAM_BY_BLOCKS = {**STREAM, "tile": "128x64x64", "consumers": "1", "acc": "f16", "out": "f16"}
STREAM_IN_TURN = {**IN_TURN, "schedule": "stream_k"}
BIASED = {**ALONE, "bias": "row"}

WHOLE, TWO, MANY, RAGGED = "128x64x448", "256x64x320", "1280x64x64", "128x60x64"
ODD = "128x61x64,128x61x72"
"""Twice, since the first problem of a run has no C."""
ONE_SHARED, FOUR_SHARED, ONE_SHARED_BY_BLOCKS = "64x64x960", "256x64x512", "128x64x960"
"""A tile of 15 k-tiles, four of 8, and one of twice the rows, for three workers."""

MAINLOOP, EPILOGUE, GEMM = "hgemm/mainloop_sm90.cuh", "hgemm/epilogue_sm90.cuh", "hgemm/gemm_sm90.cuh"
STAGES = "hgemm/tma_stages.cuh"
SUMS = "hgemm/sum_pairs.cuh"
OPERAND, CLUSTER_K, STREAM_K = "hgemm/operand_sm90.cuh", "hgemm/cluster_k.cuh", "hgemm/stream_k.cuh"

FAULTS_SM90 = (
    # ---- The ring of stages
    Fault(
        "stage multiplied before it has arrived",
        MAINLOOP,
        "      Stages::await_full();\n",
        "",
        ALONE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "stage loaded before it was released",
        STAGES,
        "      atoms::mbarrier_wait(&barriers.empty[ring.stage], ring.round ^ 1);\n",
        "",
        ALONE,
        WHOLE,
        ("race", "mbarrier"),
    ),
    Fault(
        "producer begins with the other parity",
        STAGES,
        "&barriers.empty[ring.stage], ring.round ^ 1);",
        "&barriers.empty[ring.stage], ring.round);",
        ALONE,
        WHOLE,
        ("deadlock",),
    ),
    Fault(
        "more bytes expected than arrive",
        STAGES,
        "atoms::mbarrier_arrive_and_expect(full, A::bytes + B::bytes);",
        "atoms::mbarrier_arrive_and_expect(full, A::bytes + B::bytes + 16);",
        ALONE,
        WHOLE,
        ("deadlock",),
    ),
    Fault(
        "fewer bytes expected than arrive",
        STAGES,
        "atoms::mbarrier_arrive_and_expect(full, A::bytes + B::bytes);",
        "atoms::mbarrier_arrive_and_expect(full, A::bytes);",
        ALONE,
        WHOLE,
        ("race", "mbarrier", "deadlock"),
    ),
    Fault(
        "one more reader awaited than there is",
        STAGES,
        "readers * Place::neighbours);",
        "readers * Place::neighbours + 1);",
        ALONE,
        WHOLE,
        ("deadlock",),
    ),
    Fault(
        "barriers used before they are there",
        GEMM,
        "  } else {\n    atoms::cta_barrier();\n  }",
        "  }",
        ALONE,
        WHOLE,
        ("mbarrier", "race", "uninitialised"),
    ),
    Fault(
        "both consumers begin with the same turn",
        MAINLOOP,
        "turns ^ (consumer == 0));",
        "turns);",
        IN_TURN,
        MANY,
        ("deadlock",),
    ),
    # ---- Products
    Fault(
        "stage released while its products run",
        MAINLOOP,
        "      atoms::wgmma_wait<1>();  // the stage before has been read\n",
        "",
        ALONE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "sums read before the products are done",
        MAINLOOP,
        "    atoms::wgmma_wait<0>();\n",
        "",
        ALONE,
        WHOLE,
        ("wgmma", "poison"),
    ),
    Fault("no fence before the products", MAINLOOP, "      atoms::wgmma_fence();\n", "", ALONE, WHOLE, ("wgmma",)),
    Fault(
        "products not committed",
        MAINLOOP,
        "      atoms::wgmma_commit();\n",
        "",
        ALONE,
        WHOLE,
        ("race", "wgmma", "poison"),
    ),
    Fault(
        "descriptor of another swizzle",
        OPERAND,
        "row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;",
        "row_bytes == 128 ? 2 : row_bytes == 64 ? 2 : 3;",
        ALONE,
        WHOLE,
        (NUMBERS,),
    ),
    # ---- Clusters
    Fault(
        "a multicast that leaves the neighbour out",
        STAGES,
        "return ((1 << Policy::cluster_m) - 1) << column * Policy::cluster_m;",
        "return 1 << rank;",
        CLUSTER,
        TWO,
        ("deadlock",),
    ),
    Fault(
        "release of one's own stage only",
        STAGES,
        "if (thread < Place::neighbours) atoms::mbarrier_arrive_at(&barriers.empty[stage], place.neighbour(thread));",
        "if (thread < Place::neighbours) atoms::mbarrier_arrive_at(&barriers.empty[stage], place.rank);",
        CLUSTER,
        TWO,
        ("race",),
    ),
    Fault(
        "a CTA that leaves its cluster early",
        GEMM,
        "  if constexpr (Place::size > 1 || in_cluster) {\n    atoms::cluster_arrive();\n    atoms::cluster_wait();\n  }\n",
        "",
        CLUSTER,
        TWO,
        ("cluster", "pending", "mbarrier"),
    ),
    Fault(
        "sums left where stages are still multiplied",
        CLUSTER_K,
        "static_cast<Word4*>(shared) + Threads::index();\n    Threads::barrier();\n",
        "static_cast<Word4*>(shared) + Threads::index();\n",
        SPLIT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "a neighbour's sums read before they are left",
        GEMM,
        "&shared.mainloop);\n        atoms::cluster_arrive();\n        atoms::cluster_wait();\n        if (work.split == 0) {",
        "&shared.mainloop);\n        if (work.split == 0) {",
        SPLIT,
        WHOLE,
        ("race", "deadlock"),
    ),
    # ---- The epilogue
    Fault(
        "no fence before the TMA stores", EPILOGUE, "    atoms::async_proxy_fence();\n", "", ALONE, WHOLE, ("proxy",)
    ),
    Fault(
        "boxes stored before they are written",
        EPILOGUE,
        "    atoms::named_barrier(1 + consumer, 128);  // the boxes are written\n",
        "",
        ALONE,
        WHOLE,
        ("race", "proxy"),
    ),
    Fault(
        "boxes written before the last ones are stored",
        EPILOGUE,
        "if (stores) atoms::tma_store_wait_read<Policy::epilogue_stages - 1>();",
        "if (stores) atoms::tma_store_wait_read<Policy::epilogue_stages>();",
        PERSISTENT,
        MANY,
        ("race",),
    ),
    Fault(
        "a CTA that ends before its stores have read",
        EPILOGUE,
        "      if (stores) atoms::tma_store_wait_read<0>();\n",
        "",
        ALONE,
        WHOLE,
        ("pending", "tma"),
    ),
    Fault(
        "an odd last column of C left out",
        SUMS,
        "if (!paired || columns() % 2 == 0) return;",
        "return;",
        ALONE,
        ODD,
        (NUMBERS,),
    ),
    Fault(
        "C loaded past its last column",
        SUMS,
        "if (at.second_inside) words[0] =",
        "if (at.first_inside) words[0] =",
        ALONE,
        ODD,
        ("bounds",),
    ),
    Fault(
        "two columns with the bias of one",
        SUMS,
        "bias_along_columns ? column(turn, j) + e :",
        "bias_along_columns ? column(turn, j) :",
        BIASED,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "the bias read past its end",
        SUMS,
        "if (index < (bias_along_columns ? columns() : rows())) bias.bits",
        "bias.bits",
        BIASED,
        RAGGED,
        ("bounds",),
    ),
    Fault(
        "ragged rows stored by the TMA",
        EPILOGUE,
        "if (!PLAIN && problem.n % piece != 0) {",
        "if (false) {",
        ALONE,
        RAGGED,
        ("bounds",),
    ),
    Fault(
        "the last piece of a ragged row stored whole",
        EPILOGUE,
        "if (n + piece <= problem.n) {",
        "if (true) {",
        ALONE,
        RAGGED,
        ("bounds",),
    ),
    # ---- Stream-K
    Fault(
        "sums of shares announced without a fence",
        "hgemm/split_k.cuh",
        "    atoms::global_fence();\n    Threads::barrier();\n    if",
        "    Threads::barrier();\n    if",
        STREAM,
        ONE_SHARED,
        ("race",),
    ),
    Fault(
        "sums of shares added before the last of them is there",
        STREAM_K,
        "last_to_arrive(counter, last - first + 1, is_last)",
        "last_to_arrive(counter, last - first, is_last)",
        STREAM,
        ONE_SHARED,
        ("race", "poison", "uninitialised", "write_once", NUMBERS),
    ),
    Fault(
        "sums of the first share added twice",
        STREAM_K,
        "    sums.clear();\n",
        "    sums.clear();\n    add(sums, partials + place(first * ranks + rank, true), 0);\n",
        STREAM,
        ONE_SHARED,
        (NUMBERS,),
    ),
    Fault(
        "sums of shares added in the order of who was last",
        STREAM_K,
        "      for (uint32_t sharer = first; sharer <= last; ++sharer) {\n",
        "      for (uint32_t i = first; i <= last; ++i) {\n"
        "        uint32_t const sharer = first + (i + atoms::cta_x()) % (last - first + 1);\n",
        STREAM,
        ONE_SHARED,
        (NUMBERS,),
    ),
    Fault(
        "sums of the first block of rows finished for every block",
        GEMM,
        "Reduction::add_up(sums, sharers, block * Accumulators::mma_n);",
        "Reduction::add_up(sums, sharers, 0);",
        STREAM_BY_BLOCKS,
        ONE_SHARED_BY_BLOCKS,
        (NUMBERS,),
    ),
    Fault(
        "sums of all blocks of rows finished in one place",
        GEMM,
        "mine.m_first + m_offset + block * 64, mine.n_first",
        "mine.m_first + m_offset, mine.n_first",
        STREAM_BY_BLOCKS,
        ONE_SHARED_BY_BLOCKS,
        ("write_once", "poison", NUMBERS),
    ),
    Fault(
        "one place for the sums of both tiles of a share",
        STREAM_K,
        "return (cta * 2 + begins) * Reduction::words;",
        "return cta * 2 * Reduction::words;",
        STREAM,
        FOUR_SHARED,
        ("race", NUMBERS),
    ),
    Fault(
        "a share does not begin where the one before ends",
        STREAM_K,
        "    left = Whole::smaller(all.begin(worker + 1), end) - begin;\n",
        "    left = Whole::smaller(all.count, end - begin);\n",
        STREAM,
        FOUR_SHARED,
        ("write_once", NUMBERS),
    ),
    Fault(
        "counter of a shared tile not reset",
        STREAM_K,
        "    if (Threads::index() == 0) atoms::st_global(counter, 0u);\n",
        "",
        STREAM,
        ONE_SHARED,
        (NUMBERS,),
    ),
    Fault(
        "whole tiles skipped in the ring where the other consumer has a part of one",
        GEMM,
        "mainloop.ring.skip(mine.k_count);",
        "mainloop.ring.skip(k_tiles);",
        STREAM_IN_TURN,
        FOUR_SHARED,
        ("deadlock", "race", "mbarrier", NUMBERS),
    ),
    Fault(
        "one answer for both consumers' shares",
        GEMM,
        "shared.is_last[Policy::pingpong ? consumer : 0];",
        "shared.is_last[0];",
        STREAM_IN_TURN,
        FOUR_SHARED,
        ("race",),
    ),
)
