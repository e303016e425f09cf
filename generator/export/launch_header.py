"""A C header with everything that a program needs to launch one kernel through the CUDA driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hgemm.dtypes import DTYPES
from hgemm.errors import RequestError
from hgemm.launch import OPERANDS
from hgemm.launch_traits import LaunchTraits, TensorMapRule

_ELEMENTS = {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Values of CUtensorMapDataType and CUtensorMapSwizzle. Source: cuda.h of CUDA 13.0."""

_TYPES = """#include <stdint.h>

/* The first parameter of the kernel, by value. Addresses are those of the device. Leading dimensions and batch strides count
 * elements. Fill what is not used with zeros. */
typedef struct HgemmProblem {
  uint64_t a, b, c, d, bias, workspace;
  int64_t lda, ldb, ldc, ldd, batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
  uint32_t splits, whole_tiles; /* for schedule launch: 1 and 0, which do not split k */
  int32_t raster_tiles;         /* for raster launch: the order of tiles, not 0; 8 is a good start */
  uint32_t bias_kind;           /* for bias launch: 0 none, 1 row, 2 column */
} HgemmProblem;

typedef struct HgemmMap { /* arguments of cuTensorMapEncodeTiled; box[0] is 0 if the operand has no map */
  uint32_t box[3];        /* elements: contiguous axis, other axis, batch */
  int type, swizzle;      /* CUtensorMapDataType, CUtensorMapSwizzle */
  int edge;               /* 1: the operand has three maps */
} HgemmMap;

typedef struct HgemmKernel {
  char const *symbol, *arch, *layout, *dtype_a, *dtype_b, *dtype_d;
  uint32_t threads, smem_bytes;          /* of a CTA; smem_bytes is dynamic shared memory */
  int32_t tile_m, tile_n, tile_k;        /* elements of D and of k that a CTA computes at a time */
  int32_t cluster_m, cluster_n;          /* CTA tiles of a cluster */
  int32_t cluster_ctas;                  /* CTAs of a cluster; its shape is compiled into the kernel */
  int32_t splits;                        /* CTAs that share the k of a tile */
  int32_t persistent;                    /* 1: launch at most as many CTAs as fit on the device */
  int32_t stream_k_ctas;                 /* stream-K: launch this many CTAs, but at most as many as fit; 0 for others */
  int32_t align_a, align_b, align_d;     /* addresses, leading dimensions and batch strides are multiples of so many elements */
  int32_t size_a, size_b, size_d;        /* bytes of an element */
  int64_t partial_bytes;                 /* of a tile in the workspace; 0: the kernel needs no workspace */
  int32_t map_count;                     /* of the second parameter. 3: A, B, D. 7: three of A, three of B, D. 0: there is none */
  HgemmMap maps[3];
} HgemmKernel;
"""


def launch_header(record: Mapping[str, Any]) -> str:
    """Return the header of a kernel's record.

    Raises: LibraryError if the record lacks a field. RequestError if the kernel reduces rows or columns.
    """
    traits = LaunchTraits.of(record)
    if traits.epilogue and traits.epilogue.reductions:
        names = ", ".join(one.name for one in traits.epilogue.reductions)
        raise RequestError(
            f"{traits.symbol} reduces rows or columns of D ({names}), and --header does not describe the workspace of reductions: "
            "launch it with the library of `hgemm export`, or from Python"
        )
    rules = {rule.operand: rule for rule in traits.tensor_maps}
    maps = ", ".join(_map(rules.get(name)) for name in OPERANDS)
    words = (traits.symbol, traits.arch, traits.layout, traits.dtype_a, traits.dtype_b, traits.dtype_d)
    rows = (
        ", ".join(f'"{word}"' for word in words),
        f"{traits.threads}, {traits.smem_bytes}",
        f"{traits.tile_m}, {traits.tile_n}, {traits.tile_k}",
        f"{traits.cluster_shape[0]}, {traits.cluster_shape[1]}, {traits.cluster[0]}",
        f"{traits.splits}, {int(traits.persistent)}, {traits.max_ctas}",
        f"{traits.align_a}, {traits.align_b}, {traits.align_d}",
        ", ".join(str(DTYPES[dtype].bytes) for dtype in (traits.dtype_a, traits.dtype_b, traits.dtype_d)),
        f"{0 if traits.decides_splits else traits.partial_bytes}",
        f"{traits.map_count}, {{{maps}}}",
    )
    values = ",\n".join(f"  {row}" for row in rows)
    more = ""
    if traits.pointer_arrays:
        more = (
            "/* a, b, c and d of HgemmProblem are arrays of `batch` addresses in device memory. "
            "Their batch strides are not used. */\n"
        )
    if traits.epilogue:
        names = ", ".join(one.name for one in (*traits.operands, *traits.outputs))
        more += (
            "/* HgemmProblem is followed by 32 bytes for each input of the epilogue and each result after D, in this order: "
            f"{names or 'none'}.\n"
            " * Each is {uint64_t address; int64_t leading, batch_stride; float value; padding of 4 bytes}. */\n"
        )
    return (
        f'/* How to launch {traits.symbol}. The page "Load a kernel by hand" explains each field. */\n'
        f"#ifndef HGEMM_KERNEL_H\n#define HGEMM_KERNEL_H\n\n{_TYPES}\n{more}"
        f"static HgemmKernel const kernel = {{\n{values},\n}};\n\n#endif\n"
    )


def _map(rule: TensorMapRule | None) -> str:
    if rule is None:
        return "{{0, 0, 0}, 0, 0, 0}"
    box = ", ".join(map(str, rule.box))
    return f"{{{{{box}}}, {_ELEMENTS[rule.element]}, {_SWIZZLES[rule.swizzle_bytes]}, {int(rule.edge)}}}"
