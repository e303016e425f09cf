"""The layers that a pack was made for: the file `pack.json` beside its kernels. `hgemm tune` reads it if no problems are given."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hgemm.checks import TEXT, Mismatch, fields, integer, list_of, text
from hgemm.disk import disk_errors, read_whole, write_atomically
from hgemm.dtypes import OUTPUTS
from hgemm.errors import LibraryError
from hgemm.problem import ACCUMULATIONS, ACTIVATIONS, BIASES, LAYOUTS, MAX_EXTENT, TYPES, Kind

PACK_NAME = "pack.json"
SCHEMA = 1
ROWS = tuple(2**octave for octave in range(15))
"""The numbers of rows to tune: one per octave, from 1 to 16,384."""
_MAX_BYTES = 16 * 1024 * 1024
_WORDS = {
    "layout": LAYOUTS,
    "dtype_a": TYPES,
    "dtype_b": TYPES,
    "dtype_d": OUTPUTS,
    "acc": ACCUMULATIONS,
    "bias": BIASES,
    "activation": ACTIVATIONS,
}
_LAYER = fields(
    {
        "name": TEXT,
        "n": integer(low=1, high=MAX_EXTENT),
        "k": integer(low=1, high=MAX_EXTENT),
        **{name: text("|".join(words), f"one of {', '.join(words)}") for name, words in _WORDS.items()},
    }
)
_DOCUMENT = fields({"schema": integer(low=SCHEMA, high=SCHEMA), "layers": list_of(_LAYER)})


@dataclass(frozen=True)
class PackedLayer:
    """One layer of a pack: D = A B, with the epilogue of its kind, for any number of rows. Shapes: B (k, n), D (rows, n)."""

    name: str
    n: int
    k: int
    kind: Kind


def read_pack(library: Path) -> tuple[PackedLayer, ...]:
    """Return the layers of the packs in a library, or none if it has no pack. Raises LibraryError if the file is malformed."""
    path = library / PACK_NAME
    try:
        with disk_errors("read", path):
            content = read_whole(path, _MAX_BYTES)
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ()
        raise
    try:
        document = json.loads(content)
        _DOCUMENT(document, "")
    except (ValueError, RecursionError, Mismatch) as error:
        raise LibraryError(f"{path} is malformed ({error}): run `hgemm pack` again, or name problems") from None
    return tuple(
        PackedLayer(layer["name"], layer["n"], layer["k"], Kind(**{name: layer[name] for name in _WORDS}))
        for layer in document["layers"]
    )


def add_pack(library: Path, layers: Iterable[PackedLayer]) -> None:
    """Add layers to the file of a library. A malformed file is replaced. Raises LibraryError if it cannot be written."""
    try:
        known = read_pack(library)
    except LibraryError:
        known = ()
    each = {(layer.n, layer.k, layer.kind): layer for layer in (*layers, *known)}
    entries = [{"name": layer.name, "n": layer.n, "k": layer.k, **layer.kind.words} for layer in each.values()]
    document = json.dumps({"schema": SCHEMA, "layers": entries}, indent=1) + "\n"
    write_atomically(library / PACK_NAME, document.encode(), "--to")
