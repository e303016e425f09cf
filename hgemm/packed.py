"""The layers that a pack was made for: the file `pack.json` beside its kernels. `hgemm tune` reads it if no problems are given."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hgemm.checks import TEXT, Mismatch, fields, integer, list_of, one_of
from hgemm.disk import disk_errors, read_whole, write_atomically
from hgemm.dtypes import stored_dtype
from hgemm.epilogue import NONE
from hgemm.errors import LibraryError
from hgemm.problem import MAX_EXTENT, REQUEST_WORDS, Kind

PACK_NAME = "pack.json"
SCHEMA = 1
ROWS = 1, 16384
"""The fewest and the most rows of A that a pack is made for, unless it says otherwise."""
_MAX_BYTES = 16 * 1024 * 1024
_LAYER = fields(
    {
        "name": TEXT,
        "n": integer(low=1, high=MAX_EXTENT),
        "k": integer(low=1, high=MAX_EXTENT),
        **{name: one_of(*words) for name, words in REQUEST_WORDS.items()},
    },
    optional={"rows": list_of(integer(low=1, high=MAX_EXTENT), length=2)},
)
_DOCUMENT = fields({"schema": integer(low=SCHEMA, high=SCHEMA), "layers": list_of(_LAYER)})


@dataclass(frozen=True)
class PackedLayer:
    """One layer of a pack: D = A B, with the epilogue of its kind. Shapes: B (k, n), D (rows, n).

    Fields: `rows` are the fewest and the most rows that the pack is made for.
    """

    name: str
    n: int
    k: int
    kind: Kind
    rows: tuple[int, int] = ROWS

    def serves(self, kind: Kind, m: int, n: int, k: int) -> bool:
        """Return whether the pack was made for a product, of whatever accumulator."""
        first, last = self.rows
        return (self.n, self.k) == (n, k) and first <= m <= last and self.kind == replace(kind, acc=self.kind.acc)

    @property
    def rows_to_tune(self) -> tuple[int, ...]:
        """The fewest rows, the powers of two above them, and the most rows."""
        first, last = self.rows
        octaves = (2**octave for octave in range(last.bit_length()))
        return tuple(sorted({first, *(rows for rows in octaves if first < rows < last), last}))


def pack_command(kind: Kind, m: int, n: int, k: int, arch: str) -> str:
    """Return the command, without --to, that packs kernels for one product. Empty if `hgemm pack` has none of its kind."""
    if kind.pointer_arrays or kind.epilogue != NONE or kind.bias not in ("none", "row"):
        return ""
    if (kind.dtype_b, kind.dtype_d) != (kind.dtype_a, stored_dtype(kind.dtype_a)):
        return ""
    return f"hgemm pack --nk {n}x{k} --rows {m}:{m} {kind.cover_options} --arch {arch}"


def read_pack(library: Path) -> tuple[PackedLayer, ...]:
    """Return the layers of the packs in a library, or none if it has no pack. Raises LibraryError if the file is malformed."""
    path = library / PACK_NAME
    with disk_errors("read", path):
        try:
            content = read_whole(path, _MAX_BYTES)
        except FileNotFoundError:
            return ()
    try:
        document = json.loads(content)
        _DOCUMENT(document, "")
    except (ValueError, RecursionError, Mismatch) as error:
        raise LibraryError(f"{path} is malformed ({error}): run `hgemm pack` again, or name problems") from None
    return tuple(
        PackedLayer(
            layer["name"],
            layer["n"],
            layer["k"],
            Kind(**{name: layer[name] for name in REQUEST_WORDS}),
            (min(rows := layer.get("rows", ROWS)), max(rows)),
        )
        for layer in document["layers"]
    )


def add_pack(library: Path, layers: Iterable[PackedLayer]) -> None:
    """Add layers to the file of a library. If the file already has a layer, its range of rows grows to include both.

    A malformed file is replaced. Raises LibraryError if it cannot be written.
    """
    try:
        known = read_pack(library)
    except LibraryError:
        known = ()
    each: dict[tuple[int, int, Kind], PackedLayer] = {}
    for layer in (*layers, *known):
        first, last = each.get((layer.n, layer.k, layer.kind), layer).rows
        rows = min(first, layer.rows[0]), max(last, layer.rows[1])
        each[layer.n, layer.k, layer.kind] = replace(layer, rows=rows)
    entries = [
        {"name": layer.name, "n": layer.n, "k": layer.k, "rows": [*layer.rows], **layer.kind.words}
        for layer in each.values()
    ]
    document = json.dumps({"schema": SCHEMA, "layers": entries}, indent=1) + "\n"
    write_atomically(library / PACK_NAME, document.encode(), "--to")
