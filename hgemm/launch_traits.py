"""LaunchTraits: the facts about a kernel that a launch needs, read from its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE, Epilogue, EpilogueError, Input, Output, columns_of_d, parse_epilogue
from hgemm.errors import LibraryError
from hgemm.gpus import split_arch
from hgemm.problem import LAUNCH
from hgemm.record import current_rule, current_spec
from hgemm.tensor_maps import MAPS, MAPS_WITH_EDGES

GRID_RULES = ("one_tile", "persistent", "split_k", "split_k_cluster", "stream_k", LAUNCH)
INPUT, OUTPUT = "input ", "output "
"""Precede the names of the inputs of an expression, and of its further outputs, among the operands of a launch."""
MAX_MAP_STRIDE_BYTES = 2**40
"""TMA addresses strides below this. Source: CUDA Driver API 13.x, cuTensorMapEncodeTiled."""


@dataclass(frozen=True)
class TensorMapRule:
    """The parameters of one operand's tensor map. The kernel takes the maps of A, B and D as its second argument.

    Shapes: `box` is (contiguous axis, other axis, batch).
    Units: `box` counts elements.
    Fields: with `edge`, the kernel takes three maps of the operand: see hgemm.launch.operand_maps.
    """

    operand: str
    box: tuple[int, int, int]
    swizzle_bytes: int
    element: str
    edge: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> TensorMapRule:
        """Read one entry of a record's `launch.tensor_maps`."""
        x, y, z = entry["box"]
        return cls(entry["operand"], (x, y, z), entry["swizzle_bytes"], entry["element"], entry.get("edge", False))


@dataclass(frozen=True)
class LaunchTraits:
    """What the launch and the checks of a kernel need.

    Shapes: A (m, k) is k-contiguous if `layout` begins with t, B (k, n) if it ends with n. C and D (m, n) are row-major. bias
        is (n,) if `bias` is row, (m,) if it is column.
    Units: alignments and tiles count elements; `cluster_shape` counts CTA tiles along m and n.
    Fields: with `last_k_tile_first`, each accumulator multiplies its last k-tile, which may be ragged, before all others.
        `smem_bytes` is dynamic shared memory, without `static_smem_bytes`. A `programmatic` launch may start before the
        previous one in its stream has ended (programmatic dependent launch). `max_ctas` limits the grid of a stream-K
        kernel, because its workspace has room for that many; 0 is no limit. `persistent` CTAs compute tiles until none is
        left. `partial_bytes` are those of a tile's partial accumulators in a workspace, 0 if it never needs one. `raster` is
        that of the spec. Grid rule, raster and bias `launch` leave the decision to each launch. With
        an `epilogue`, D is its expression; beta, bias and activation are then off. If that has reductions, those of rows store a
        number in the workspace for each row of D and each `segment_columns` of B.
    """

    symbol: str
    arch: str
    layout: str
    dtype_a: str
    dtype_b: str
    dtype_d: str
    acc: str
    beta: bool
    bias: str
    activation: str
    tile_m: int
    tile_n: int
    tile_k: int
    align_a: int
    align_b: int
    align_d: int
    threads: int
    smem_bytes: int
    cluster: tuple[int, int, int]
    grid_rule: str
    splits: int
    partial_bytes: int
    persistent: bool
    raster: str = ""
    cluster_shape: tuple[int, int] = (1, 1)
    tensor_maps: tuple[TensorMapRule, ...] = ()
    programmatic: bool = False
    static_smem_bytes: int = 0
    max_ctas: int = 0
    copy: str = ""
    stages: int = 1
    mma: str = ""
    last_k_tile_first: bool = False
    serial_parts: bool = False
    pointer_arrays: bool = False
    epilogue: Epilogue | None = None
    segment_columns: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> LaunchTraits:
        """Read the traits from a record. Raises LibraryError with the missing or unknown field."""
        try:
            spec, launch, limits = current_spec(record["spec"]), record["launch"], record["traits"]
            grid, align, workspace = launch["grid"], limits["min_align"], limits["workspace"]
            traits = cls(
                symbol=record["symbol"],
                arch=record["arch"],
                **{name: spec[name] for name in _SPEC_FIELDS},
                tile_m=grid["tile_m"],
                tile_n=grid["tile_n"],
                tile_k=int(str(spec["cta_tile"]).split("x")[2]),
                **{f"align_{name}": align[name] for name in "abd"},
                threads=launch["threads"],
                smem_bytes=launch["smem_bytes"],
                cluster=tuple(launch["cluster"]),
                grid_rule=current_rule(grid["rule"]),
                splits=grid["splits"],
                partial_bytes=workspace.get("partial_bytes", 0),
                persistent=grid.get("persistent", grid["rule"] == "persistent"),
                raster=spec.get("raster", ""),
                cluster_shape=tuple(launch.get("cluster_shape", (1, 1))),
                tensor_maps=tuple(TensorMapRule.of(entry) for entry in launch.get("tensor_maps", ())),
                programmatic=launch.get("programmatic", False),
                static_smem_bytes=launch.get("static_smem_bytes", 0),
                max_ctas=grid.get("max_ctas", 0),
                copy=spec.get("copy", ""),
                stages=int(spec.get("stages", 1)),
                mma=spec.get("mma", ""),
                last_k_tile_first=_last_k_tile_first(record, spec),
                serial_parts=spec.get("serial_parts", False),
                pointer_arrays=spec.get("pointer_arrays", False),
                epilogue=parse_epilogue(spec.get("epilogue", NONE)),
                segment_columns=int(str(spec["warp_tile"]).split("x")[1]) if has_reductions(spec) else 0,
            )
        except EpilogueError as error:
            raise LibraryError(f"the record of {record.get('symbol')}: {error}: regenerate the kernel") from None
        except (KeyError, IndexError, ValueError) as error:
            raise LibraryError(f"the record of {record.get('symbol')} has no {error}: regenerate the kernel") from None
        if traits.grid_rule not in GRID_RULES:
            raise LibraryError(
                f"{traits.symbol}: grid rule {traits.grid_rule!r} is unknown: this version supports {', '.join(GRID_RULES)}"
            )
        if workspace.get("counter_bytes_per_tile", 0):
            raise LibraryError(
                f"{traits.symbol}: its workspace has the layout of an older version: regenerate the kernel"
            )
        if (traits.grid_rule == "stream_k") != (traits.max_ctas > 0):
            raise LibraryError(
                f"{traits.symbol}: max_ctas is {traits.max_ctas} with grid rule {traits.grid_rule}: regenerate the kernel"
            )
        if traits.cluster != (
            traits.cluster_ctas * (traits.splits if traits.grid_rule == "split_k_cluster" else 1),
            1,
            1,
        ):
            raise LibraryError(
                f"{traits.symbol}: cluster {traits.cluster} does not fit cluster_shape {traits.cluster_shape}: "
                "regenerate the kernel"
            )
        return traits

    @property
    def arch_number(self) -> int:
        """The number of the architecture: 90 for sm_90a."""
        return split_arch(self.arch)[0]

    @property
    def decides_splits(self) -> bool:
        """Whether each launch decides how CTAs share the k of a tile."""
        return self.grid_rule == LAUNCH

    @property
    def decides_raster(self) -> bool:
        return self.raster == LAUNCH

    @property
    def decides_bias(self) -> bool:
        return self.bias == LAUNCH

    @property
    def takes_beta(self) -> bool:
        """Whether D depends on the problem's beta."""
        return self.beta or bool(self.epilogue and self.epilogue.takes("beta"))

    def columns_of_d(self, n: int) -> int:
        """Return the columns of D for n columns of B: half of them for a gated pair."""
        return columns_of_d(self.epilogue, n)

    @property
    def has_edge_maps(self) -> bool:
        """Whether the kernel takes edge maps of A and B, too."""
        return any(rule.edge for rule in self.tensor_maps)

    @property
    def map_count(self) -> int:
        """The maps in the kernel's second argument, 0 without one."""
        return MAPS_WITH_EDGES if self.has_edge_maps else MAPS if self.tensor_maps else 0

    @property
    def operands(self) -> tuple[Input, ...]:
        """The inputs of the expression of D that a launch passes."""
        return self.epilogue.operands if self.epilogue else ()

    @property
    def matrices(self) -> tuple[Input, ...]:
        """The matrices that the expression of D reads."""
        return tuple(one for one in self.operands if one.kind == "matrix")

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The results of the expression after D."""
        return self.epilogue.outputs if self.epilogue else ()

    @property
    def overwritten(self) -> str:
        """The operand whose memory D may share: C, or the first matrix of an expression with D's type; "" if there is none."""
        like_d = (INPUT + one.name for one in self.matrices if one.of(self.dtype_d) == self.dtype_d)
        return "c" if self.beta else next(like_d, "")

    @property
    def cluster_ctas(self) -> int:
        """CTAs that share a cluster on neighbouring tiles. It is 1 without clusters."""
        return self.cluster_shape[0] * self.cluster_shape[1]

    def copies_unaligned(self, operand: str) -> bool:
        """Return whether 16-byte vectors of A or B ("a", "b") are assembled from two aligned loads.

        Such a kernel reads whole aligned vectors anywhere inside the matrix, also in the gaps between rows.
        """
        align, dtype = getattr(self, f"align_{operand}"), getattr(self, f"dtype_{operand}")
        return self.copy == "ldg_sts_unaligned" and align * DTYPES[dtype].bytes < VECTOR_BYTES

    @property
    def a_k_major(self) -> bool:
        return self.layout[0] == "t"

    @property
    def b_k_major(self) -> bool:
        return self.layout[1] == "n"


def has_reductions(spec: Mapping[str, Any]) -> bool:
    """Return whether the expression of a spec has reductions."""
    found = parse_epilogue(spec.get("epilogue", NONE))
    return bool(found and found.reductions)


def _last_k_tile_first(record: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Tell from the order of the record. Records of older versions lack it."""
    if order := record.get("accumulation_order"):
        return "last k-tile of" in order["text"]
    return spec.get("copy", "") in _LAST_FIRST_COPIES and not spec.get("mma", "").startswith("m64n")


_SPEC_FIELDS = ("layout", "dtype_a", "dtype_b", "dtype_d", "acc", "beta", "bias", "activation")
_LAST_FIRST_COPIES = ("cp_async", "ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned")
"""Copies of mma.sync kernels that, without a recorded order, multiply the last k-tile first."""
