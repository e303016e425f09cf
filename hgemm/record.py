"""Records: the strict schema of `record.json`, how one is parsed and written, and its flat view for filters and tables.

The schema is a table of small checks. Session files use the same checks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgemm.errors import DEFAULT_LIBRARY, LibraryError, regenerate_hint

# ==== Checks: building blocks of a schema ====

Check = Callable[[Any, str], None]
"""Takes a value and its field name. Raises Mismatch if the value is invalid."""

MAX_INTEGER = 2**63 - 1
MAX_DEPTH = 8


class Mismatch(Exception):
    """An invalid field: its name and what was expected."""


def _reject(field: str, expected: str, value: Any) -> None:
    raise Mismatch(f"{field} must be {expected}, not {ascii(value)[:60]}")


def text(pattern: str = ".{0,4096}", expected: str = "printable text") -> Check:
    """Accept printable text that fully matches `pattern`."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: Any, field: str) -> None:
        if type(value) is not str or not value.isprintable() or not compiled.fullmatch(value):
            _reject(field, expected, value)

    return check


def integer(low: int = 0, high: int = MAX_INTEGER) -> Check:
    """Accept an integer from `low` to `high`, but no bool."""

    def check(value: Any, field: str) -> None:
        if type(value) is not int or not low <= value <= high:
            _reject(field, f"a whole number from {low} to {high}", value)

    return check


def number(low: float = 0.0, high: float = 1e18) -> Check:
    """Accept a finite number from `low` to `high`."""

    def check(value: Any, field: str) -> None:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            _reject(field, f"a number from {low:g} to {high:g}", value)

    return check


def boolean(value: Any, field: str) -> None:
    """Accept true and false."""
    if type(value) is not bool:
        _reject(field, "true or false", value)


def scalar(value: Any, field: str) -> None:
    """Accept printable text, a finite number or a bool."""
    if type(value) is str:
        TEXT(value, field)
    elif type(value) is not bool:
        number(low=-1e18)(value, field)


def plain(value: Any, field: str, depth: int = 0) -> None:
    """Accept any JSON value that is finite, printable and nested at most MAX_DEPTH deep."""
    if depth > MAX_DEPTH:
        _reject(field, f"nested at most {MAX_DEPTH} deep", "...")
    if type(value) is dict:
        for name, item in value.items():
            TEXT(name, f"a name in {field}")
            plain(item, f"{field}.{name}", depth + 1)
    elif type(value) is list:
        for item in value:
            plain(item, f"{field}[]", depth + 1)
    elif value is not None:
        scalar(value, field)


def list_of(item: Check, length: int | None = None) -> Check:
    """Accept a list whose items `item` accepts, of `length` items if given."""

    def check(value: Any, field: str) -> None:
        if type(value) is not list or length not in (None, len(value)):
            _reject(field, "a list" if length is None else f"a list of {length}", value)
        for position, entry in enumerate(value):
            item(entry, f"{field}[{position}]")

    return check


def map_of(name: Check, item: Check) -> Check:
    """Accept an object whose names `name` accepts and whose values `item` accepts."""

    def check(value: Any, field: str) -> None:
        if type(value) is not dict:
            _reject(field, "an object", value)
        for key, entry in value.items():
            name(key, f"a name in {field}")
            item(entry, f"{field}.{key}")

    return check


def fields(required: dict[str, Check], others: Check | None = None, optional: dict[str, Check] | None = None) -> Check:
    """Accept an object with all required fields, and any of the optional ones.

    `others` checks further fields. Without it they are rejected.
    """
    known = {**required, **(optional or {})}

    def check(value: Any, field: str) -> None:
        if type(value) is not dict:
            _reject(field or "the document", "an object", value)
        prefix = f"{field}." if field else ""
        for key in required:
            if key not in value:
                raise Mismatch(f"{prefix}{key} is missing")
        for key, entry in value.items():
            NAME(key, f"a name in {field or 'the document'}")
            rule = known.get(key, others)
            if rule is None:
                raise Mismatch(f"{prefix}{key} is not a field of this schema")
            rule(entry, f"{prefix}{key}")

    return check


def either(*choices: Check) -> Check:
    """Accept what any of `choices` accepts. Otherwise report the error of the last one."""

    def check(value: Any, field: str) -> None:
        for choice in choices[:-1]:
            try:
                return choice(value, field)
            except Mismatch:
                continue
        return choices[-1](value, field)

    return check


TEXT = text()
NAME = text(r"[a-z][a-z0-9_]{0,63}", "a lower-case name")


# ==== The schema of record.json ====

SCHEMA = 1
RECORD_NAME = "record.json"
SOURCE_NAME = "kernel.cu"
MODULE_NAME = "kernel.py"
"""The source of a variant in form dsl, a CuTe DSL module. It is printed and copied, but never run."""
SOURCE_NAMES = (SOURCE_NAME, MODULE_NAME)
CUBIN_NAME = "kernel.cubin"
PTX_NAME = "kernel.ptx"
ARTEFACTS = (SOURCE_NAME, CUBIN_NAME, PTX_NAME)
"""The files of a C++ variant."""
MAX_RECORD_BYTES = 4 * 1024 * 1024

Scalar = str | int | float | bool

SYMBOL = text(r"[a-z0-9_]{1,200}", "a symbol of a-z, 0-9 and _")
_SHA256 = text(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal")
_COUNT = integer()
_POSITIVE = integer(low=1)
_INPUT = text(r"(?!/)(?!.*(?:^|/)\.\.(?:/|$)).{1,512}", "a relative path without ..")
_INSTRUCTION = text(r"[A-Z][A-Z0-9_.]{0,63}", "a SASS instruction")
_FILE = fields({"sha256": _SHA256, "bytes": _COUNT})
_GRID = fields(
    {"rule": TEXT, "tile_m": _POSITIVE, "tile_n": _POSITIVE, "splits": _POSITIVE}, optional={"max_ctas": _POSITIVE}
)
_TENSOR_MAP = fields(
    {
        "operand": text(r"[abd]", "a, b or d"),
        "box": list_of(_POSITIVE, length=3),
        "swizzle_bytes": integer(high=128),
        "element": TEXT,
        "contiguous": text(r"[kmn]", "k, m or n"),
    }
)
_LAUNCH = fields(
    {"threads": _POSITIVE, "smem_bytes": _COUNT, "cluster": list_of(_POSITIVE, length=3), "grid": _GRID},
    optional={
        "cluster_shape": list_of(_POSITIVE, length=2),
        "tensor_maps": list_of(_TENSOR_MAP),
        "programmatic": boolean,
        "static_smem_bytes": _COUNT,
    },
)
_COUNTS = ("registers", "spill_bytes", "stack_bytes", "smem_bytes", "ctas_per_sm", "warps_per_sm")
_RESOURCES = fields({**dict.fromkeys(_COUNTS, _COUNT), "occupancy": number(high=1.0)}, others=scalar)
_TRAITS = fields(
    {
        "deterministic": boolean,
        "workspace": map_of(NAME, _COUNT),
        "graph_safe": boolean,
        "min_align": fields(dict.fromkeys("abd", _POSITIVE)),
        "exact_tiles_only": boolean,
    }
)
PROVED = {
    **dict.fromkeys(("mma_per_k_tile", "bank_conflicts", "mma_between_stores", "races", "seed"), _COUNT),
    **dict.fromkeys(
        ("barriers_per_k_tile", "bytes_per_k_tile", "max_error", "max_bound_ratio", "emulate_seconds"), number()
    ),
    **dict.fromkeys(("sectors_per_request", "least_sectors_per_request"), number()),
    **{f"{part}_conflicts_per_k_tile": number() for part in ("read", "copy")},
    "epilogue_conflicts": number(),
    **dict.fromkeys(("shapes", "timings"), list_of(TEXT)),
    **dict.fromkeys(("executor", "host_compiler"), TEXT),
}
"""The known fields of a proof. The first two come from the plan, the others from a run on the CPU."""


def _proof(value: Any, field: str) -> None:
    """Accept an object whose known fields have their types. Other fields may be any JSON value."""
    map_of(NAME, plain)(value, field)
    for name in PROVED.keys() & value.keys():
        PROVED[name](value[name], f"{field}.{name}")


_DOCUMENT = fields(
    {
        "schema": integer(low=SCHEMA, high=SCHEMA),
        "symbol": SYMBOL,
        "alias": text(r"[A-Za-z0-9_.\-]{0,200}", "a name of letters, digits, _ . and -"),
        "key": _SHA256,
        "arch": text(r"sm_[0-9]{2,3}[a-z]?", "an architecture such as sm_89"),
        "spec": fields({}, others=scalar),
        "toolchain": fields(
            {"generator": TEXT, "options": list_of(TEXT)},
            others=either(list_of(TEXT), TEXT),
        ),
        "inputs": map_of(_INPUT, _SHA256),
        "files": map_of(text(r"kernel\.[a-z0-9]{1,16}", "a kernel.* file"), _FILE),
        "launch": _LAUNCH,
        "resources": _RESOURCES,
        "sass": map_of(_INSTRUCTION, _COUNT),
        "proof": _proof,
        "traits": _TRAITS,
        "seconds": fields(dict.fromkeys(("emit", "compile", "inspect"), number()), others=number()),
        "spilled": boolean,
    }
)


# ==== Renamed words: old records, spec files and commands may use them ====

RENAMED_FIELDS = {"swapped": "swap_ab"}
RENAMED_PROOF = {"mma_per_tile": "mma_per_k_tile"}
RENAMED_WORDS = {
    "copy": {"vector": "ldg_sts", "scalar": "ldg_sts_scalar", "shifted": "ldg_sts_unaligned"},
    "schedule": {"cluster_k": "split_k_cluster"},
}
"""By field: old word to new word. A word may be followed by a colon and a number."""


def current_field(name: str) -> str:
    """Return the present name of a field of a spec or of a flat record."""
    return {**RENAMED_FIELDS, **{f"proof_{old}": f"proof_{new}" for old, new in RENAMED_PROOF.items()}}.get(name, name)


def current_word(field: str, text: str) -> str:
    """Return the value of a spec field in present words."""
    words = RENAMED_WORDS.get(field)
    if not words:
        return text
    word, colon, size = text.partition(":")
    return words.get(word.strip().lower(), word) + colon + size


def current_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a record in present words."""
    named = {current_field(name): value for name, value in spec.items()}
    return {name: current_word(name, value) if isinstance(value, str) else value for name, value in named.items()}


def current_rule(rule: str) -> str:
    """Return a grid rule in present words."""
    return current_word("schedule", rule)


def _current(data: dict[str, Any]) -> dict[str, Any]:
    """Return a record in present words."""
    launch = data["launch"]
    grid = {**launch["grid"], "rule": current_rule(launch["grid"]["rule"])}
    proof = {RENAMED_PROOF.get(name, name): value for name, value in data["proof"].items()}
    return {**data, "spec": current_spec(data["spec"]), "launch": {**launch, "grid": grid}, "proof": proof}


# ==== Records ====


@dataclass(frozen=True)
class Record:
    """A validated record. `data` is the whole document."""

    data: dict[str, Any]

    @classmethod
    def parse(cls, document: bytes | str, source: str = RECORD_NAME, library: Path = DEFAULT_LIBRARY) -> Record:
        """Parse and validate a document. `source` and `library` say where it is from, for error messages.

        Raises: LibraryError with the file and the invalid field.
        """
        try:
            data = json.loads(document, object_pairs_hook=_object, parse_constant=_constant)
        except (ValueError, RecursionError) as error:
            raise LibraryError(f"{source} is not a JSON document ({error}): {regenerate_hint(library)}") from None
        except Mismatch as error:
            raise LibraryError(f"{source}: {error}: {regenerate_hint(library)}") from None
        validate(data, source, library)
        return cls(_current(data))

    @property
    def symbol(self) -> str:
        return self.data["symbol"]

    @property
    def key(self) -> str:
        return self.data["key"]

    @property
    def arch(self) -> str:
        return self.data["arch"]

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        return self.data["files"]

    @property
    def source_name(self) -> str:
        """The name of the source file."""
        return next(name for name in SOURCE_NAMES if name in self.files)

    def dump(self) -> str:
        """Return the document in its canonical form."""
        return dump(self.data)

    def flat(self) -> dict[str, Scalar]:
        """Return the columns of filters and tables."""
        return flatten(self.data)


def validate(data: object, source: str = RECORD_NAME, library: Path = DEFAULT_LIBRARY) -> None:
    """Check all fields of a record. Raises LibraryError with the file and the invalid field."""
    try:
        _DOCUMENT(data, "")
        assert isinstance(data, dict)  # _DOCUMENT accepts nothing else
        sources = [name for name in SOURCE_NAMES if name in data["files"]]
        missing = [name for name in (CUBIN_NAME, PTX_NAME) if name not in data["files"]]
        if missing or not sources:
            raise Mismatch(f"files.{(missing or SOURCE_NAMES)[0]} is missing")
        if len(sources) > 1:
            raise Mismatch(f"files has {' and '.join(sources)}: only one may be the source")
    except Mismatch as error:
        raise LibraryError(f"{source}: {error}: {regenerate_hint(library)}") from None


def dump(data: dict[str, Any]) -> str:
    """Return a record in its canonical form: sorted names, floats with nine digits, one final newline."""
    return json.dumps(_stable(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


def flatten(data: dict[str, Any]) -> dict[str, Scalar]:
    """Return all scalars of a record by a short name. A name that is taken gets its section as a prefix."""
    launch, traits = data["launch"], data["traits"]
    flat: dict[str, Scalar] = {name: data[name] for name in ("symbol", "alias", "key", "arch", "spilled")}
    sections: list[tuple[str, dict[str, Any]]] = [
        ("resources", data["resources"]),
        ("spec", data["spec"]),
        ("launch", {"threads": launch["threads"], "smem_bytes": launch["smem_bytes"]}),
        ("launch", {"cluster": "x".join(map(str, launch["cluster"])), "grid": launch["grid"]["rule"]}),
        ("launch", {"splits": launch["grid"]["splits"]}),
        ("traits", {name: traits[name] for name in ("deterministic", "graph_safe", "exact_tiles_only")}),
        ("traits", {f"min_align_{name}": value for name, value in traits["min_align"].items()}),
        ("traits", {f"workspace_{name}": value for name, value in traits["workspace"].items()}),
        ("sass", {"sass_" + name.lower().replace(".", "_"): count for name, count in data["sass"].items()}),
        ("files", {name.partition(".")[2] + "_bytes": file["bytes"] for name, file in data["files"].items()}),
        ("seconds", {f"{name}_seconds": value for name, value in data["seconds"].items()}),
        ("toolchain", {name: value for name, value in data["toolchain"].items() if isinstance(value, str)}),
        ("proof", {f"proof_{name}": value for name, value in data["proof"].items() if _is_scalar(value)}),
    ]
    for section, values in sections:
        for name, value in values.items():
            flat[f"{section}_{name}" if name in flat else name] = value
    return flat


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Mismatch("an object has the same name twice")
    return found


def _constant(word: str) -> None:
    raise Mismatch(f"{word} is not a number")


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stable(item) for item in value]
    return float(f"{value:.9g}") + 0.0 if isinstance(value, float) else value
