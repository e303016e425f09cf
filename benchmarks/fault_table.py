"""The seeded faults, as data: one edit of a header each, the kernel and the shapes that find it, and what finds it.

Grouped by family and technique. `benchmarks/anchors.py` says how an edit names its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.anchors import At, Edit

NUMBERS = "numbers"
"""Finds a fault if the executor reports nothing and D is wrong."""


DEFAULT_CASES = ""
"""The cases of a proof."""
ANYTHING: tuple[str, ...] = ()
"""Any failure finds the fault."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Fields: `edit` is one edit or several; `options` are those of the kernel, as `generate` takes them; `shapes` are the
        problems that it runs, or DEFAULT_CASES; `caught_by` are kinds of findings, or NUMBERS, one of which must be reported, or
        ANYTHING; `unfound` says why nothing finds the fault, or why it is none.
    """

    name: str
    edit: Edit | tuple[Edit, ...]
    options: dict[str, str]
    shapes: str
    caught_by: tuple[str, ...]
    unfound: str = ""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Return the edits in order."""
        return self.edit if isinstance(self.edit, tuple) else (self.edit,)


# ---- Kernels on mma.sync: copies by cp.async --------------------------------------------------------------------------

_CP_ASYNC = {
    "arch": "sm_80",
    "tile": "32x32x16",
    "warp_tile": "16x16",
    "stages": "3",
    "fragment_stages": "2",
    "raster": "row",
}
PIPELINED = {**_CP_ASYNC, "store": "smem"}
DIRECT_STORE = {**_CP_ASYNC, "store": "direct"}
ONE_FRAGMENT_STAGE = {**_CP_ASYNC, "tile": "96x32x16", "warp_tile": "96x16", "fragment_stages": "1", "stages": "4"}
ONE_STAGE = {**_CP_ASYNC, "fragment_stages": "1", "stages": "1"}
SPLIT_K = {**_CP_ASYNC, "schedule": "split_k:3"}
AT_LAUNCH = {**_CP_ASYNC, "schedule": "launch", "raster": "launch", "bias": "launch"}
PROMOTED = {**_CP_ASYNC, "acc": "f16_promoted"}
BIASED = {**_CP_ASYNC, "bias": "row"}
LAYOUT_NT = {**_CP_ASYNC, "layout": "nt"}
ALIGN_4 = {**_CP_ASYNC, "align": "4"}
POINTER_ARRAYS = {**_CP_ASYNC, "pointer_arrays": "on"}
WMMA = {**_CP_ASYNC, "mma": "wmma16"}
SWIZZLED = {**PIPELINED, "tile": "32x32x32", "smem": "xor:2,3,3"}
PAD_ALTERNATE = {
    **_CP_ASYNC,
    "tile": "128x48x16",
    "warp_tile": "128x16",
    "layout": "nn",
    "align": "4",
    "smem": "pad_alternate:8",
}

WHOLE, RAGGED, K_TAIL, BATCHES = "32x64x80", "33x41x40", "32x32x75", "32x64x32@3"
SIX_TILES = "32x64x80,64x96x75,33x96x80,64x64x112,40x70x112,64x96x112"
"""The options of launches change from one problem to the next (hgemm.cases.varied)."""

MMA_SYNC = (
    # ---- Waits for copies
    Fault(
        "one cp.async wait less, in the loop",
        At("multiply_pipelined", "cp_async_wait<").template_argument(0, "@ + 1"),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "one cp.async wait less, before the loop",
        At("run_pipelined", "cp_async_wait<").template_argument(0, "@ + 1"),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no wait in a loop of one stage",
        At("multiply_in_turn", "cp_async_wait<").drop(),
        ONE_STAGE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "commit missing",
        At("CpAsyncMainloop", "cp_async_commit()").drop(),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no wait after the loop",
        At("CpAsyncMainloop::run", "cp_async_wait<").drop(),
        PIPELINED,
        WHOLE,
        ("race", "pending"),
    ),
    # ---- Addresses of a batch's matrices
    Fault(
        "the first address for the whole batch",
        At("matrix_of", "(operand) + batch").replace("(operand)"),
        POINTER_ARRAYS,
        BATCHES,
        (NUMBERS, "write_once"),
    ),
    Fault(
        "a read of C's array of addresses without beta",
        At("WarpEpilogue::WarpEpilogue", "Policy::beta && problem.beta != 0.f").replace("Policy::beta"),
        POINTER_ARRAYS,
        f"{WHOLE},{BATCHES}",
        ("bounds",),
    ),
    # ---- Barriers
    Fault(
        "no barrier in the loop",
        At("multiply_pipelined", "cta_barrier()").drop(),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no barrier before the loop",
        At("run_pipelined", "cta_barrier()", occurrence=1).drop(),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no barrier after the loop",
        At("CpAsyncMainloop::run", "cta_barrier()").drop(),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "no barrier before the only stage is filled again",
        At("CpAsyncMainloop::refill", "cta_barrier()").drop(),
        ONE_STAGE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "epilogue rows overwritten before they are stored",
        At("store_through_shared", "barrier()", after="reduce_rows(").drop(),
        {**PIPELINED, "warp_tile": "32x16"},
        WHOLE,
        ("race",),
    ),
    Fault(
        "epilogue rows stored before they are written",
        At("store_through_shared", "barrier()", occurrence=1).drop(),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    # ---- Stages
    Fault(
        "stage overwritten one k-tile early",
        At("CpAsyncMainloop", "stages - stages_in_use").replace("stages"),
        PIPELINED,
        WHOLE,
        ("race",),
    ),
    Fault(
        "stage overwritten while its last fragments are read",
        At("CpAsyncMainloop", "stages_in_use = ...;").replace("stages_in_use = 1;"),
        ONE_FRAGMENT_STAGE,
        "96x32x112",
        ("race",),
    ),
    Fault(
        "fragments read from the previous stage",
        At("read_ahead", "stage = next_block == 0 ? ... : ...;").replace("stage = @2;"),
        PIPELINED,
        WHOLE,
        ("race", NUMBERS),
    ),
    # ---- Addresses in shared memory
    Fault(
        "swizzle applied by the copies only",
        At("LdmatrixReader::at", "Layout::at(stage, linear, delta)").replace("stage + linear + delta"),
        SWIZZLED,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "swizzle applied by the reads only",
        At("OperandCopy::place", "Layout::place(linear, ...)").replace("linear + @1"),
        SWIZZLED,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "columns instead of the pitch of a padded stage",
        At("OperandCopy::OperandCopy", "Layout::linear(row(), column())").replace("row() * Layout::columns + column()"),
        {**PIPELINED, "smem": "pad:8"},
        WHOLE,
        ("uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "WMMA fragments in the order of the other operand",
        At("WmmaReader::read", "wmma_load<").template_argument(2, "Operand::k_major"),
        WMMA,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "columns instead of the pitch of WMMA rows",
        At("WmmaReader::read", "Layout::pitch").replace("Layout::columns"),
        {**WMMA, "smem": "pad:8"},
        WHOLE,
        ("uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "WMMA accumulator halves exchanged",
        At("WmmaForm::multiply", "wmma<...>(floats").swap_arguments(0, 1),
        WMMA,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "one pair of rows too few between odd rows",
        At("OperandCopy", "pairs = row_step % 2 == 0 ? ... : ...;").replace("pairs = @1;"),
        PAD_ALTERNATE,
        "128x48x48",
        ("race", "uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "copies wider than their alignment",
        At("OperandCopy", "chunk = Operand::align").replace("chunk = 8"),
        ALIGN_4,
        "33x41x44",
        ("alignment",),
    ),
    # ---- Global memory
    Fault(
        "leading dimension of the other operand",
        At("TileOperands::copy_b", "problem.ldb").replace("problem.lda"),
        LAYOUT_NT,
        "32x48x40",
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "k tail not filled with zeros",
        At("OperandCopy::OperandCopy", "k_end / chunk * chunk").replace("(k_end + chunk - 1) / chunk * chunk"),
        PIPELINED,
        K_TAIL,
        ("bounds",),
    ),
    Fault(
        "the ends of rows are not copied",
        At("CpAsyncMainloop::run_pipelined", "copy_ends(").drop(),
        PIPELINED,
        K_TAIL,
        (NUMBERS,),
    ),
    Fault(
        "the ends of rows are copied while warps read the k-tile",
        At("CpAsyncMainloop::run_pipelined", "cta_barrier()", occurrence=2).drop(),
        PIPELINED,
        K_TAIL,
        ("race",),
    ),
    Fault(
        "the ends of rows are read before they are copied",
        At("CpAsyncMainloop::run_pipelined", "cta_barrier()", occurrence=3).drop(),
        PIPELINED,
        K_TAIL,
        ("race",),
    ),
    Fault(
        "fragments without the ends of rows are multiplied",
        At("CpAsyncMainloop::run_pipelined", "warp.read_first(", occurrence=2).drop(),
        PIPELINED,
        K_TAIL,
        (NUMBERS,),
    ),
    Fault(
        "the last row of an MN-major operand is copied past the end of memory",
        At("TileOperands::copy_b", "k_end - (!Policy::B::k_major && b_has_ends())").replace("k_end"),
        LAYOUT_NT,
        "33x41x40",
        ("bounds",),
    ),
    Fault(
        "rows past the edge are copied",
        At("OperandCopy::inside", "row_step < rows_left").replace("row_step <= rows_left"),
        PIPELINED,
        "31x32x80,31x31x80",
        ("bounds",),
    ),
    Fault(
        "row past the edge of D",
        At("store_rows", "< problem.m").replace("<= problem.m"),
        PIPELINED,
        RAGGED,
        ("bounds",),
    ),
    Fault(
        "column past the edge of D",
        At("store_block", "column < columns()").replace("column <= columns()"),
        DIRECT_STORE,
        "33x42x40",
        ("bounds",),
    ),
    Fault(
        "elements of D stored twice",
        At("store_rows", "+= 32)").replace("+= 16)"),
        PIPELINED,
        WHOLE,
        ("write_once",),
    ),
    Fault(
        "batch stride of the other operand",
        At("TileOperands::a", "problem.batch_stride_a").replace("problem.batch_stride_b"),
        PIPELINED,
        BATCHES,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "bias of another column",
        At("WarpEpilogue::store_vec", "bias + column + e").replace("bias + column"),
        BIASED,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "one tile computed by two CTAs",
        At("Scheduler::locate", "tile % tiles_n").replace("0"),
        PIPELINED,
        WHOLE,
        ("write_once", "race"),
    ),
    # ---- Accumulators
    Fault(
        "accumulators not cleared",
        At("gemm", "accumulators.clear()").drop(),
        PIPELINED,
        WHOLE,
        ("poison", "uninitialised", NUMBERS),
    ),
    Fault(
        "promoted accumulators counted twice",
        At("WarpAccumulators::promote", "= 0;", after="high_half(").drop(),
        PROMOTED,
        WHOLE,
        (NUMBERS,),
    ),
    # ---- Split-K
    Fault(
        "partial accumulators announced without a fence",
        At("SplitK::last_to_arrive", "global_fence()", occurrence=1).drop(),
        SPLIT_K,
        WHOLE,
        ("race",),
    ),
    Fault(
        "partial accumulators read without a fence",
        At("SplitK::last_to_arrive", "global_fence()", after="global_fetch_add(").drop(),
        SPLIT_K,
        WHOLE,
        ("race",),
    ),
    Fault(
        "partial accumulators announced before all threads stored them",
        At("SplitK::last_to_arrive", "barrier()", occurrence=1).drop(),
        SPLIT_K,
        WHOLE,
        ("race",),
    ),
    Fault(
        "split-K counter not reset",
        At("SplitK::reduce", "st_global(counter").drop(),
        SPLIT_K,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "the first split computed as a whole tile",
        At("Scheduler::split_of", "item >= whole_tiles()").replace("item > whole_tiles()"),
        AT_LAUNCH,
        SIX_TILES,
        ("write_once", "race", "bounds", NUMBERS),
    ),
    Fault(
        "tiles after the whole ones computed in the place of the first",
        At("Scheduler::split_of", "= whole_tiles() + work.shared").replace("= work.shared"),
        AT_LAUNCH,
        SIX_TILES,
        ("write_once", "race", NUMBERS),
    ),
    Fault(
        "longer splits do not move those that follow",
        At("k_range", "(split < longer ? split : longer)").replace("0"),
        AT_LAUNCH,
        SIX_TILES,
        (NUMBERS,),
    ),
    Fault(
        "one place for the partials of all splits",
        At("SplitK::reduce", "uint64_t(work.split) * vecs").replace("0"),
        AT_LAUNCH,
        SIX_TILES,
        ("race", NUMBERS, "uninitialised"),
    ),
    Fault(
        "a column bias of the launch added as a row",
        At("has_bias", "problem.bias_kind == uint32_t(kind)").replace("problem.bias_kind != 0"),
        AT_LAUNCH,
        SIX_TILES,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "epilogue overwrites the flag of the split",
        At("SplitK::last_to_arrive", "barrier()", after="ld_shared(").drop(),
        SPLIT_K,
        WHOLE,
        ("race",),
    ),
)

# ---- Kernels on mma.sync: copies through registers --------------------------------------------------------------------

_REGISTER_COPY = {"arch": "sm_75", "tile": "32x32x16", "warp_tile": "16x16", "raster": "row"}
TWO_STAGES = {**_REGISTER_COPY, "stages": "2", "fragment_stages": "2"}
TWO_STAGES_ONE_FRAGMENT = {**_REGISTER_COPY, "stages": "2", "fragment_stages": "1"}
SINGLE_STAGE = {**_REGISTER_COPY, "stages": "1", "fragment_stages": "1"}
NO_PREFETCH = {**SINGLE_STAGE, "prefetch": "off"}
ELEMENTWISE = {**TWO_STAGES, "copy": "ldg_sts_scalar", "align": "1", "layout": "nt"}
UNALIGNED = {**TWO_STAGES, "copy": "ldg_sts_unaligned", "align": "1"}
UNALIGNED_ROWS = {**UNALIGNED, "tile": "32x128x16", "warp_tile": "16x128", "layout": "nt"}
"""A thread's rows of B are 4 apart."""

REGISTER_COPY = (
    # ---- Barriers
    Fault(
        "register copy: no barrier between k-tiles",
        At("RegisterCopyMainloop::begin_k_tile", "cta_barrier()").drop(),
        TWO_STAGES,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: the only stage is overwritten while warps read it",
        At("RegisterCopyMainloop::store_after", "cta_barrier()").drop(),
        SINGLE_STAGE,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: no barrier after the loop",
        At("RegisterCopyMainloop::run", "cta_barrier()", occurrence=3).drop(),
        TWO_STAGES_ONE_FRAGMENT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: fragments read before the k-tile has arrived",
        At("RegisterCopyMainloop::multiply", "begin_k_tile()").swap_with_next(),
        TWO_STAGES_ONE_FRAGMENT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: without prefetch, a k-tile stored before it is loaded",
        At("RegisterCopyMainloop::store_after", "if (!Policy::prefetch && vec == 0").argument(
            0, "!Policy::prefetch && vec == vecs - 1"
        ),
        NO_PREFETCH,
        WHOLE,
        (NUMBERS, "uninitialised", "poison"),
    ),
    # ---- Stages
    Fault(
        "register copy: stored to the stage that is read",
        At("RegisterCopyMainloop::begin_k_tile", "Warp::next(").drop(),
        TWO_STAGES,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: B stored to the wrong stage",
        At("RegisterCopyMainloop::store_vec", "copy_b.store(").argument(0, "shared.b[0]"),
        TWO_STAGES_ONE_FRAGMENT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: fragments read past the end of the k-tile",
        At("RegisterCopyMainloop::multiply", "read_behind(").argument(3, "@ + 1"),
        TWO_STAGES_ONE_FRAGMENT,
        WHOLE,
        ("race",),
    ),
    Fault(
        "register copy: one vector stored late",
        At("RegisterCopyMainloop::store_after", "first_store + vec *").replace("first_store + (vec + 1) *"),
        TWO_STAGES,
        WHOLE,
        ("race", NUMBERS),
    ),
    # ---- Global memory
    Fault(
        "register copy: a k-tile loaded past the last one",
        At("OperandCopy::advance", "columns_left <= 0").replace("columns_left < 0"),
        TWO_STAGES,
        WHOLE,
        ("bounds",),
    ),
    Fault(
        "register copy: the same k-tile loaded again",
        At("RegisterCopy::load", "advance()").drop(),
        TWO_STAGES,
        WHOLE,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "register copy: rows past the edge are loaded",
        At("OperandCopy::inside", "row_step < rows_left").replace("row_step <= rows_left"),
        TWO_STAGES,
        "31x32x80,31x31x80",
        ("bounds",),
    ),
    Fault(
        "register copy: chunks that k ends in are loaded whole",
        At("OperandCopy::OperandCopy", "k_end / chunk * chunk").replace("(k_end + chunk - 1) / chunk * chunk"),
        TWO_STAGES,
        K_TAIL,
        ("bounds",),
    ),
    Fault(
        "register copy: chunks that k ends in are left out",
        At("RegisterCopyMainloop::run", "copy_ends(").drop(),
        TWO_STAGES,
        K_TAIL,
        (NUMBERS,),
    ),
    Fault(
        "register copy: elements past the edge are loaded one by one",
        At("OperandCopy::inside", "row_step < rows_left").replace("row_step <= rows_left"),
        ELEMENTWISE,
        RAGGED,
        ("bounds", NUMBERS),
    ),
    # ---- Vectors of unaligned rows
    Fault(
        "unaligned copy: neighbours behind the matrix are loaded",
        At("UnalignedCopy::last_begin", "2 * chunk - 1").replace("chunk - 1"),
        UNALIGNED,
        RAGGED,
        ("bounds",),
    ),
    Fault(
        "unaligned copy: neighbours before the matrix are loaded",
        At("UnalignedCopy::load", "address >= first && address").replace("address"),
        UNALIGNED,
        WHOLE,
        ("bounds",),
    ),
    Fault(
        "unaligned copy: elements of vectors that leave the matrix are not copied",
        At("UnalignedCopy::finish", "copy_elements(").drop(),
        UNALIGNED,
        "32x32x49",
        (NUMBERS,),
    ),
    Fault(
        "unaligned copy: neighbours behind the end of k are multiplied",
        At("OperandCopy::OperandCopy", "k_end / chunk * chunk").replace("(k_end + chunk - 1) / chunk * chunk"),
        UNALIGNED,
        "33x41x43",
        (NUMBERS,),
    ),
    Fault(
        "unaligned copy: shifted by whole words only",
        At("UnalignedCopy::cut", "if constexpr (...) return").replace("return"),
        UNALIGNED,
        RAGGED,
        (NUMBERS,),
    ),
    Fault(
        "unaligned copy: all rows are shifted as the first",
        At("UnalignedCopy::cut", "row_step % chunk == 0 ?").replace("true ?"),
        UNALIGNED_ROWS,
        RAGGED,
        (NUMBERS,),
    ),
)

# ---- Kernels on mma.sync: copies by TMA -------------------------------------------------------------------------------

TMA_MMA_SYNC = {
    "arch": "sm_90a",
    "mma": "m16n8k16",
    "copy": "tma",
    "tile": "32x64x32",
    "warp_tile": "16x32",
    "stages": "3",
    "schedule": "one_tile",
}
TMA_ONE_FRAGMENT_STAGE = {**TMA_MMA_SYNC, "fragment_stages": "1"}
TMA_PERSISTENT = {**TMA_MMA_SYNC, "schedule": "persistent", "tile": "16x32x32", "warp_tile": "16x16"}
LONG_K, MANY_TILES = "32x64x352", "160x32x96"

MMA_SYNC_TMA = (
    Fault(
        "fragments read before their k-tile has arrived",
        At("Mainloop::multiply", "consumer_wait()", after="do {").drop(),
        TMA_MMA_SYNC,
        LONG_K,
        ("race",),
    ),
    Fault(
        "first fragments read before any k-tile has arrived",
        At("Mainloop::multiply", "consumer_wait()", occurrence=1).drop(),
        TMA_MMA_SYNC,
        LONG_K,
        ("race",),
    ),
    Fault(
        "stage released while it is read",
        At("Mainloop::multiply", "warp.read_stage = state.stage").insert_after(
            "if constexpr (!two_fragment_stages) consumer_release(warp.read_stage);"
        ),
        TMA_ONE_FRAGMENT_STAGE,
        LONG_K,
        ("race", "mbarrier"),
    ),
    Fault(
        "stage released by one lane while others read",
        At("Mainloop::consumer_release", "warp_barrier()").drop(),
        TMA_MMA_SYNC,
        LONG_K,
        ("race",),
    ),
    Fault(
        "stage released without a fence between the proxies",
        At("Mainloop::consumer_release", "fence_proxy_async()").drop(),
        TMA_MMA_SYNC,
        LONG_K,
        ("proxy",),
    ),
    Fault(
        "stage never released",
        At("Mainloop::multiply", "consumer_release(", occurrence=1).drop(),
        TMA_MMA_SYNC,
        LONG_K,
        ("deadlock",),
    ),
    Fault(
        "wait for a k-tile after the last",
        At("Mainloop::multiply", "if (k_tiles > 1").argument(0, "true"),
        TMA_MMA_SYNC,
        LONG_K,
        ("deadlock",),
    ),
    Fault(
        "fragments of the next tile read before they have arrived",
        (
            At("Mainloop::multiply", "if (k_tiles > 1").insert_before("state.advance();"),
            At("Mainloop::multiply", "state.advance()", occurrence=2).drop(),
            At("Mainloop::multiply", "if (k_tiles > 1").argument(0, "k_tiles > 1"),
        ),
        TMA_PERSISTENT,
        MANY_TILES,
        ("race",),
    ),
    Fault(
        "16-byte vectors read at the place of another swizzle",
        At("TmaBoxes::swizzled", "byte >> 3").replace("byte >> 4"),
        TMA_MMA_SYNC,
        LONG_K,
        (NUMBERS,),
    ),
    Fault(
        "epilogue barrier counts one warp too few",
        At("ConsumerThreads::barrier", "named_barrier(").argument(1, "@ - 32"),
        TMA_MMA_SYNC,
        LONG_K,
        ("barrier", "deadlock", "race"),
    ),
)

# ---- Kernels on wgmma: copies by TMA ----------------------------------------------------------------------------------

ONE_TILE = {
    "arch": "sm_90a",
    "tile": "128x64x64",
    "stages": "3",
    "cluster": "1x1",
    "schedule": "one_tile",
    "raster": "row",
}
CLUSTER = {**ONE_TILE, "cluster": "2x1"}
PERSISTENT = {**ONE_TILE, "schedule": "persistent"}
IN_TURN = {**ONE_TILE, "tile": "64x72x64", "cluster": "2x1"}
"""72 columns are no two slices of whole groups of 8, so the CTAs load B in turn."""
CLUSTER_SPLIT = {**ONE_TILE, "schedule": "split_k_cluster:2"}
PINGPONG = {**PERSISTENT, "tile": "64x64x64", "cooperation": "pingpong"}
EDGES = {**ONE_TILE, "tile": "64x200x64", "layout": "nt"}
EIGHT_ROWS = {**ONE_TILE, "tile": "8x64x128", "layout": "nt", "swap_ab": "on"}
"""A has 16 contiguous bytes for each k, which need no swizzle."""
STREAM_K = {**ONE_TILE, "tile": "64x64x64", "schedule": "stream_k", "out": "f32"}
STREAM_K_BLOCKS = {**STREAM_K, "tile": "128x64x64", "consumers": "1", "acc": "f16", "out": "f16"}
STREAM_K_PINGPONG = {**PINGPONG, "schedule": "stream_k"}
_DECIDED = {"schedule": "launch", "raster": "launch", "bias": "launch"}
LAUNCH_PINGPONG = {**PINGPONG, **_DECIDED}
LAUNCH_CLUSTER = {**ONE_TILE, **_DECIDED, "tile": "64x64x64", "cluster": "2x1"}
SIX_WGMMA_TILES = "128x64x320,256x128x448,129x192x448,192x128x512,250x120x640,256x192x448"
ROW_BIAS = {**ONE_TILE, "bias": "row"}

ONE_CTA, TWO_CTAS, TEN_TILES, RAGGED_N = "128x64x448", "256x64x320", "1280x64x64", "128x60x64"
EDGE_SHAPES = "41x370x129,64x200x64"
"""m ends inside a tile. Each tile of n ends with a narrow box."""
EIGHT_ROWS_SHAPES = "8x64x448,8x64x449"
"""A map of rows of 128 bytes, and one of rows of 16 bytes, since k is no multiple of 8."""
ODD_N = "128x61x64,128x61x72"
"""Two problems, since the first of a run has no C."""
ONE_SHARED, FOUR_SHARED, ONE_SHARED_BY_BLOCKS = "64x64x960", "256x64x512", "128x64x960"
"""For three workers: a tile of 15 k-tiles, four tiles of 8, and a tile of twice the rows."""

WGMMA = (
    # ---- The ring of stages
    Fault(
        "stage multiplied before it has arrived",
        At("Mainloop::multiply", "consumer_wait()").drop(),
        ONE_TILE,
        ONE_CTA,
        ("race",),
    ),
    Fault(
        "stage loaded before it was released",
        At("TmaPipeline::producer_acquire", "mbarrier_wait(").drop(),
        ONE_TILE,
        ONE_CTA,
        ("race", "mbarrier"),
    ),
    Fault(
        "producer begins with the wrong parity",
        At("TmaPipeline::producer_acquire", "mbarrier_wait(").argument(1, "state.phase"),
        ONE_TILE,
        ONE_CTA,
        ("deadlock",),
    ),
    Fault(
        "more bytes expected than arrive",
        At("TmaPipeline::load", "mbarrier_arrive_expect_tx(").argument(1, "@ + 16"),
        ONE_TILE,
        ONE_CTA,
        ("deadlock",),
    ),
    Fault(
        "fewer bytes expected than arrive",
        At("TmaPipeline::load", "mbarrier_arrive_expect_tx(").argument(1, "A::bytes"),
        ONE_TILE,
        ONE_CTA,
        ("race", "mbarrier", "deadlock"),
    ),
    Fault(
        "rows behind the matrix read with the last k-tile",
        At("TmaPipeline::is_last", "k + Policy::tile_k >= problem.k").replace("k >= problem.k"),
        EDGES,
        EDGE_SHAPES,
        ("bounds",),
    ),
    Fault(
        "the last k-tile loaded by its map, but fewer bytes expected",
        At("TmaPipeline::load", "last ? A::bytes + B::bytes : A::loaded_bytes + B::loaded_bytes").replace(
            "A::loaded_bytes + B::loaded_bytes"
        ),
        EDGES,
        EDGE_SHAPES,
        ("mbarrier", "race", "deadlock"),
    ),
    Fault(
        "the bytes of whole boxes expected of all k-tiles",
        At("TmaPipeline::load", "last ? A::bytes + B::bytes : A::loaded_bytes + B::loaded_bytes").replace(
            "A::bytes + B::bytes"
        ),
        EDGES,
        EDGE_SHAPES,
        ("deadlock",),
    ),
    Fault(
        "the last box of a tile loaded by the map of whole boxes",
        At("TmaBoxes::map_of", "box == boxes - 1 ? source.edge : source.map").replace(
            "false ? source.edge : source.map"
        ),
        EDGES,
        EDGE_SHAPES,
        ("mbarrier", "race", "deadlock"),
    ),
    Fault(
        "the edge map for the first box of a tile",
        At("TmaBoxes::map_of", "box == boxes - 1 ? source.edge : source.map").replace(
            "box == 0 ? source.edge : source.map"
        ),
        EDGES,
        EDGE_SHAPES,
        ("mbarrier", "race", "deadlock", "poison", NUMBERS),
    ),
    Fault(
        "the maps of the other operand",
        At("TmaPipeline::source", "IS_A ? maps.a : maps.b").replace("maps.b"),
        EDGES,
        EDGE_SHAPES,
        ("mbarrier", "race", "deadlock", "poison", NUMBERS),
    ),
    Fault(
        "one reader more awaited than exists",
        At("TmaPipeline::init", "mbarrier_init(&barriers.empty").argument(1, "@ + 1"),
        ONE_TILE,
        ONE_CTA,
        ("deadlock",),
    ),
    Fault(
        "barriers used before they are initialised",
        At("gemm", "else { atoms::cta_barrier(); }").replace(""),
        ONE_TILE,
        ONE_CTA,
        ("mbarrier", "race", "uninitialised"),
    ),
    Fault(
        "both pingpong consumers begin at once",
        At("Mainloop::order_wait", "mbarrier_wait(").argument(1, "order_phase"),
        PINGPONG,
        TEN_TILES,
        ("deadlock",),
    ),
    # ---- Products
    Fault(
        "stage released while wgmma reads it",
        At("Mainloop::multiply", "wgmma_wait<1>").drop(),
        ONE_TILE,
        ONE_CTA,
        ("race",),
    ),
    Fault(
        "accumulators read before the products are done",
        At("Mainloop::multiply", "wgmma_wait<0>").drop(),
        ONE_TILE,
        ONE_CTA,
        ("wgmma", "poison"),
    ),
    Fault(
        "no fence before the products",
        At("Mainloop::multiply", "wgmma_fence()").drop(),
        ONE_TILE,
        ONE_CTA,
        ("wgmma",),
    ),
    Fault(
        "products not committed",
        At("Mainloop::multiply", "wgmma_commit()").drop(),
        ONE_TILE,
        ONE_CTA,
        ("race", "wgmma", "poison"),
    ),
    Fault(
        "descriptor of another swizzle",
        At("WgmmaOperand::descriptor", "row_bytes == 128 ? 1").replace("row_bytes == 128 ? 2"),
        ONE_TILE,
        ONE_CTA,
        (NUMBERS,),
    ),
    Fault(
        "descriptor of a swizzle for rows of 16 bytes",
        At("WgmmaOperand::descriptor", "row_bytes == 32 ? 3 : 0").replace("row_bytes == 32 ? 3 : 3"),
        EIGHT_ROWS,
        EIGHT_ROWS_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "without a swizzle, a box for the bytes to the next 8 rows",
        At("WgmmaOperand::place", "row_bytes == 16 ?").replace("row_bytes == 8 ?"),
        EIGHT_ROWS,
        EIGHT_ROWS_SHAPES,
        (NUMBERS,),
    ),
    # ---- Clusters
    Fault(
        "multicast leaves the neighbour out",
        At("ClusterPlace::column_ranks", "return ...;").replace("return 1 << rank;"),
        CLUSTER,
        TWO_CTAS,
        ("deadlock",),
    ),
    Fault(
        "stage released to the own CTA only",
        At("TmaPipeline::consumer_release", "mbarrier_arrive_cluster(").argument(1, "place.rank"),
        CLUSTER,
        TWO_CTAS,
        ("race",),
    ),
    Fault(
        "both sharers load a stage",
        At("TmaBoxes::load", "if (in_turn && ...) return;").drop(),
        IN_TURN,
        TWO_CTAS,
        ("mbarrier", "race"),
    ),
    Fault(
        "the other sharer's turn, for one of two CTAs",
        At("TmaBoxes::load", "% SHARERS != place").replace("% SHARERS != 0"),
        IN_TURN,
        TWO_CTAS,
        ("mbarrier", "race", "deadlock"),
    ),
    Fault(
        "a CTA skips its share of a split tile",
        At("Epilogue::run_share", "int index = first").replace("int index = 0"),
        CLUSTER_SPLIT,
        ONE_CTA,
        ("poison", "race", NUMBERS),
    ),
    Fault(
        "a CTA leaves its cluster early",
        At("gemm", "mainloop.producer_finish()").drop(),
        CLUSTER,
        TWO_CTAS,
        ("cluster", "pending", "mbarrier"),
    ),
    Fault(
        "accumulators written over stages that are still multiplied",
        At("SplitKCluster::exchange", "barrier()").drop(),
        CLUSTER_SPLIT,
        ONE_CTA,
        ("race",),
    ),
    Fault(
        "partials sent over stages that other CTAs still multiply",
        At("SplitKCluster::exchange", "mbarrier_wait(&barriers[0], 0)").drop(),
        CLUSTER_SPLIT,
        ONE_CTA,
        ("race",),
    ),
    Fault(
        "partials read before they have arrived",
        At("SplitKCluster::exchange", "mbarrier_wait_cluster(&barriers[1], 0)").drop(),
        CLUSTER_SPLIT,
        ONE_CTA,
        ("race", "deadlock"),
    ),
    Fault(
        "partials awaited in the scope of the CTA",
        At("SplitKCluster::exchange", "mbarrier_wait_cluster(&barriers[1], 0)").replace(
            "mbarrier_wait(&barriers[1], 0)"
        ),
        CLUSTER_SPLIT,
        ONE_CTA,
        ("race",),
    ),
    Fault(
        "half of the bytes of the partials expected",
        At("SplitKCluster::received_bytes", "Threads::count * 16").replace("Threads::count * 8"),
        CLUSTER_SPLIT,
        ONE_CTA,
        ("race", "mbarrier", "deadlock"),
    ),
    # ---- The epilogue
    Fault(
        "no fence before the TMA stores",
        At("Epilogue::boxes_are_written", "fence_proxy_async()").drop(),
        ONE_TILE,
        ONE_CTA,
        ("proxy",),
    ),
    Fault(
        "boxes stored before they are written",
        At("Epilogue::boxes_are_written", "named_barrier(").drop(),
        ONE_TILE,
        ONE_CTA,
        ("race", "proxy"),
    ),
    Fault(
        "boxes overwritten before they are stored",
        At("Epilogue::wait_for_boxes", "tma_store_wait_read<").template_argument(0, "@ + 1"),
        PERSISTENT,
        TEN_TILES,
        ("race",),
    ),
    Fault(
        "a CTA ends before its stores have read",
        At("Epilogue::finish", "tma_store_wait_read<").drop(),
        ONE_TILE,
        ONE_CTA,
        ("pending", "tma"),
    ),
    Fault(
        "an odd last column of C left out",
        At("AccumulatorPairs::load", "if (!paired || ...) return").replace("return"),
        ONE_TILE,
        ODD_N,
        (NUMBERS,),
    ),
    Fault(
        "C loaded past its last column",
        At("AccumulatorPairs::load_c", "if (at.second_inside", occurrence=1).argument(0, "at.first_inside"),
        ONE_TILE,
        ODD_N,
        ("bounds",),
    ),
    Fault(
        "two columns with the bias of one",
        At("AccumulatorPairs::load", "column(subtile, j) + e").replace("column(subtile, j)"),
        ROW_BIAS,
        ONE_CTA,
        (NUMBERS,),
    ),
    Fault(
        "bias read past its end",
        At("AccumulatorPairs::load", "if (bias.along_columns && index < columns())").replace("if (bias.along_columns)"),
        ROW_BIAS,
        RAGGED_N,
        ("bounds",),
    ),
    Fault(
        "ragged rows stored by the TMA",
        At("Epilogue::finish_subtile", "if (!PLAIN && ends_within_vec").argument(0, "false"),
        ONE_TILE,
        RAGGED_N,
        ("bounds",),
    ),
    Fault(
        "the last vector of a ragged row stored whole",
        At("Epilogue::copy_out", "if (... <= columns_of_d").argument(0, "true"),
        ONE_TILE,
        RAGGED_N,
        ("bounds",),
    ),
    # ---- Stream-K
    Fault(
        "partial accumulators of a share announced without a fence",
        At("SplitK::last_to_arrive", "global_fence()", occurrence=1).drop(),
        STREAM_K,
        ONE_SHARED,
        ("race",),
    ),
    Fault(
        "shares added before the last of them has arrived",
        At("StreamK::store_partials", "last_to_arrive(").argument(1, "last - first"),
        STREAM_K,
        ONE_SHARED,
        ("race", "poison", "uninitialised", "write_once", NUMBERS),
    ),
    Fault(
        "the first share added twice",
        At("StreamK::add_partials", "sums.clear()").insert_after(
            "add(sums, partials + place(first * ranks + rank, true), 0);"
        ),
        STREAM_K,
        ONE_SHARED,
        (NUMBERS,),
    ),
    Fault(
        "shares added in the order of their arrival",
        At("StreamK::add_partials", "for (uint32_t sharer = first; sharer <= last; ++sharer) {").replace(
            "for (uint32_t i = first; i <= last; ++i) {"
            " uint32_t const sharer = first + (i + atoms::cta_x()) % (last - first + 1);"
        ),
        STREAM_K,
        ONE_SHARED,
        (NUMBERS,),
    ),
    Fault(
        "the first block of rows finished in place of every block",
        At("gemm", "add_partials(sums, sharers").argument(2, "0"),
        STREAM_K_BLOCKS,
        ONE_SHARED_BY_BLOCKS,
        (NUMBERS,),
    ),
    Fault(
        "all blocks of rows finished at one place",
        At("gemm", "+ block * 64").replace(""),
        STREAM_K_BLOCKS,
        ONE_SHARED_BY_BLOCKS,
        ("write_once", "poison", NUMBERS),
    ),
    Fault(
        "one workspace place for both tiles of a share",
        At("StreamK::place", "(cta * 2 + begins)").replace("cta * 2"),
        STREAM_K,
        FOUR_SHARED,
        ("race", NUMBERS),
    ),
    Fault(
        "a share does not begin where the previous one ends",
        At("StreamScheduler", "smaller(all.begin(worker + 1), end) - begin").replace("smaller(all.count, end - begin)"),
        STREAM_K,
        FOUR_SHARED,
        ("write_once", NUMBERS),
    ),
    Fault(
        "stream-K counter not reset",
        At("StreamK::store_partials", "st_global(counter").drop(),
        STREAM_K,
        ONE_SHARED,
        (NUMBERS,),
    ),
    Fault(
        "ring skips whole tiles where the other consumer has a part of one",
        At("gemm", "state.advance(").argument(0, "k_tiles"),
        STREAM_K_PINGPONG,
        FOUR_SHARED,
        ("deadlock", "race", "mbarrier", NUMBERS),
    ),
    Fault(
        "one flag for the splits of both consumers",
        At("gemm", "shared.is_last[Policy::pingpong ? consumer : 0]", occurrence=1).replace("shared.is_last[0]"),
        LAUNCH_PINGPONG,
        SIX_WGMMA_TILES,
        ("race",),
    ),
    Fault(
        "shares added before all CTAs stored their partials",
        At("SplitKShares::wait_for_share", "(now & counted) != splits && !(now & alone)").replace("false"),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("race", "poison", "uninitialised", NUMBERS),
    ),
    Fault(
        "partials of shares announced without a fence",
        At("SplitKShares::exchange", "global_fence()", occurrence=1).drop(),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("race",),
    ),
    Fault(
        "partials of shares read without a fence",
        At("SplitKShares::exchange", "global_fence()", occurrence=2).drop(),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("race",),
    ),
    Fault(
        "all CTAs of a tile finish the first share",
        At("SplitKShares::wait_for_share", "return split").replace("return 0"),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("race", "poison", "write_once", NUMBERS),
    ),
    Fault(
        "the counter of shares not reset",
        At("SplitKShares::wait_for_share", "0 - last").replace("0"),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("deadlock", "endless", "race", "poison", NUMBERS),
    ),
    Fault(
        "no CTA finishes a tile for which another one has given up",
        At("SplitKShares::wait_for_share", "is_last ? whole : nothing").replace("nothing"),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("write_once", NUMBERS),
    ),
    Fault(
        "a CTA gives up without telling the others",
        At("SplitKShares::wait_for_share", "now, now | alone").replace("now, now"),
        LAUNCH_CLUSTER,
        DEFAULT_CASES,
        ("write_once", NUMBERS),
    ),
    Fault(
        "shares of the wrong columns",
        At("SplitKShares::add", "index % Finish::subtiles * groups").replace("0"),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        (NUMBERS,),
    ),
    Fault(
        "one counter for the tiles of a cluster",
        At("SplitK::reduce", "work.shared * ranks + rank").replace("work.shared * ranks"),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("race", "poison", "uninitialised", "write_once", NUMBERS),
    ),
    Fault(
        "a bias of the launch along the other axis",
        At("AccumulatorPairs::is", "problem.bias_kind == uint32_t(kind)").replace(
            "problem.bias_kind != uint32_t(kind)"
        ),
        LAUNCH_CLUSTER,
        SIX_WGMMA_TILES,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "one flag for the shares of both consumers",
        At("gemm", "shared.is_last[Policy::pingpong ? consumer : 0]", occurrence=2).replace("shared.is_last[0]"),
        STREAM_K_PINGPONG,
        FOUR_SHARED,
        ("race",),
    ),
)

# ---- Kernels on wgmma: copies by threads ------------------------------------------------------------------------------

THREAD_COPY = {
    "arch": "sm_90a",
    "mma": "wgmma",
    "copy": "cp_async",
    "align": "2",
    "tile": "64x64x64",
    "stages": "3",
    "consumers": "1",
    "schedule": "one_tile",
    "raster": "row",
}
THREAD_COPY_NT = {**THREAD_COPY, "layout": "nt"}
THREAD_COPY_OF_ARRAYS = {**THREAD_COPY, "pointer_arrays": "on"}
SEVEN_K_TILES, RAGGED_EVEN, RAGGED_ODD = "64x64x448", "62x64x334", "61x61x131"

WGMMA_CP_ASYNC = (
    Fault(
        "wgmma: the first D for the whole batch of pointer arrays",
        At("AccumulatorPairs::d_at", "(problem.d), batch, 0").replace("(problem.d), 0, 0"),
        THREAD_COPY_OF_ARRAYS,
        "64x64x64@3",
        (NUMBERS, "write_once"),
    ),
    Fault(
        "wgmma: the first B for the whole batch of pointer arrays",
        At("CpAsyncPipeline::load", "(problem.b), batch").replace("(problem.b), 0"),
        THREAD_COPY_OF_ARRAYS,
        "64x64x64@3",
        (NUMBERS,),
    ),
    Fault(
        "copies multiplied without a fence between the proxies",
        At("CpAsyncPipeline::consumer_wait", "fence_proxy_async()").drop(),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("proxy",),
    ),
    Fault(
        "fence between the proxies before the copies have arrived",
        At("CpAsyncPipeline::consumer_wait", "Base::consumer_wait()").swap_with_next(),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("proxy",),
    ),
    Fault(
        "copies multiplied before they have arrived",
        At("CpAsyncPipeline::consumer_wait", "Base::consumer_wait()").drop(),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("race",),
    ),
    Fault(
        "arrival that does not wait for the copies",
        At("CpAsyncPipeline::load", "cp_async_mbarrier_arrive").replace("mbarrier_arrive"),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("race",),
    ),
    Fault(
        "no arrival after the copies",
        At("CpAsyncPipeline::load", "else { atoms::cp_async_mbarrier_arrive(full); }").replace("else { }"),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("deadlock",),
    ),
    Fault(
        "copies of one thread not awaited",
        At("CpAsyncPipeline::init", "Base::init(").argument(2, "@ - 1"),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("race", "mbarrier"),
    ),
    Fault(
        "stage overwritten before it was released",
        At("TmaPipeline::producer_acquire", "mbarrier_wait(").drop(),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("race", "mbarrier"),
    ),
    Fault(
        "producer ends before its copies have arrived",
        At("gemm", "cp_async_wait<0>").drop(),
        THREAD_COPY,
        SEVEN_K_TILES,
        ("pending",),
    ),
    Fault(
        "rows past the extent copied",
        At("BoxCopy::copy", "cp_async<...>(").argument(2, "true"),
        THREAD_COPY,
        RAGGED_EVEN,
        ("bounds",),
    ),
    Fault(
        "last k-tile copied as a whole one",
        At("CpAsyncPipeline::load", "if (k_left >= Policy::tile_k").argument(0, "true"),
        THREAD_COPY,
        RAGGED_EVEN,
        ("bounds",),
    ),
    Fault(
        "padding read at the end of memory",
        At("CpAsyncPipeline::load", "if (k_left >= Policy::tile_k").argument(0, "k_left >= Policy::tile_k"),
        THREAD_COPY_NT,
        "61x61x128",
        ("bounds",),
    ),
    Fault(
        "chunks copied whole where the matrix ends in them",
        At("BoxCopy::copy_last", "bool const ends = ...;").replace("bool const ends = false;"),
        THREAD_COPY,
        RAGGED_ODD,
        ("bounds", NUMBERS),
    ),
    Fault(
        "stored elements announced by an arrival that waits for copies only",
        At("CpAsyncPipeline::load", "if (stores").argument(0, "false"),
        THREAD_COPY,
        RAGGED_ODD,
        ("race", "poison"),
    ),
    Fault(
        "copies beside stored elements not awaited",
        At("CpAsyncPipeline::load", "cp_async_wait<0>").drop(),
        THREAD_COPY,
        RAGGED_ODD,
        ("race", "poison"),
    ),
    Fault(
        "16-byte vectors not swizzled as wgmma reads them",
        At("BoxCopy::copy", "Boxes::swizzled").replace(""),
        THREAD_COPY,
        SEVEN_K_TILES,
        (NUMBERS,),
    ),
)

# ---- Kernels on mma.sync: fragments from global memory ----------------------------------------------------------------

TO_REGISTERS = {"arch": "sm_90", "mma": "m16n8k16", "copy": "ldg", "tile": "8x16x128", "stages": "2"}
TO_REGISTERS_TT = {**TO_REGISTERS, "layout": "tt"}
TWO_K_TILES, END_OF_K, END_OF_N, PART_OF_A_TILE = "8x32x256", "7x15x203", "7x27x200", "7x40x200"

MMA_SYNC_DIRECT = (
    Fault(
        "fragments from global memory: partial accumulators added before all warps have stored them",
        At("gemm", "cta_barrier()", after="store_partials<Policy>(product").drop(),
        TO_REGISTERS,
        TWO_K_TILES,
        ("race", "uninitialised"),
    ),
    Fault(
        "fragments from global memory: a vector loaded past the end of k",
        At("KMajorOperand::load", "v * block_k < left", occurrence=1).replace("v * block_k <= left"),
        TO_REGISTERS,
        END_OF_K,
        ("bounds", NUMBERS),
    ),
    Fault(
        "fragments from global memory: the end of k left out",
        At("end_of_product", "k < problem.k").replace("k < problem.k - 1"),
        TO_REGISTERS,
        END_OF_K,
        (NUMBERS,),
    ),
    Fault(
        "fragments from global memory: a warp's partial accumulators left out",
        At("store_sums", "int warp = 1").replace("int warp = 2"),
        TO_REGISTERS,
        TWO_K_TILES,
        (NUMBERS,),
    ),
    Fault(
        "fragments from global memory: a column past the last one",
        At("KMajorOperand::inside", "row < extent").replace("true"),
        TO_REGISTERS,
        END_OF_K,
        ("bounds",),
    ),
    Fault(
        "fragments from global memory, n contiguous: words that are not transposed",
        At("MnMajorOperand::transpose", "atoms::transposed(words[v][i][word])").replace("words[v][i][word]"),
        TO_REGISTERS_TT,
        TWO_K_TILES,
        (NUMBERS,),
    ),
    Fault(
        "fragments from global memory, n contiguous: a vector loaded past the end of k",
        At("MnMajorOperand::load", "here < left", occurrence=1).replace("here <= left"),
        TO_REGISTERS_TT,
        PART_OF_A_TILE,
        ("bounds", NUMBERS),
    ),
    Fault(
        "fragments from global memory, n contiguous: a vector loaded past the last element",
        At("MnMajorOperand::load", "lane_k() - ragged").replace("lane_k()"),
        TO_REGISTERS_TT,
        END_OF_N,
        ("bounds",),
    ),
    Fault(
        "fragments from global memory, n contiguous: a column past the last one in the last k",
        At("MnMajorOperand::load_end", "e + i * group_rows < rows").replace("true"),
        TO_REGISTERS_TT,
        END_OF_N,
        ("bounds",),
    ),
    Fault(
        "fragments from global memory, n contiguous: a vector of columns past the last one",
        At("MnMajorOperand::MnMajorOperand", "row + i * group_rows < extent ? ... : ...;").replace(
            "row + i * group_rows;"
        ),
        TO_REGISTERS_TT,
        PART_OF_A_TILE,
        ("bounds",),
    ),
)

# ---- Epilogues from expressions ---------------------------------------------------------------------------------------

_FORMULA = "scale: Column; residual: Matrix; gain: Scalar; relu(alpha * acc + bias) * scale * gain + residual"
EXPRESSION = {**_CP_ASYNC, "epilogue": _FORMULA}
EXPRESSION_90 = {"arch": "sm_90a", "tile": "64x24x64", "epilogue": _FORMULA}
_PAIR = "residual: Matrix; silu(gate) * up + bias + residual"
PAIR = {**_CP_ASYNC, "epilogue": _PAIR}
PAIR_90 = {"arch": "sm_90a", "tile": "64x80x64", "epilogue": _PAIR}
SUM_90 = {"arch": "sm_90a", "tile": "64x80x64", "epilogue": "relu(acc + bias)"}
_RESULTS = "y = acc + 1.5 + bias; (y, f32(y * 0.5), row_max(y), row_sum(y))"
RESULTS = {"arch": "sm_80", "tile": "64x64x32", "epilogue": _RESULTS}
RESULTS_DIRECT = {**RESULTS, "store": "direct"}
RESULTS_90 = {"arch": "sm_90a", "tile": "64x24x64", "epilogue": _RESULTS}
GROUPS_90 = {"arch": "sm_90a", "tile": "64x32x64", "epilogue": "y = acc + 1.5 + bias; (y, y * 0.5)"}
_COLUMNS = "y = acc + 1.5 + bias; (y, row_sum(y), column_sum(y), column_max(y))"
COLUMNS = {**RESULTS, "epilogue": _COLUMNS}
COLUMNS_90 = {**RESULTS_90, "epilogue": _COLUMNS}
AHEAD_90 = {
    "arch": "sm_90a",
    "tile": "64x128x64",
    "cluster": "1x1",
    "epilogue": "residual: Matrix; relu(acc + bias) + residual",
}
SEVERAL_TILES = "65x150x40,33x41x40@2"
PAIRED_SHAPES = "32x64x80,33x48x75@2"
RAGGED_BATCHES = "33x41x40,33x41x40@2,33x41x40,33x41x40@3"
"""Every second case passes its scalars by pointer, one for each matrix of the batch."""

EXPRESSIONS = (
    Fault(
        "a row of an expression from its start",
        At("OfNeighbours::Of::load", "aux_first<T>(aux, at.batch) + at.column").replace("aux_first<T>(aux, at.batch)"),
        EXPRESSION,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "a column of an expression from its start",
        At("OfNeighbours::Of::load", "aux_first<T>(aux, at.batch) + at.row)").replace("aux_first<T>(aux, at.batch))"),
        EXPRESSION,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "a matrix of an expression by another leading dimension",
        At("OfNeighbours::Of::load", "at.row * aux.leading").replace("at.row * (aux.leading + 8)"),
        EXPRESSION,
        WHOLE,
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "the first matrix of an expression for all of the batch",
        At("aux_first", "batch * aux.batch_stride").replace("0"),
        EXPRESSION,
        BATCHES,
        (NUMBERS,),
    ),
    Fault(
        "the first scalar for all of the batch",
        At("aux_scalar", "aux_first<float>(aux, batch)").replace("aux_first<float>(aux, 0)"),
        EXPRESSION,
        RAGGED_BATCHES,
        (NUMBERS,),
    ),
    Fault(
        "a bias after the activation",
        At("Expression::apply", "hgemm::expression::relu(x4)").replace("hgemm::expression::relu(x2) + x3"),
        EXPRESSION,
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a column of an expression by its upper row",
        At("OfSubtile::Of::number", "From::is_scalar ? 0 : e / 2").replace("0"),
        EXPRESSION_90,
        "65x25x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a row of an expression by its left column",
        At("OfSubtile::Of::number", "words[j] >> 8 * sizeof(T) * (e % 2)").replace("words[j]"),
        EXPRESSION_90,
        "65x25x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: neighbours in a matrix of an expression exchanged",
        At("OfSubtile::Of::number", "word >> 8 * sizeof(T) * (e % 2)").replace("word >> 8 * sizeof(T) * (1 - e % 2)"),
        EXPRESSION_90,
        "65x24x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: no last column of a matrix of an expression",
        At("OfMatrix::load", "at.pairs.column(at.subtile, j) == last").replace("false"),
        EXPRESSION_90,
        "65x25x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a row of an expression beyond its end",
        At("LoadedOfSubtile::Of::load", "column < columns").replace("column >= 0"),
        EXPRESSION_90,
        "65x25x70",
        ("bounds",),
    ),
    Fault(
        "wgmma: pairs of a row from an odd address",
        At("LoadedOfSubtile::Of::load", "reinterpret_cast<uint64_t>(first) % sizeof(PairBits) == 0").replace("true"),
        EXPRESSION_90,
        "65x25x70,33x41x40@2,33x41x40,33x41x40@3",
        ("alignment", "bounds", NUMBERS),
    ),
    Fault(
        "wgmma: a vector of a matrix in the box's row of another",
        At("OfMatrix::write", "first + i * rows").replace("first"),
        AHEAD_90,
        "65x128x70",
        ("uninitialised", "poison", NUMBERS),
    ),
    Fault(
        "wgmma: pairs of a matrix read before they are in the box",
        At("OfSubtile::Of::exchange", "warp_barrier()", occurrence=2).drop(),
        AHEAD_90,
        "65x128x70",
        ("race",),
    ),
    Fault(
        "wgmma: a matrix written over pairs of another before they are read",
        At("OfSubtile::Of::exchange", "warp_barrier()", occurrence=1).drop(),
        {**AHEAD_90, "epilogue": "scale: Matrix; residual: Matrix; acc * scale + residual"},
        "65x128x70",
        ("race",),
    ),
    Fault(
        "wgmma: a matrix of an expression in boxes that the TMA still reads",
        At("Epilogue::finish_subtile", "if constexpr (through_boxes) wait_for_boxes<waits>()").drop(),
        {**AHEAD_90, "tile": "128x128x64", "cooperation": "pingpong"},
        "130x260x70,300x256x70",
        ("race",),
    ),
    Fault(
        "wgmma: a matrix of an expression in boxes of the next stage that the TMA still reads",
        At("Epilogue::finish_subtile", "if constexpr (...) wait_for_boxes_of(next_stage())").drop(),
        {**AHEAD_90, "tile": "128x176x64", "cooperation": "pingpong"},
        "130x360x70,300x352x70",
        ("race",),
    ),
    Fault(
        "wgmma: boxes of the next stage awaited by another thread than the one that stores them",
        At("Epilogue::wait_for_boxes_of", "thread / 32 == stage").replace("thread / 32 != stage"),
        {**SUM_90, "tile": "128x176x64", "cooperation": "pingpong", "cluster": "1x1"},
        "130x360x70,300x352x70",
        ("race",),
    ),
    Fault(
        "wgmma: a vector of a matrix beyond its last column",
        At("OfMatrix::load", "n + 8 <= columns").replace("n < columns"),
        AHEAD_90,
        "65x150x70",
        ("bounds", "poison", NUMBERS),
    ),
    Fault(
        "wgmma: no last column in a vector of a matrix",
        At("OfMatrix::write", "e >= inside").replace("e >= inside - 1"),
        AHEAD_90,
        "65x150x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: the end of a matrix's row beyond its last row",
        At("OfMatrix::write", "m >= at.pairs.rows()").replace("false"),
        AHEAD_90,
        "65x150x70",
        ("bounds",),
    ),
    Fault(
        "wgmma: a row of an expression from the first of 4 lanes",
        At("OfSubtile::Of::exchange", "at.pairs.thread % 4").replace("0"),
        AHEAD_90,
        "65x128x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: the inputs of the second subtile for the first",
        At("gemm", "epilogue.load(first, 0").argument(1, "1"),
        AHEAD_90,
        "65x150x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: ping-pong: the inputs of the second subtile for the first",
        At("gemm", "epilogue.load(first, 0").argument(1, "1"),
        {**AHEAD_90, "cooperation": "pingpong"},
        "65x150x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: the inputs of a subtile for the next",
        At("Epilogue::run_loop", "load(next, count == 2").argument(1, "index"),
        AHEAD_90,
        "65x150x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a subtile of an expression by the branch of the next",
        At("EpilogueSubtile::pick_by_branches", "index < FIRST + COUNT / 2").replace("index <= FIRST + COUNT / 2"),
        AHEAD_90,
        "65x128x70",
        (NUMBERS,),
    ),
    Fault(
        "a gated pair: the gate for both factors",
        At("WarpEpilogue::store_expression", "values[SECOND + e]").replace("values[e]"),
        PAIR,
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "a gated pair: neighbouring vectors of a staged row as its factors",
        At("WarpEpilogue::first_float", "index * 8").replace("index * 4"),
        {"arch": "sm_80", "tile": "64x64x32", "epilogue": _PAIR},
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "a gated pair: the columns of B for those of D",
        At("columns_of_d", "problem.n / accumulators_of<Policy>").replace("problem.n"),
        PAIR,
        PAIRED_SHAPES,
        ("bounds",),
    ),
    Fault(
        "wgmma: a gated pair: the factors exchanged",
        At("Epilogue::evaluate", "(first, second").replace("(second, first"),
        PAIR_90,
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a gated pair: the place of B for that of D",
        At("EpilogueSubtile::place", "first_column / gated_parts + column").replace("first_column + column"),
        PAIR_90,
        "65x160x70",
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a row added with the accumulators, and again",
        At("Epilogue::evaluate", "apply<Pick::adds>").replace("apply<false>"),
        SUM_90,
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a row added with the accumulators, each to the other column of a pair",
        At("PickWithSum::operator()", "addend(inputs, j, e)").replace("addend(inputs, j, e ^ 1)"),
        SUM_90,
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: gelu of half a sum with the whole row",
        At("OfSubtile::Of::exchange", "HALVED ? halved<T>(loaded.words[j / 8]) : loaded").replace("loaded"),
        {**SUM_90, "epilogue": "gelu(acc + bias)"},
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: gelu of a whole sum as if it were half of it",
        At("PickWithSum::operator()", "Policy::Expression::halves ? ... : ...;").replace(
            "atoms::sum_in_branch(bits, addend);"
        ),
        {**SUM_90, "epilogue": "gelu(acc + bias)"},
        PAIRED_SHAPES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: boxes that a narrower last subtile lacks stored",
        At("Epilogue::store_boxes", "if (column >= subtile.count) continue").drop(),
        {**SUM_90, "tile": "128x176x64", "cooperation": "pingpong", "cluster": "1x1"},
        "130x360x70",
        ("race", "write_once"),
    ),
    # ---- Further results, and reductions of rows
    Fault(
        "a further result without its rows",
        At("OutOfNeighbours::Of::store", "at.row * aux.leading + at.column").replace("at.column"),
        RESULTS,
        SEVERAL_TILES,
        (NUMBERS, "write_once"),
    ),
    Fault(
        "wgmma: a further result without its rows",
        At("OutOfSubtile::Of::store", "pair.m * aux.leading + pair.n").replace("pair.n"),
        RESULTS_90,
        SEVERAL_TILES,
        (NUMBERS, "write_once"),
    ),
    Fault(
        "wgmma: groups of a further result without their rows",
        At("OutOfSubtile::Of::store_groups", "row * leading + column").replace("column"),
        GROUPS_90,
        SEVERAL_TILES,
        (NUMBERS, "write_once"),
    ),
    Fault(
        "wgmma: groups of a further result that the lanes do not exchange",
        At("OutOfSubtile::Of::store_groups", "transpose_quad(words, lane)").drop(),
        GROUPS_90,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a transposition with the wrong half",
        At("transpose_quad", "upper ? words[i] : words[i + bit]", occurrence=0).replace(
            "upper ? words[i + bit] : words[i]"
        ),
        GROUPS_90,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: the last columns of a further result beyond its end",
        At("OutOfSubtile::Of::store_groups", "e < inside").replace("e >= 0"),
        GROUPS_90,
        SEVERAL_TILES,
        ("bounds",),
    ),
    Fault(
        "wgmma: groups of a further result beyond its rows",
        At("OutOfSubtile::Of::store_groups", "row >= at.pairs.rows()").replace("false"),
        GROUPS_90,
        SEVERAL_TILES,
        ("bounds",),
    ),
    Fault(
        "a reduction before the other lanes have stored",
        At("store_through_shared", "barrier()", after="if constexpr (reduces)", occurrence=1).drop(),
        {**RESULTS, "warp_tile": "32x32"},
        SEVERAL_TILES,
        ("race",),
    ),
    Fault(
        "a reduction of one lane of four",
        At("store_direct_reduced", "reduce_quad(partials[half])").drop(),
        RESULTS_DIRECT,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "a reduction that goes on in the next rows",
        At("store_direct_reduced", "index % blocks == 0").replace("index == 0"),
        RESULTS_DIRECT,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a reduction of columns beyond D",
        At("OutOfSubtile::Of::reduce", "e % 2 < at.pairs.columns()").replace("e % 2 >= 0"),
        RESULTS_90,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "a largest number of at least 0",
        At("reduction_start", "atoms::bits_float(0xff800000u)").replace("0.f"),
        {**RESULTS, "epilogue": "(acc, row_max(-1.0 - abs(acc)))"},
        WHOLE,
        (NUMBERS,),
    ),
    Fault(
        "rows reduced before the last tile",
        At("Reduction::finish_rows", "last_to_arrive(counter").argument(1, "tiles > 1 ? tiles - 1 : tiles"),
        RESULTS,
        SEVERAL_TILES,
        ("race", "numbers", "poison"),
    ),
    Fault(
        "rows reduced without the last segment",
        At("Reduction::reduce_along", "int at = 0").replace("int at = 1"),
        RESULTS_90,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "counter of a row of tiles left",
        At("Reduction::finish_rows", "st_global(counter, 0u)").drop(),
        RESULTS_90,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "columns reduced before the last tile",
        At("Reduction::finish_columns", "last_to_arrive(counter").argument(1, "tiles > 1 ? tiles - 1 : tiles"),
        COLUMNS,
        SEVERAL_TILES,
        ("race", "numbers", "poison"),
    ),
    Fault(
        "columns of a tile reduced before the other warps have stored",
        At("Reduction::finish_columns", "Threads::barrier()").drop(),
        {**RESULTS, "warp_tile": "32x32", "epilogue": "(acc, column_sum(acc))"},
        SEVERAL_TILES,
        ("race",),
    ),
    Fault(
        "columns reduced with the segments of a tile for those of the next",
        At("Reduction::finish_columns", "int64_t(stride) * segments").replace("int64_t(stride)"),
        COLUMNS_90,
        "130x150x40",
        ("race", NUMBERS),
    ),
    Fault(
        "counter of a column of tiles left",
        At("Reduction::finish_columns", "st_global(counter, 0u)").drop(),
        COLUMNS,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "the counters of rows of tiles for those of columns",
        At("Reduction::finish", "rows > 0 ? problem.batch * tiles_m : 0").replace("0"),
        COLUMNS,
        "65x150x40,65x150x40@2",
        ("race", NUMBERS, "poison"),
    ),
    Fault(
        "the partial results of rows for those of columns",
        At("ReductionPartials::of_column", "of_rows + (matrix").replace("(matrix"),
        COLUMNS,
        SEVERAL_TILES,
        ("race", NUMBERS),
    ),
    Fault(
        "a column of one lane of eight",
        At("store_columns", "reduce_octet(kind, reduced(...))").replace(
            "reduced(kind, partials[0].column[slot][e], partials[1].column[slot][e])"
        ),
        COLUMNS,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "a column that goes on in the next block",
        At("store_direct_reduced", "clear_columns(partials[half])").replace(
            "if (index == 0) clear_columns(partials[half])"
        ),
        COLUMNS,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a column with rows beyond D",
        At("OutOfSubtile::Of::reduce", "at.pairs.row(at.subtile, half) < at.pairs.rows()").replace("true"),
        COLUMNS_90,
        SEVERAL_TILES,
        (NUMBERS,),
    ),
    Fault(
        "wgmma: a column beyond D",
        At("OutOfSubtile::Of::reduce", "column >= at.pairs.columns()").replace("false"),
        COLUMNS_90,
        "65x149x40",
        ("race", NUMBERS, "bounds"),
    ),
    Fault(
        "few rows: a gated pair: the next column as the second factor",
        At("store_sums", "part * 8").replace("part"),
        {**TO_REGISTERS, "epilogue": _PAIR},
        "16x96x512",
        (NUMBERS,),
    ),
)


# ---- An audit's faults, each found by the default cases of its kernel ---------------------------------------------------

AUDIT_80 = {"arch": "sm_80", "tile": "64x64x32", "stages": "3"}
AUDIT_SPLIT = {**AUDIT_80, "schedule": "split_k:3"}
AUDIT_UNALIGNED = {"arch": "sm_80", "tile": "64x64x32", "copy": "ldg_sts_unaligned", "align": "1"}
AUDIT_90 = {"arch": "sm_90a", "tile": "128x128x64", "cooperation": "cooperative", "consumers": "2", "cluster": "1x1"}
AUDIT_PERSISTENT = {**AUDIT_90, "schedule": "persistent"}
AUDIT_WIDE = {**AUDIT_90, "tile": "128x256x64", "raster": "group:8"}
AUDIT_PINGPONG = {"arch": "sm_90a", "tile": "64x128x64", "cooperation": "pingpong", "cluster": "1x1"}
AUDIT_CLUSTER = {"arch": "sm_90a", "tile": "128x64x64", "cluster": "2x1"}
AUDIT_CLUSTER_4 = {**AUDIT_CLUSTER, "cluster": "2x2"}
AUDIT_64 = {"arch": "sm_90a", "tile": "64x64x64", "cluster": "1x1"}
AUDIT_IN_CLUSTER = {"arch": "sm_90a", "tile": "64x64x64", "schedule": "split_k_cluster:2"}
AUDIT_CUTE = {
    **{"arch": "sm_90a", "form": "cute", "tile": "128x128x64", "layout": "nt", "cluster": "2x1"},
    **{"stages": "3", "bias": "column", "activation": "relu"},
}
AUDIT_TMA = {"arch": "sm_90a", "mma": "m16n8k16", "copy": "tma", "tile": "64x64x64"}


def _audit(name: str, edit: Edit | tuple[Edit, ...], options: dict[str, str], unfound: str = "") -> Fault:
    return Fault(f"audit: {name}", edit, options, DEFAULT_CASES, ANYTHING, unfound)


AUDIT = (
    # ---- The epilogue of mma.sync
    _audit(
        "C with D's leading dimension", At("WarpEpilogue::store_vec", "problem.ldc").replace("problem.ldd"), AUDIT_80
    ),
    _audit(
        "rows of D by a 32-bit product",
        At("WarpEpilogue::store_vec", "row * problem.ldd").replace("row * int(problem.ldd)"),
        AUDIT_80,
    ),
    _audit(
        "accumulators rounded to f16",
        At("WarpEpilogue::store_vec", "problem.alpha * values[e]").replace(
            "problem.alpha * atoms::to_float(atoms::from_float<f16>(values[e]))"
        ),
        AUDIT_80,
    ),
    _audit(
        "C read although beta is 0",
        At("WarpEpilogue::store_vec", "Policy::beta && problem.beta != 0.f").replace("Policy::beta"),
        AUDIT_80,
    ),
    _audit("beta left out", At("WarpEpilogue::store_vec", "problem.beta * atoms").replace("atoms"), AUDIT_80),
    _audit(
        "C with D's batch stride",
        At("WarpEpilogue::WarpEpilogue", "problem.batch_stride_c").replace("problem.batch_stride_d"),
        AUDIT_80,
    ),
    _audit(
        "D with C's batch stride",
        At("WarpEpilogue::WarpEpilogue", "problem.batch_stride_d").replace("problem.batch_stride_c"),
        AUDIT_80,
    ),
    _audit(
        "one bias for all matrices",
        At("WarpEpilogue::WarpEpilogue", "batch * problem.batch_stride_bias").replace("0"),
        {**AUDIT_80, "bias": "row"},
    ),
    _audit(
        "a column bias along the rows",
        At("WarpEpilogue::store_vec", "bias + row").replace("bias + column + e"),
        {**AUDIT_80, "bias": "column"},
    ),
    _audit(
        "two digits of gelu exchanged",
        At("", "0.051318862f").replace("0.053118862f"),
        {**AUDIT_80, "activation": "gelu"},
    ),
    # ---- The mainloop of mma.sync
    _audit(
        "copies stop one k-tile late",
        At("OperandCopy::advance", "columns_left <= 0").replace("columns_left < 0"),
        AUDIT_80,
    ),
    _audit(
        "B with m as its extent",
        At("TileOperands::copy_b", "n_first, problem.n").replace("n_first, problem.m"),
        AUDIT_80,
    ),
    _audit(
        "the end of k not filled with zeros",
        At("OperandCopy::copy_ends", "(k - k_first)").replace("chunk"),
        AUDIT_80,
    ),
    _audit(
        "passes of a copy by a 32-bit step",
        At("OperandCopy", "int64_t pass_step;").replace("int pass_step;"),
        AUDIT_80,
    ),
    _audit("no swizzle", At("SmemLayout::swizzle", "return ...;").replace("return element;"), AUDIT_80),
    _audit(
        "every second k-tile promoted",
        At("CpAsyncMainloop::multiply_pipelined", "accumulators.promote()").replace(
            "if (k_tiles % 2 == 1) accumulators.promote()"
        ),
        {**AUDIT_80, "acc": "f16_promoted"},
    ),
    _audit(
        "tf32 fragments from another column",
        At("LdmatrixReader::LdmatrixReader", "+ lane / 4").replace("+ lane / 8"),
        {"arch": "sm_80", "dtype": "tf32", "tile": "64x64x32", "layout": "nn"},
    ),
    _audit(
        "the first k-tile is not stored to shared memory",
        At("RegisterCopyMainloop::run", "store_all()").drop(),
        {"arch": "sm_75", "tile": "64x64x32"},
    ),
    _audit("shifts of half words", At("UnalignedCopy::cut", "bytes % 4 * 8").replace("bytes % 2 * 8"), AUDIT_UNALIGNED),
    _audit(
        "a pair shifted to another word",
        At("UnalignedCopy::cut", "by_pair ? from.high.z").replace("by_pair ? from.high.y"),
        AUDIT_UNALIGNED,
    ),
    # ---- Splits and order of tiles
    _audit(
        "split tiles of a batch in one place",
        At("SplitK::reduce", "work.shared * ranks").replace("work.tile * ranks"),
        AUDIT_SPLIT,
    ),
    _audit(
        "the last split but one finishes a tile, too",
        At("SplitK::last_to_arrive", "before == sharers - 1").replace("before >= sharers - 2"),
        AUDIT_SPLIT,
    ),
    _audit(
        "the last group as wide as all",
        At("Scheduler::in_strips", "smaller(across - first, strip)").replace("strip"),
        AUDIT_80,
    ),
    _audit(
        "the last group as wide as all, on a large tile",
        At("Scheduler::in_strips", "smaller(across - first, strip)").replace("strip"),
        AUDIT_WIDE,
    ),
    _audit(
        "shares added without a fence",
        At("SplitK::last_to_arrive", "global_fence()", after="global_fetch_add(").drop(),
        {**AUDIT_64, "schedule": "stream_k"},
    ),
    _audit(
        "shares of a batch in the place of one matrix",
        At("StreamK", "work.batch * scheduler.tiles() + work.tile").replace("work.tile"),
        {**AUDIT_64, "schedule": "stream_k"},
    ),
    # ---- The ring of stages
    _audit("phase never toggled", At("PipelineState::advance", "phase ^= 1").drop(), AUDIT_90),
    _audit(
        "skipped stages counted in the wrong order",
        At("PipelineState::advance", "phase ^= (stage + count)").swap_with_next(),
        AUDIT_PINGPONG,
    ),
    _audit("consumers do not wait for their turn", At("gemm", "mainloop.order_wait(consumer)").drop(), AUDIT_PINGPONG),
    _audit(
        "the turn passed on before the products",
        (
            At("gemm", "mainloop.order_arrive(consumer)", occurrence=1).drop(),
            At("gemm", "mainloop.order_wait(consumer)").replace(
                "mainloop.order_wait(consumer), mainloop.order_arrive(consumer)"
            ),
        ),
        AUDIT_PINGPONG,
    ),
    _audit(
        "no wait for the first stage of a tile",
        At("TmaPipeline::load", "producer_acquire()").replace(
            "(k != k_first * Policy::tile_k ? producer_acquire() : &barriers.full[state.stage])"
        ),
        AUDIT_90,
    ),
    _audit(
        "no wait for the first stage of a tile of mma.sync",
        At("TmaPipeline::load", "producer_acquire()").replace(
            "(k != k_first * Policy::tile_k ? producer_acquire() : &barriers.full[state.stage])"
        ),
        AUDIT_TMA,
    ),
    _audit(
        "the stage in use released",
        At("Mainloop::multiply", "if (k_tile > 0) consumer_release(previous)").replace(
            "if (k_tile > 0) consumer_release(state.stage)"
        ),
        AUDIT_90,
    ),
    _audit("one group more in flight", At("Mainloop::multiply", "wgmma_wait<1>").template_argument(0, "2"), AUDIT_90),
    _audit("sums not continued", At("Mainloop::multiply", "k_tile > 0 || k > 0").replace("k > 0"), AUDIT_90),
    _audit("barriers not fenced after their start", At("gemm", "atoms::mbarrier_init_fence()").drop(), AUDIT_90),
    _audit(
        "one matrix of a batch shared by none",
        At("TmaPipeline::source", "problem.batch_stride_b) == 0 ? 0 : batch").replace(
            "problem.batch_stride_b) == -1 ? 0 : batch"
        ),
        AUDIT_90,
    ),
    _audit(
        "stages off 1024 bytes",
        (
            At("TmaPipeline::Shared", "alignas(1024) unsigned char a").replace("alignas(128) unsigned char a"),
            At("TmaPipeline::Shared", "alignas(1024) unsigned char b").replace(
                "alignas(128) unsigned char shift_[128]; alignas(128) unsigned char b"
            ),
        ),
        AUDIT_90,
    ),
    _audit(
        "barriers before the stages",
        (
            At("SharedStorage", "typename Mainloop<Policy>::Shared mainloop;").insert_before(
                "alignas(128) typename Mainloop<Policy>::Barriers barriers; "
            ),
            At("SharedStorage", "typename Mainloop<Policy>::Barriers barriers;", occurrence=1).drop(),
            At("TmaPipeline::Shared", "alignas(1024) unsigned char a").replace("alignas(128) unsigned char a"),
            At("TmaPipeline::Shared", "alignas(1024) unsigned char b").replace("alignas(128) unsigned char b"),
            At("Epilogue::Shared", "alignas(1024) unsigned char subtile").replace("alignas(128) unsigned char subtile"),
        ),
        AUDIT_90,
    ),
    _audit(
        "the instruction of another type",
        At("", "HGEMM_WGMMA(").argument(0, "64x128x16_F32BF16BF16_SS"),
        AUDIT_90,
    ),
    _audit(
        "row groups of another swizzle",
        At("WgmmaOperand::descriptor", "8 * Boxes::row_bytes / 16").replace("8 * 128 / 16"),
        {"arch": "sm_90a", "tile": "128x128x32", "cluster": "1x1"},
    ),
    _audit(
        "boxes along m as along k",
        At("WgmmaOperand", "Boxes::row_bytes : Boxes::box_bytes) / 16").replace("Boxes::row_bytes : 16) / 16"),
        {"arch": "sm_90a", "tile": "128x128x64", "cluster": "1x1", "layout": "nt"},
    ),
    _audit(
        "every lane loads",
        At("gemm", "warp == Mainloop<Policy>::warps && atoms::elect_one()").replace("warp == Mainloop<Policy>::warps"),
        AUDIT_TMA,
    ),
    _audit(
        "stage full before its copies",
        At("CpAsyncPipeline", "atoms::cp_async_wait<0>()").drop(),
        {"arch": "sm_90a", "mma": "wgmma", "copy": "cp_async", "align": "2", "tile": "64x64x64"},
    ),
    # ---- Clusters
    _audit(
        "barriers of a cluster used before they are ready",
        (
            At("gemm", "atoms::cluster_arrive_relaxed()", occurrence=1).replace("atoms::cta_barrier()"),
            At("gemm", "atoms::cluster_wait()", occurrence=1).drop(),
        ),
        AUDIT_CLUSTER,
    ),
    _audit(
        "all CTAs of a cluster awaited",
        At("TmaPipeline::init", "Place::neighbours").replace("Place::size"),
        AUDIT_CLUSTER_4,
    ),
    _audit(
        "a slice from the first row",
        At("TmaBoxes::load", "(Side::k_major ? first : k) + row").replace("(Side::k_major ? first : k)"),
        AUDIT_CLUSTER,
    ),
    _audit(
        "a worker skips as many tiles as CTAs",
        At("gemm", "scheduler(problem, worker, atoms::grid_x() / Place::size)").replace(
            "scheduler(problem, worker, atoms::grid_x())"
        ),
        AUDIT_CLUSTER,
    ),
    _audit(
        "a stage released to the own column twice",
        At("ClusterPlace::neighbour", "(other + (other >= column))").replace("other"),
        AUDIT_CLUSTER_4,
    ),
    _audit(
        "sums of an empty split in a cluster",
        At("gemm", "if (mine.k.count == 0) accumulators.clear()", occurrence=2).drop(),
        AUDIT_IN_CLUSTER,
    ),
    _audit(
        "partials over those of another CTA",
        At("SplitKCluster::exchange", "split * vecs +").replace("split * 0 +"),
        AUDIT_IN_CLUSTER,
    ),
    _audit(
        "sums of an empty split",
        At("gemm", "if (mine.k.count == 0) accumulators.clear()", occurrence=1).drop(),
        {**AUDIT_64, "schedule": "split_k:3"},
    ),
    _audit(
        "half of the cluster declared",
        At("", "HGEMM_CLUSTER_KERNEL(").argument(2, "1"),
        AUDIT_CLUSTER,
    ),
    _audit("half of the threads declared", At("", "HGEMM_KERNEL(").argument(0, "64"), AUDIT_80),
    # ---- Launches that overlap
    _audit("no wait for the previous launch", At("gemm", "atoms::wait_on_dependent_grids()").drop(), AUDIT_90),
    _audit(
        "a programmatic launch that neither waits nor begins the next",
        (
            At("gemm", "atoms::wait_on_dependent_grids()").drop(),
            At("gemm", "atoms::launch_dependent_grids()").drop(),
        ),
        AUDIT_90,
    ),
    # ---- The epilogue of wgmma
    _audit(
        "C with D's leading dimension, wgmma",
        At("AccumulatorPairs::c_at", "problem.ldc", occurrence=2).replace("problem.ldd"),
        AUDIT_90,
    ),
    _audit(
        "neighbours of C in a row, although swapped",
        At("AccumulatorPairs::c_step", "Policy::swap_ab ? problem.ldc : 1").replace("1"),
        {"arch": "sm_90a", "tile": "32x64x64", "swap_ab": "on", "cluster": "1x1"},
    ),
    _audit(
        "lanes of stmatrix exchanged",
        At("Epilogue::write_halves", "offset(warp * 16 + lane % 16, ...)").replace(
            "offset(warp * 16 + lane % 8 + lane / 16 * 8, in_box + (step == 2 ? lane / 8 % 2 : 0))"
        ),
        AUDIT_90,
    ),
    _audit("boxes with another swizzle", At("StagedSubtile::offset", "bytes >> 3").replace("bytes >> 4"), AUDIT_90),
    _audit(
        "pairs of floats in one place",
        At("Epilogue::write_floats", "column % 4 * 4").replace("column % 2 * 4"),
        {"arch": "sm_90a", "tile": "128x128x64", "cluster": "1x1", "out": "f32"},
    ),
    _audit(
        "one barrier for both consumers",
        (
            At("Epilogue::wait_for_boxes", "named_barrier(").argument(0, "1"),
            At("Epilogue::boxes_are_written", "named_barrier(").argument(0, "1"),
        ),
        AUDIT_90,
    ),
    _audit("stores not committed", At("Epilogue::store_boxes", "tma_store_commit()").drop(), AUDIT_90),
    _audit(
        "boxes written while others store",
        At("Epilogue::boxes_are_written", "named_barrier(").drop(),
        AUDIT_90,
    ),
    _audit(
        "one element past the end of a row",
        At("Epilogue::copy_out", "n + e < columns_of_d").replace("n + e <= columns_of_d"),
        AUDIT_90,
    ),
    _audit(
        "one store more in flight",
        At("Epilogue::wait_for_boxes", "tma_store_wait_read<").template_argument(0, "@ + 1"),
        {"arch": "sm_90a", "tile": "128x256x64", "cluster": "2x1"},
    ),
    _audit(
        "one store more in flight, on a small tile",
        At("Epilogue::wait_for_boxes", "tma_store_wait_read<").template_argument(0, "@ + 1"),
        {"arch": "sm_90a", "tile": "128x64x64", "stages": "3", "cluster": "1x1", "schedule": "persistent"},
    ),
    _audit(
        "the fence by one thread",
        At("Epilogue::boxes_are_written", "atoms::fence_proxy_async()").replace(
            "if (stores) atoms::fence_proxy_async()"
        ),
        AUDIT_90,
    ),
    _audit(
        "the fence by one thread, after the barrier",
        (
            At("Epilogue::boxes_are_written", "atoms::fence_proxy_async()").swap_with_next(),
            At("Epilogue::boxes_are_written", "atoms::fence_proxy_async()").replace(
                "if (thread == 0) atoms::fence_proxy_async()"
            ),
        ),
        AUDIT_90,
    ),
    _audit("one box for all subtiles", At("Epilogue::finish_subtile", "stage = next_stage()").drop(), AUDIT_PERSISTENT),
    _audit(
        "the first box again after a ragged row",
        At("Epilogue::finish_subtile", "copy_out(subtile, boxes);").replace(
            "copy_out(subtile, boxes); if constexpr (Policy::epilogue_stages > 1) stage = 0;"
        ),
        AUDIT_PERSISTENT,
        "equivalent: where rows are ragged, no TMA store is in flight, and a barrier precedes the next writes",
    ),
    _audit(
        "no more registers for consumers",
        At("gemm", "atoms::setmaxnreg_inc<...>()").drop(),
        AUDIT_PERSISTENT,
        "equivalent on the CPU: ptxas then spills, which inspection rejects",
    ),
    _audit(
        "partial sums by another cache operator",
        At("SplitK", "ld_global_l2(", occurrence=1).replace("ld_global("),
        AUDIT_SPLIT,
        "equivalent: the fence before the loads orders them, whichever cache they use",
    ),
    # ---- Form cute
    _audit(
        "CuTe: one group more in flight",
        At("", "warpgroup_wait<1>()").replace("warpgroup_wait<2>()"),
        AUDIT_CUTE,
    ),
    _audit("CuTe: no wait for the previous launch", At("", "atoms::wait_on_dependent_grids()").drop(), AUDIT_CUTE),
    # ---- Atoms of the device, in whose place the source has others on the CPU
    _audit(
        "no fence between the proxies on the device",
        At("fence_proxy_async", "asm volatile(...)").drop(),
        AUDIT_90,
    ),
    _audit(
        "one group more in flight on the device",
        At("cp_async_wait", "cute::cp_async_wait<").template_argument(0, "PENDING + 1"),
        AUDIT_80,
    ),
    _audit(
        "f16 rounded towards zero on the device",
        At("", "__float2half_rn(").replace("__float2half_rz("),
        AUDIT_80,
    ),
    _audit("no fence of the device", At("global_fence", "__threadfence()").drop(), AUDIT_SPLIT),
)

# ---- The order of accumulation. Every result is within its bound. ------------------------------------------------------


def _order(name: str, edit: Edit | tuple[Edit, ...], options: dict[str, str]) -> Fault:
    return Fault(f"order: {name}", edit, options, DEFAULT_CASES, (NUMBERS,))


def _k_tiles_in_order(k: str) -> tuple[Edit, Edit]:
    """Return edits with which the TMA loads another k-tile than the next one."""
    return tuple(At("TmaPipeline::load", f"{side}::load(").argument(4, k) for side in "AB")


_LAST_FIRST = "k == k_first * Policy::tile_k ? k_end - Policy::tile_k : k - Policy::tile_k"
_WGMMA_ORDER = {"arch": "sm_90a", "mma": "wgmma", "tile": "64x64x64", "stages": "3"}
_TMA_ORDER = {"arch": "sm_90", "mma": "m16n8k16", "copy": "tma", "tile": "64x64x32", "stages": "3"}
_SERIAL_PARTS = {**_WGMMA_ORDER, "schedule": "launch", "raster": "launch", "serial_parts": "on"}
_SPLIT_ORDER = {"arch": "sm_80", "tile": "64x64x32", "schedule": "split_k:3"}

ORDER = (
    _order("the remainder first", _k_tiles_in_order(_LAST_FIRST), _WGMMA_ORDER),
    _order(
        "k-tiles in another order in some rows of tiles",
        _k_tiles_in_order(f"m_first / Policy::tile_m % 2 == 0 ? k : {_LAST_FIRST}"),
        _WGMMA_ORDER,
    ),
    _order(
        "k-tiles in another order in one matrix of a batch",
        _k_tiles_in_order(f"batch == 0 ? k : {_LAST_FIRST}"),
        _TMA_ORDER,
    ),
    _order(
        "k-tiles in another order in products of few rows",
        _k_tiles_in_order(f"problem.m > 1 ? k : {_LAST_FIRST}"),
        _TMA_ORDER,
    ),
    replace(
        _order(
            "parts of k that depend on m",
            At("gemm", "k_range(k_tiles, work)").replace("k_range(k_tiles + problem.m / 64 * 2, work)"),
            _SPLIT_ORDER,
        ),
        caught_by=ANYTHING,
    ),  # also by the count of tensor instructions
    _order(
        "parts of k added backwards",
        At("SplitK::reduce", "uint64_t(split) * vecs, first").replace(
            "uint64_t(work.splits - 1 - split) * vecs, first"
        ),
        _SPLIT_ORDER,
    ),
    _order(
        "whole tiles in one part beside tiles of several",
        At("gemm", "int(scheduler.splits())").replace("1"),
        _SERIAL_PARTS,
    ),
    _order(
        "the longer parts of whole tiles last",
        At("gemm", "split.split = uint32_t(part)").replace("split.split = uint32_t(parts - 1 - part)"),
        _SERIAL_PARTS,
    ),
    _order(
        "the ends of rows in a step of their own",
        At("CpAsyncMainloop::run", "k_tiles -= ends").drop(),
        {"arch": "sm_90", "mma": "m16n8k16", "copy": "cp_async", "tile": "64x64x32"},
    ),
)


# ---- Faults in other places, on the cases of a proof -------------------------------------------------------------------

_STREAM_K = {**AUDIT_64, "schedule": "stream_k"}
_LAUNCH = {**AUDIT_64, "schedule": "launch", "raster": "launch"}
_LAUNCH_PAIRS = {**AUDIT_CLUSTER, "raster": "launch"}
_CP_ASYNC_WGMMA = {"arch": "sm_90a", "mma": "wgmma", "copy": "cp_async", "align": "2", "tile": "64x64x64"}
_FEW_ROWS = {"arch": "sm_90", "tile": "16x32x512", "copy": "ldg"}


def _other(name: str, edit: Edit | tuple[Edit, ...], options: dict[str, str]) -> Fault:
    return Fault(f"default cases: {name}", edit, options, DEFAULT_CASES, ANYTHING)


OTHERS = (
    _other(
        "a sharer of the last k-tile of a tile overlooked",
        At("StreamK::store_partials", "scheduler.k_tiles - 1").replace("scheduler.k_tiles - 2"),
        _STREAM_K,
    ),
    _other(
        "shares all as long as the longer ones",
        At("Shares::sharer", "(k_tile - of_longer) / count").replace("(k_tile - of_longer) / (count + 1)"),
        _STREAM_K,
    ),
    _other(
        "a share but for one k-tile taken for a tile",
        At("StreamK::reduce", "work.k_count == scheduler.k_tiles").replace("work.k_count + 1 >= scheduler.k_tiles"),
        _STREAM_K,
    ),
    _other(
        "a share runs over the end of its tile",
        At("StreamScheduler::next", "Whole::smaller(left, k_tiles - work.k_first)").replace("left"),
        _STREAM_K,
    ),
    _other(
        "CTAs of a cluster in one place of the workspace",
        At("StreamK::store_partials", "place(worker * ranks + rank, worker == first)").argument(0, "worker"),
        {**AUDIT_CLUSTER, "schedule": "stream_k"},
    ),
    _other(
        "a k-tile of zeros more",
        At("gemm", "problem.k + Policy::tile_k - 1").replace("problem.k + Policy::tile_k"),
        AUDIT_64,
    ),
    _other(
        "items of one matrix of the batch",
        At("Scheduler::Scheduler", "tiles() * problem.batch").replace("tiles()"),
        _LAUNCH,
    ),
    _other(
        "panels of rows",
        At("Scheduler::locate", "position, width, tiles_n, tiles_m").replace("position, width, tiles_m, tiles_n"),
        _LAUNCH,
    ),
    _other(
        "two pairs in one place of the order by GPC",
        At("PlacesOfPairs::position", "after % 7 >= 3").replace("after % 7 > 3"),
        _LAUNCH_PAIRS,
    ),
    _other(
        "the pairs before the rounds of GPCs behind the wave",
        At("PlacesOfPairs::position", "dealt + pair").replace("pairs + pair"),
        _LAUNCH_PAIRS,
    ),
    _other(
        "the order by GPC of a second wave in the place of the first",
        At("Scheduler::by_gpc", "return first + PlacesOfPairs").replace("return PlacesOfPairs"),
        _LAUNCH_PAIRS,
    ),
    _other("turns of ping-pong without parity", At("Mainloop::order_wait", "order_phase ^= 1").drop(), AUDIT_PINGPONG),
    _other(
        "multicast along the other axis",
        At("ClusterPlace::column_ranks", "column * Policy::cluster_m").replace("row * Policy::cluster_m"),
        AUDIT_CLUSTER_4,
    ),
    _other(
        "a neighbour never told that a stage is empty",
        At("TmaPipeline::consumer_release", "Place::neighbours").replace("Place::neighbours - 1"),
        AUDIT_CLUSTER_4,
    ),
    _other(
        "the stride of the other operand decides on its batch",
        At("TmaPipeline::source", "IS_A ? problem.batch_stride_a : problem.batch_stride_b").replace(
            "problem.batch_stride_a"
        ),
        {"arch": "sm_90a", "tile": "32x64x64", "swap_ab": "on", "cluster": "1x1"},
    ),
    _other(
        "the producer keeps its registers",
        At("gemm", "atoms::setmaxnreg_dec<...>()").drop(),
        {**AUDIT_90, "tile": "128x256x64", "schedule": "persistent"},
    ),
    _other(
        "one barrier for the reduction and the epilogue",
        At("ConsumerThreads::barrier", "named_barrier(").argument(0, "1"),
        {**AUDIT_90, "schedule": "stream_k"},
    ),
    _other(
        "the last subtile as wide as the others",
        At("EpilogueSubtile::place", "tile_columns - column < columns ? tile_columns - column : columns").replace(
            "columns"
        ),
        {**AUDIT_64, "tile": "64x80x64"},
    ),
    _other(
        "ragged rows of D in 32 bits",
        At("Epilogue::copy_out", "m * problem.ldd").replace("int(m * problem.ldd)"),
        AUDIT_64,
    ),
    _other(
        "steps of k-tiles in 32 bits",
        At("BoxCopy", "int64_t k_tile_step").replace("int k_tile_step"),
        {
            **_CP_ASYNC_WGMMA,
            "layout": "nt",
        },
    ),
    _other(
        "the k of the last k-tile from the first one",
        At("CpAsyncPipeline::load", "k_left -= Policy::tile_k").drop(),
        _CP_ASYNC_WGMMA,
    ),
    _other(
        "elements of few rows in another stride",
        At("store_sums", "index += Policy::threads").replace("index += Policy::threads + 1"),
        _FEW_ROWS,
    ),
    _other(
        "the end of k of the first matrix",
        At("end_of_product", "batch * problem.batch_stride_a + row").replace("row"),
        _FEW_ROWS,
    ),
    _other(
        "sums of a cluster from the own CTA",
        At("SplitKCluster::add", "split * vecs +").drop(),
        AUDIT_IN_CLUSTER,
    ),
    # ---- Sums of all parts, turns of consumers, and threads that act for others
    _other(
        "whole tiles by their last part",
        At("gemm", "sums.add(accumulators)").replace("sums.convert(accumulators)"),
        _SERIAL_PARTS,
    ),
    _other("the second consumer begins", At("gemm", "int owner = 0").replace("int owner = 1"), AUDIT_PINGPONG),
    _other(
        "a turn ended by two warps",
        At("Mainloop::order_arrive", "% 32").replace("% 64"),
        AUDIT_PINGPONG,
    ),
    _other(
        "stages skipped without those of the round",
        At("PipelineState::advance", "(stage + count) / STAGES & 1").replace("count / STAGES & 1"),
        AUDIT_PINGPONG,
    ),
    _other(
        "boxes stored by a thread of each warp",
        At("gemm", "Epilogue<Policy>::stores_boxes(warp % 4) && atoms::elect_one()").replace("atoms::elect_one()"),
        AUDIT_90,
    ),
    _other(
        "partials of both consumers by the thread of the CTA",
        At("ConsumerThreads::index", "Policy::pingpong ? ... : ...;").replace("atoms::thread_index();"),
        LAUNCH_PINGPONG,
    ),
    _other(
        "stages of a cluster's split read by all but one CTA",
        At("Mainloop::init", "Policy::splits : warps").replace("Policy::splits - 1 : warps"),
        AUDIT_IN_CLUSTER,
    ),
    _other(
        "partials of a cluster's split for a narrower last subtile",
        At("SplitKCluster::received_bytes", "rest < groups ? rest : groups").replace("groups"),
        {**AUDIT_IN_CLUSTER, "tile": "64x72x64"},
    ),
    # ---- Places
    _other(
        "D by C's leading dimension, with pointer arrays",
        At("AccumulatorPairs::d_at", "problem.ldd", occurrence=1).replace("problem.ldc"),
        {**AUDIT_64, "pointer_arrays": "on"},
    ),
    _other(
        "B behind the last stage",
        At("Mainloop::multiply", "b = state.stage == 0 ? b_first : ...;").replace("b = b + B::bytes / 16;"),
        AUDIT_64,
    ),
    _other(
        "a pair's second factor from the first, for few rows",
        At("store_sums", "part * 8 + column % 8").replace("column % 8"),
        {**_FEW_ROWS, "epilogue": _PAIR},
    ),
    _other(
        "a gated pair's segment by the columns of D",
        At("store_partials", "column_first * gated_parts / Policy::warp_n").replace("column_first / Policy::warp_n"),
        {**RESULTS, "epilogue": "y = silu(gate) * up; (y, row_sum(y))"},
    ),
    # ---- Numbers that random operands seldom have, and long loops
    _other(
        "no bias of the launch as +0",
        At("AccumulatorPairs", "Bits(1) << (8 * sizeof(Out) - 1)").replace("Bits(0)"),
        {**AUDIT_64, "bias": "launch"},
    ),
    _other(
        "relu of NaN as 0",
        At("relu", "x < 0.f ? 0.f : x").replace("x > 0.f ? x : 0.f"),
        {**AUDIT_80, "activation": "relu"},
    ),
    _other(
        "partial results of the first eight segments of a row",
        At("reduce_along", "at < count").replace("at < in_flight && at < count"),
        RESULTS,
    ),
    _other(
        "partial results of the first eight segments of a column",
        At("reduce_along", "at < count").replace("at < in_flight && at < count"),
        COLUMNS_90,
    ),
)

FAULTS = (
    *MMA_SYNC,
    *REGISTER_COPY,
    *WGMMA,
    *MMA_SYNC_TMA,
    *WGMMA_CP_ASYNC,
    *MMA_SYNC_DIRECT,
    *EXPRESSIONS,
    *AUDIT,
    *ORDER,
    *OTHERS,
)
