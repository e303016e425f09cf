"""Tensor maps of TMA: the boxes of A, B and D, and their swizzles. They follow from the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE, accumulators_of, inputs_of, numbers_of

ROWS_PER_WARPGROUP = 64
"""Rows of D that one wgmma computes. A consumer stages as many at a time."""

SWIZZLES_BYTES = (128, 64, 32)
"""Row widths of a box that TMA swizzles and wgmma reads, the widest first.

Source: PTX ISA 8.8, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", swizzling modes.
"""

MOST_PADDING = 7 / 6
"""Most bytes that boxes with rows of 128 bytes may load over those with rows of 64, which take longer to load as many bytes.

Source: 224, 160 and 96 columns on an H200, docs/performance-notes.md.
"""

CORE_ROWS = 8
"""Rows of a core matrix, which swizzles consist of. A slice of a stage must be whole ones."""

SHARE_COLUMNS, SHARE_BYTES = 8, (128, 64, 32, 16)
"""Smallest number of columns, and row lengths, of the subtiles of D that the CTAs of split_k_cluster share."""

SUBTILE_BYTES = {
    "cooperative": {128: 128, 176: 64},
    "pingpong": {152: 128, 176: 64},
    "pingpong, vector": {128: 128, 176: 64},
    "pingpong, vectors": {128: 128, 160: 64},
    "pingpong, matrices": {128: 128, 152: 64},
}
"""Longest row of a subtile of D by the most accumulator registers, and by what the epilogue loads. Beyond, it is NARROWEST_BYTES.

A shorter row needs fewer other registers. `vectors`: an expression loads rows or columns, but no matrix. A bias counts as a matrix.
Source: spills of ptxas 13.0.88 for 128x144 to 128x192 with ping-pong, and for 256x136 to 256x160, with beta.
"""
NARROWEST_BYTES = 32

NARROW_LAST_COLUMNS = 32
"""Most columns of a subtile if a tile's last one is narrower, with swapped operands. Wider ones take the memory of a stage."""


MAPS, MAPS_WITH_EDGES = 3, 7
"""Maps that a kernel takes: those of A, B and D, and two more of A and of B if it has edge maps."""


@dataclass(frozen=True)
class TensorMap:
    """The map of an operand that a launcher encodes: 3-D, (contiguous, other, batch).

    Units: `box` in elements, along the same dimensions. A swizzle of 0 bytes means none.
    Fields: with `edge`, the kernel takes three maps of the operand: see hgemm.launch.operand_maps.
    """

    operand: str
    box: tuple[int, int, int]
    swizzle_bytes: int
    element: str
    contiguous: str
    edge: bool = False

    def to_dict(self) -> dict[str, Any]:
        entry = {**vars(self), "box": [*self.box]}
        return entry if self.edge else {name: value for name, value in entry.items() if name != "edge"}


@dataclass(frozen=True)
class LoadBoxes:
    """One stage of A or B as TMA loads it. If `shared_by` CTAs of a cluster share it, each loads one slice for all, or they take
    turns.

    Rows of an MN-major operand are no longer than `row_extent`, or than the whole extent if that is 0. With `padded`, the last box
    may be wider than what is left of the extent. With `edges`, MN-major operands have an edge map.
    Shapes: (extent, k). Slices of a K-major operand are along its extent, slices of an MN-major one along k.
    """

    k_major: bool
    extent: int
    k: int
    shared_by: int
    element_bytes: int = 2
    row_extent: int = 0
    padded: bool = False
    edges: bool = False

    @property
    def swizzle_bytes(self) -> int:
        """Bytes over which TMA swizzles a box: its rows, or 0 if they are one vector."""
        return self.row_bytes if self.row_bytes in SWIZZLES_BYTES else 0

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a box's rows: the widest swizzle that divides the contiguous extent.

        With edge maps, the narrowest swizzle that holds the whole extent, else 128. Without, if the last box may be wider than the
        rest of the extent, rows have 128 bytes, or 64 if this saves more than MOST_PADDING. Rows of one vector are not swizzled.
        """
        if self.padded and not self.k_major:
            extent = self.extent * self.element_bytes
            if extent == VECTOR_BYTES:
                return VECTOR_BYTES
            if self.edges:
                return min((size for size in SWIZZLES_BYTES if size >= extent), default=SWIZZLES_BYTES[0])
            wide, narrow, narrowest = (-(-extent // size) * size for size in SWIZZLES_BYTES)
            if narrowest == SWIZZLES_BYTES[-1]:
                return narrowest
            return SWIZZLES_BYTES[0] if wide <= narrow * MOST_PADDING else SWIZZLES_BYTES[1]
        along = (self.k if self.k_major else self.row_extent or self.extent) * self.element_bytes
        return next((size for size in SWIZZLES_BYTES if along % size == 0), SWIZZLES_BYTES[-1])

    @property
    def sliced(self) -> int:
        """Extent that the slices divide."""
        return self.extent if self.k_major else self.k

    @property
    def slices(self) -> int:
        """Parts of a stage that different CTAs load: 1 if slices would not be whole groups of 8 rows, so that CTAs take turns."""
        return 1 if self.sliced % (self.shared_by * CORE_ROWS) else self.shared_by

    @property
    def box(self) -> tuple[int, int, int]:
        return (self.row_bytes // self.element_bytes, self.sliced // self.slices, 1)

    @property
    def stage_bytes(self) -> int:
        contiguous, other = (self.k, self.extent) if self.k_major else (self.extent, self.k)
        return -(-contiguous * self.element_bytes // self.row_bytes) * self.row_bytes * other

    @property
    def has_edge(self) -> bool:
        """Whether the kernel takes edge maps of the operand, so that boxes end with the tile and never inside a row."""
        return self.edges and not self.k_major and self.swizzle_bytes > 0

    def tensor_map(self, operand: str, extent: str, element: str) -> TensorMap:
        contiguous = "k" if self.k_major else extent
        return TensorMap(operand, self.box, self.swizzle_bytes, element, contiguous, self.has_edge)


@dataclass(frozen=True)
class StoreBoxes:
    """D as consumers stage it, one subtile of 64 rows after another.

    Shapes: a subtile is (64, subtile_columns), in boxes of (64, width). With swapped operands, a box is (box_columns, 64).
    Units: `max_subtile_bytes` is the longest row of a subtile. A shorter one needs fewer registers.
    Fields: with `narrow_last`, the last subtile of swapped operands may be narrower than the others.
    """

    n: int
    element_bytes: int
    swap_ab: bool
    max_subtile_bytes: int = SWIZZLES_BYTES[0]
    narrow_last: bool = False

    @cached_property
    def width(self) -> int:
        """Elements of D's n in a box: the widest swizzle that divides the tile, else 16 bytes. 64 with swapped operands."""
        if self.swap_ab:
            return ROWS_PER_WARPGROUP
        swizzles = [size for size in SWIZZLES_BYTES if size <= self.max_subtile_bytes]
        sizes = [size // self.element_bytes for size in (*swizzles, 16)]
        return next((size for size in sizes if self.n % size == 0), sizes[-1])

    @property
    def _most_columns(self) -> int:
        return max(1, min(self.n, self.max_subtile_bytes // self.element_bytes))  # 1 for the illegal width of 0

    @cached_property
    def box_columns(self) -> int:
        """Columns of a box of swapped operands, which divide the tile; columns of a subtile with others."""
        return next((size for size in range(self._most_columns, 8, -8) if not self.swap_ab or self.n % size == 0), 8)

    @cached_property
    def subtile_columns(self) -> int:
        """Columns of a subtile, `max_subtile_bytes` at most.

        With swapped operands, a subtile is a box, unless this takes more than three times the subtiles.
        """
        if not self.narrow_last or self.n <= 3 * self.box_columns * -(-self.n // self._most_columns):
            return self.box_columns
        count = -(-self.n // min(self._most_columns, NARROW_LAST_COLUMNS))
        return -(-self.n // (count * self.box_columns)) * self.box_columns

    @property
    def subtile_bytes(self) -> int:
        """Bytes of a subtile."""
        return ROWS_PER_WARPGROUP * self.subtile_columns * self.element_bytes

    @property
    def swizzle_bytes(self) -> int:
        size = self.width * self.element_bytes
        return size if size in SWIZZLES_BYTES else 0

    def tensor_map(self, element: str) -> TensorMap:
        box = (self.width, self.box_columns if self.swap_ab else ROWS_PER_WARPGROUP, 1)
        return TensorMap("d", box, self.swizzle_bytes, element, "n")


def store_boxes(
    columns: int,
    rows: int,
    element_bytes: int,
    *,
    swap_ab: bool,
    pingpong: bool,
    f16_sums: bool,
    loads: str,
    cluster_splits: int,
    accumulators: int = 1,
    numbers: int = 1,
    narrow_last: bool = False,
) -> StoreBoxes:
    """Return how the consumers of a wgmma kernel stage D.

    Fields: a consumer computes `rows` x `columns` accumulators. An element of D takes one, or two for a gated pair, and a lane
        holds `numbers` for it. `loads` is what `loads_of` returns. With split_k_cluster, `cluster_splits` CTAs share a tile.
    """
    registers = rows // ROWS_PER_WARPGROUP * columns // 2 // (2 if f16_sums else 1)
    kind = "cooperative" if not pingpong else f"pingpong, {loads}" if loads else "pingpong"
    fitting = (size for most, size in SUBTILE_BYTES[kind].items() if swap_ab or registers <= most)
    row_bytes = next(fitting, NARROWEST_BYTES)
    columns, row_bytes = columns // accumulators, max(NARROWEST_BYTES, row_bytes // numbers)
    if cluster_splits:  # each CTA finishes a subtile
        blocks = -(-rows // ROWS_PER_WARPGROUP)
        share = max(SHARE_COLUMNS, columns * blocks // cluster_splits) * element_bytes
        row_bytes = next(size for size in SHARE_BYTES if size <= min(share, row_bytes))
    return StoreBoxes(columns, element_bytes, swap_ab, row_bytes, narrow_last)


def loads_of(bias: str, epilogue: str) -> str:
    """Return what the epilogue of a kernel loads besides C: "matrices", "vectors", "vector" or ""."""
    if bias != NONE or inputs_of(epilogue, "matrix"):
        return "matrices"
    return ("", "vector", "vectors")[min(2, inputs_of(epilogue, "row", "column"))]


# ==== The maps of a record's spec ====


def maps_of(spec: Mapping[str, Any], pads: bool = True, edges: bool = True) -> list[dict[str, Any]]:
    """Return the tensor maps that the kernel of a spec in present words takes, as a record has them.

    Without `edges`, return those of older versions, which had no edge maps. Without `pads`, return those of still older ones,
    whose boxes never extended beyond a tile.
    Raises: LookupError, TypeError or ValueError if a field is missing or malformed.
    """
    if spec["copy"] != "tma" and spec["store"] != "tma":
        return []
    return [
        one.to_dict() for one in _maps(pads, edges, *(spec.get(name, default) for name, default in _DECIDING.items()))
    ]


_DECIDING = {
    "mma": "",
    "copy": "",
    "store": "",
    "layout": "",
    "cta_tile": "",
    "warp_tile": "",
    "dtype_a": "",
    "dtype_b": "",
    "dtype_d": "",
    "acc": "",
    "bias": "none",
    "epilogue": NONE,
    "schedule": "",
    "cluster": "1x1",
    "consumers": 0,
    "cooperation": "cooperative",
    "swap_ab": False,
    "form": "atoms",
}


@lru_cache(maxsize=1024)
def _maps(
    pads: bool,
    edges: bool,
    mma: str,
    copy: str,
    store: str,
    layout: str,
    cta_tile: str,
    warp_tile: str,
    dtype_a: str,
    dtype_b: str,
    dtype_d: str,
    acc: str,
    bias: str,
    epilogue: str,
    schedule: str,
    cluster: str,
    consumers: int,
    cooperation: str,
    swap_ab: bool,
    form: str,
) -> tuple[TensorMap, ...]:
    m, n, k = map(int, cta_tile.split("x"))
    warp_m, warp_n = map(int, warp_tile.split("x"))
    cluster_m, cluster_n = map(int, cluster.split("x"))
    wgmma, maps = mma.startswith("m64"), []
    if copy == "tma":
        size = DTYPES[dtype_a].bytes
        atoms = wgmma and form == "atoms"
        padded, edges = pads and atoms, edges and atoms
        a = LoadBoxes(layout[0] == "t", m, k, cluster_n, size, 0 if wgmma else warp_m, padded, edges)
        b = LoadBoxes(layout[1] == "n", n, k, cluster_m, size, 0 if wgmma else warp_n, padded, edges)
        maps = [a.tensor_map("a", "m", dtype_a), b.tensor_map("b", "n", dtype_b)]
    if wgmma and store == "tma":
        kernel_m, kernel_n = (n, m) if swap_ab else (m, n)
        rule, _, splits = schedule.partition(":")
        pingpong = cooperation == "pingpong"
        boxes = store_boxes(
            kernel_n,
            kernel_m // (1 if pingpong else max(1, consumers)),
            DTYPES[dtype_d].bytes,
            swap_ab=swap_ab,
            pingpong=pingpong,
            f16_sums=acc == "f16",
            loads=loads_of(bias, epilogue),
            cluster_splits=int(splits) if rule == "split_k_cluster" else 0,
            accumulators=accumulators_of(epilogue),
            numbers=numbers_of(epilogue),
        )
        maps.append(boxes.tensor_map(dtype_d))
    return tuple(maps)
