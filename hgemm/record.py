"""Records: the strict schema of `record.json`, how one is parsed and written, and its flat view for filters and tables."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgemm.checks import (
    NAME,
    TEXT,
    Check,
    JsonSchema,
    Mismatch,
    boolean,
    check,
    either,
    fields,
    integer,
    list_of,
    map_of,
    multiple_of,
    number,
    one_of,
    plain,
    scalar,
    text,
)
from hgemm.consistency import contradiction
from hgemm.epilogue import parse_epilogue
from hgemm.errors import LibraryError
from hgemm.locations import regenerate_hint

# ==== The schema of record.json ====

SCHEMA = 1
RECORD_NAME = "record.json"
SOURCE_NAME = "kernel.cu"
MODULE_NAME = "kernel.py"
"""The source of a kernel in form dsl, a CuTe DSL module. It is printed and copied, but never run."""
SOURCE_NAMES = (SOURCE_NAME, MODULE_NAME)
CUBIN_NAME = "kernel.cubin"
PTX_NAME = "kernel.ptx"
ARTEFACTS = (SOURCE_NAME, CUBIN_NAME, PTX_NAME)
"""The files of a C++ kernel."""
MAX_RECORD_BYTES = 4 * 1024 * 1024

HASH_FIELD = "sha256"
"""The field with the hash of the record itself."""

Scalar = str | int | float | bool

SYMBOL = text(r"[a-z0-9_]{1,200}", "a symbol of a-z, 0-9 and _")
_SHA256 = text(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal")
_COUNT = integer()
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Limit of an artefact's size. Kernels have at most some MB of machine code and PTX."""
MAX_TILE = 1024
MAX_TILE_K = 4096
MAX_SPLITS = 1024
MAX_THREADS = 1024
MAX_SMEM_BYTES = 227 * 1024
MAX_STATIC_SMEM_BYTES = 48 * 1024
MAX_CLUSTER_CTAS = 16
"""Limits of a launch: CTA tile, splits, threads, shared memory and CTAs of a cluster.

Source: CUDA Programming Guide 13.x, table 30, compute capability 9.0; non-portable cluster size.
"""
MAX_GRID_CTAS = 2**20
"""Limit of a stream-K grid. GPUs hold fewer CTAs."""
MAX_BOX = 256
"""Source: CUDA Driver API 13.x, cuTensorMapEncodeTiled."""
_CLUSTER = integer(low=1, high=MAX_CLUSTER_CTAS)
_INPUT = text(r"(?!/)(?!.*(?:^|/)\.\.(?:/|$)).{1,512}", "a relative path without ..")
_INSTRUCTION = text(r"[A-Z][A-Z0-9_.]{0,63}", "a SASS instruction")

RENAMED_FIELDS = {"swapped": "swap_ab"}
RENAMED_PROOF = {"mma_per_tile": "mma_per_k_tile", "least_sectors_per_request": "ideal_sectors_per_request"}
RENAMED_WORDS = {
    "copy": {"vector": "ldg_sts", "scalar": "ldg_sts_scalar", "shifted": "ldg_sts_unaligned"},
    "schedule": {"cluster_k": "split_k_cluster"},
}
"""By field: old word to new word. A word may be followed by a colon and a number."""

_TOOLCHAIN = fields(
    {
        "generator": TEXT.about("Version of this generator."),
        "options": list_of(TEXT).about("Options of the compilers, in the order of their runs."),
    },
    optional={
        "nvrtc": TEXT.about("Version of NVRTC."),
        "nvjitlink": TEXT.about("Version of nvJitLink."),
        "cutlass": TEXT.about("Version of the CUTLASS headers."),
        "cudart": TEXT.about("Version of the CUDA runtime headers."),
        "cutlass_dsl": TEXT.about("Version of CuTe DSL, in form dsl only."),
    },
    others=either(list_of(TEXT), TEXT),
)


def _file(name: str) -> Check:
    return fields(
        {
            "sha256": _SHA256.about(f"SHA-256 of {name}, in hexadecimal."),
            "bytes": integer(high=MAX_FILE_BYTES).about(f"Size of {name}.", "B"),
        }
    )


_FILES_BY_NAME = fields(
    {
        CUBIN_NAME: _file(CUBIN_NAME).about("Machine code."),
        PTX_NAME: _file(PTX_NAME).about("PTX."),
    },
    optional={
        SOURCE_NAME: _file(SOURCE_NAME).about("Source in C++."),
        MODULE_NAME: _file(MODULE_NAME).about(f"Source in form dsl, instead of {SOURCE_NAME}."),
    },
    others=_file("the file"),
    names=text(r"kernel\.[a-z0-9]{1,16}", "a kernel.* file"),
)


@check({**_FILES_BY_NAME.schema, "oneOf": [{"required": [name]} for name in SOURCE_NAMES]})
def _files(value: Any, field: str) -> None:
    """Accept files by name, with exactly one source."""
    _FILES_BY_NAME.test(value, field)
    sources = [name for name in SOURCE_NAMES if name in value]
    if not sources:
        raise Mismatch(f"{field}.{SOURCE_NAME} is missing")
    if len(sources) > 1:
        raise Mismatch(f"{field} has {' and '.join(sources)}: only one may be the source")


_GRID = fields(
    {
        "rule": TEXT.about("How CTAs take work: the word of the spec's schedule."),
        "tile_m": integer(1, MAX_TILE).about("Rows of D per tile.", "elements"),
        "tile_n": integer(1, MAX_TILE).about("Columns of D per tile.", "elements"),
        "splits": integer(1, MAX_SPLITS).about("CTAs that share the k of a tile."),
    },
    optional={
        "max_ctas": integer(1, MAX_GRID_CTAS).about(
            "Largest grid, for stream-K: the workspace has room for this many CTAs."
        ),
        "persistent": boolean.about("Whether CTAs compute tiles until none is left."),
    },
)
_TENSOR_MAP = fields(
    {
        "operand": text(r"[abd]", "a, b or d").about("The matrix that the map describes."),
        "box": list_of(integer(1, MAX_BOX), length=3).about("Box: contiguous axis, other axis, batch.", "elements"),
        "swizzle_bytes": one_of(0, 32, 64, 128).about("Span of the swizzle. 0: none.", "B"),
        "element": one_of("f16", "bf16", "tf32", "f32").about("Type of an element."),
        "contiguous": text(r"[kmn]", "k, m or n").about("The contiguous axis of the matrix."),
    },
    optional={
        "edge": boolean.about(
            "Whether the kernel takes three maps: for whole boxes, the last box of a tile, and the last k-tile."
        ),
    },
)
_LAUNCH = fields(
    {
        "threads": multiple_of(32, 32, MAX_THREADS).about("Threads per CTA."),
        "smem_bytes": integer(high=MAX_SMEM_BYTES).about("Dynamic shared memory per CTA.", "B"),
        "cluster": list_of(_CLUSTER, length=3).about("Cluster dimensions x, y, z.", "CTAs"),
        "grid": _GRID.about("How the grid follows from the problem."),
    },
    optional={
        "cluster_shape": list_of(_CLUSTER, length=2).about("Tiles of a cluster along m and n.", "CTAs"),
        "tensor_maps": list_of(_TENSOR_MAP).about("TMA tensor maps that the launch encodes."),
        "map_count": integer(7, 7).about("Tensor maps that the kernel takes, with edge maps. Without: 3, or 0."),
        "programmatic": boolean.about("Whether the launch may start before the previous grid has ended."),
        "static_smem_bytes": integer(high=MAX_STATIC_SMEM_BYTES).about("Static shared memory per CTA.", "B"),
    },
)
_RESOURCES = fields(
    {
        "registers": integer(high=255).about("Registers per thread."),
        "spill_bytes": _COUNT.about("Spill stores and loads per thread, as ptxas reports them.", "B"),
        "stack_bytes": _COUNT.about("Stack frame per thread.", "B"),
        "smem_bytes": integer(high=MAX_SMEM_BYTES).about("Static and dynamic shared memory per CTA.", "B"),
        "ctas_per_sm": integer(high=32).about("CTAs that an SM holds at once."),
        "warps_per_sm": integer(high=64).about("Warps that an SM holds at once."),
        "occupancy": number(high=1.0).about("Ratio of the warps that an SM holds at once to its limit."),
    },
    others=scalar,
)
_ALIGN = {
    name: one_of(1, 2, 4, 8).about(f"Minimum alignment of {label}.", "elements")
    for name, label in zip("abd", ("A", "B", "C and D"))
}
_TRAITS = fields(
    {
        "deterministic": boolean.about("Whether equal launches give equal bits."),
        "workspace": fields(
            {},
            optional={
                "partial_bytes": integer(high=4 * MAX_TILE**2).about(
                    "Partial accumulators of one tile; 0 if no launch shares the k of a tile.", "B"
                ),
            },
            others=_COUNT,
        ).about("Device memory that a launch needs besides the operands."),
        "graph_safe": boolean.about("Whether a CUDA graph may capture a launch."),
        "min_align": fields(_ALIGN).about("Minimum alignment of addresses and rows."),
        "exact_tiles_only": boolean.about("Whether m, n and k must be multiples of the tile."),
    }
)
_COVERAGE = fields(
    {},
    optional={
        "launches": _COUNT.about("Launches that were run."),
        "stages": _COUNT.about("Stages of shared memory."),
        "rounds_per_tile": number().about("How often one tile fills every stage, at most."),
        "rounds_per_cta": number().about(
            "How often a CTA fills every stage, at most; counted from tensor instructions."
        ),
        "tiles_per_cta": _COUNT.about("Tiles that every CTA of one launch computes, at most."),
        "raster_groups": _COUNT.about(
            "Groups or panels of the raster in one launch, at most; the last one is not full if they are wider than one tile, "
            "or one cluster."
        ),
        "splits": list_of(TEXT).about("Kinds of splits of k: of equal length, of different lengths, some empty."),
        "edges": list_of(TEXT).about("Extents inside one tile, of whole tiles, and beyond one tile with a rest."),
        "own_leading_dimensions": list_of(TEXT).about("Operands whose leading dimensions differ in one launch."),
        "offsets_beyond_2_31": list_of(TEXT).about("Operands with offsets beyond 2^31 elements."),
        "shared_memory": list_of(TEXT).about("Operands that share memory in some launch."),
        "predicates": _COUNT.about("Instructions of the PTX that have a predicate; most are branches."),
        "predicates_both_ways": _COUNT.about("Those whose predicate was false in some thread and true in another."),
    },
    others=plain,
)
_MAX_ERROR = 1e39
"""A limit that the difference of any two finite float32 numbers meets."""
PROVED = {
    "mma_per_k_tile": _COUNT.about("Tensor instructions per warp (wgmma: per warpgroup) and k-tile."),
    "bank_conflicts": _COUNT.about(
        "Bank conflicts of a k-tile, copies and reads of all warps, that the layout predicts."
    ),
    "mma_between_stores": _COUNT.about("Minimum of tensor instructions between two stores to shared memory, in SASS."),
    "races": _COUNT.about("Pairs of conflicting accesses that nothing orders."),
    "seed": _COUNT.about("Seed of the random choices of the run."),
    "barriers_per_k_tile": number().about("Barriers of a CTA per k-tile."),
    "bytes_per_k_tile": number().about("Bytes that a CTA loads per k-tile.", "B"),
    "max_error": number(high=_MAX_ERROR).about("Largest error against float64."),
    "max_bound_ratio": number().about("Largest ratio of an error to its bound."),
    "emulate_seconds": number().about("Time of the run on the CPU.", "s"),
    "sectors_per_request": number().about("Sectors of 32 bytes per global access of a warp, on average."),
    "ideal_sectors_per_request": number().about(
        "sectors_per_request if the bytes of each access were contiguous and aligned."
    ),
    "read_conflicts_per_k_tile": number().about(
        "Bank conflicts of the fragment reads per k-tile, counted from addresses."
    ),
    "copy_conflicts_per_k_tile": number().about("Bank conflicts of the copies per k-tile, counted from addresses."),
    "epilogue_conflicts": number().about("Bank conflicts of the epilogue, counted from addresses."),
    "coverage": _COVERAGE.about("What the launches of the run cover."),
    "order_elements": _COUNT.about("Elements of D whose bits follow from the order of accumulation."),
    "shapes": list_of(TEXT).about("Shapes that were run."),
    "timings": list_of(TEXT).about("Orders of execution that were run."),
    "executor": TEXT.about("Version of the executor."),
    "subject": map_of(text(r"[a-z]{1,16}", "a word"), _SHA256).about(
        "SHA-256 of what was proved: source, PTX, cubin and launch data."
    ),
    "host_compiler": TEXT.about("The C++ compiler that compiled the run."),
    "unproved": TEXT.about("Why the kernel has no proof, in records of form dsl of older versions."),
}
"""The known fields of a proof. The first three come from the plan and the SASS, the others from a run on the CPU."""


def old_name(rule: Check, new: str) -> Check:
    """Return the check of a renamed field under its old name."""
    return rule.about(f"Old name of {new}.", deprecated=True)


_PROOF = fields(
    {},
    optional={**PROVED, **{old: old_name(PROVED[new], new) for old, new in RENAMED_PROOF.items()}},
    others=plain,
)
_ORDER = fields(
    {
        "id": text(r"order_[0-9a-f]{8}", "order_ and 8 hexadecimal digits").about(
            "Order of accumulation: short hash of its text."
        ),
        "text": TEXT.about("The order in words, with the tensor instruction's k and the type of each sum."),
        "fixed": boolean.about(
            "Whether every launch has this order, for any m and n. If not, only launches that do not share the k of a tile have it."
        ),
    }
)
_DOCUMENT = fields(
    {
        "schema": integer(low=SCHEMA, high=SCHEMA).about("Version of the format."),
        "symbol": SYMBOL.about("Name of the kernel, of its function, and of its folder."),
        "alias": text(r"[A-Za-z0-9_.\-]{0,200}", "a name of letters, digits, _ . and -").about(
            "Name that CUTLASS gives such a kernel."
        ),
        "key": _SHA256.about("SHA-256 of source, compiler inputs, options and versions."),
        "arch": text(r"sm_[0-9]{2,3}[a-z]?", "an architecture such as sm_89").about("Architecture of the cubin."),
        "spec": map_of(NAME, scalar).about("Every decision behind the kernel."),
        "toolchain": _TOOLCHAIN.about("Versions and options of the compilers."),
        "inputs": map_of(_INPUT, _SHA256).about("SHA-256 of each file that the compiler read, by relative path."),
        "files": _files.about("The files of the kernel, by name."),
        "launch": _LAUNCH.about("What a launch needs besides the problem."),
        "resources": _RESOURCES.about("Resources that the kernel takes, as inspected."),
        "sass": map_of(_INSTRUCTION, _COUNT).about("Number of each instruction in the machine code, by opcode."),
        "proof": _PROOF.about("What the plan predicts, and what a run on the CPU found."),
        "traits": _TRAITS.about("What a caller may rely on, and what it must provide."),
        "seconds": fields(
            {
                "emit": number().about("Time to plan and to write the source.", "s"),
                "compile": number().about("Time to compile and link.", "s"),
                "inspect": number().about("Time to inspect the machine code.", "s"),
            },
            others=number(),
        ).about("Time of each stage of the build."),
        "spilled": boolean.about("Whether the kernel uses local memory."),
    },
    optional={
        "accumulation_order": _ORDER.about(
            "The order in which the products of an element are added, before alpha. Kernels with the same order give the same bits "
            "of this sum on the same GPU."
        ),
        HASH_FIELD: _SHA256.about("SHA-256 of this record in canonical form, without this field."),
    },
)


def json_schema() -> JsonSchema:
    """Return the JSON schema of a record, draft 2020-12, without the fields of the spec, which only the generator knows."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:hgemm:record:{SCHEMA}",
        "title": RECORD_NAME,
        "description": "The record of a kernel. `x-unit` is the unit of a number.",
        **copy.deepcopy(_DOCUMENT.schema),
    }


# ==== Renamed words: old records, spec files and commands may use them ====


_PRESENT_NAMES = {**RENAMED_FIELDS, **{f"proof_{old}": f"proof_{new}" for old, new in RENAMED_PROOF.items()}}


def current_field(name: str) -> str:
    """Return the present name of a field of a spec or of a flat record."""
    return _PRESENT_NAMES.get(name, name)


def current_word(field: str, text: str) -> str:
    """Return the value of a spec field in present words."""
    words = RENAMED_WORDS.get(field)
    if not words:
        return text
    word, colon, size = text.partition(":")
    return words.get(word.strip().lower(), word) + colon + size


def current_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a record in present words."""
    named = dict(spec)
    if not _PRESENT_NAMES.keys().isdisjoint(spec):
        named = {_PRESENT_NAMES.get(name, name): value for name, value in spec.items()}
    words = {name: current_word(name, named[name]) for name in RENAMED_WORDS if isinstance(named.get(name), str)}
    return {**named, **words}


def former_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec in the words that were renamed. Symbols of old records end with the hash of these."""
    words = {name: {new: old for old, new in renamed.items()} for name, renamed in RENAMED_WORDS.items()}
    names = {new: old for old, new in RENAMED_FIELDS.items()}
    former = {names.get(name, name): value for name, value in spec.items()}
    for name, renamed in words.items():
        word, colon, size = str(former.get(name, "")).partition(":")
        former |= {name: renamed[word] + colon + size} if word in renamed else {}
    return former


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
    """A checked record. `data` is the whole document without its own hash, in present words."""

    data: dict[str, Any]

    @classmethod
    def parse(cls, document: bytes | str, source: str = RECORD_NAME, library: Path | None = None) -> Record:
        """Parse and check a document: schema, hash, and consistency. `source` and `library` say where it is from, for errors.

        Records of older versions have no hash.

        Raises: LibraryError with the file and the invalid field.
        """
        sound = is_canonical(document.encode() if isinstance(document, str) else document)
        unique = None if sound else _object  # a document with its hash has no name twice
        try:
            data = json.loads(document, object_pairs_hook=unique, parse_constant=_constant)
        except (ValueError, RecursionError) as error:
            raise LibraryError(f"{source} is not a JSON document ({error}): {regenerate_hint(library)}") from None
        except Mismatch as error:
            raise LibraryError(f"{source}: {error}: {regenerate_hint(library)}") from None
        validate(data, source, library)
        digest, current = data.pop(HASH_FIELD, None), _current(data)
        if not sound and digest is not None and digest != record_digest(data):
            raise LibraryError(
                f"{source}: the record was changed (its {HASH_FIELD} differs): {regenerate_hint(library)}"
            )
        if wrong := contradiction(current):
            raise LibraryError(f"{source}: {wrong}: {regenerate_hint(library)}")
        if not is_symbol_of(data["symbol"], data["spec"]):
            raise LibraryError(f"{source}: the hash of its spec is not that of its symbol: {regenerate_hint(library)}")
        return cls(current)

    @property
    def symbol(self) -> str:
        return str(self.data["symbol"])

    @property
    def key(self) -> str:
        return str(self.data["key"])

    @property
    def arch(self) -> str:
        return str(self.data["arch"])

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        files: dict[str, dict[str, Any]] = self.data["files"]
        return files

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


def proof_mismatch(proof: Mapping[str, Any]) -> str:
    """Return what no record can hold of a proof, or an empty text."""
    try:
        _PROOF.test(proof, "proof")
    except Mismatch as error:
        return str(error)
    return ""


def validate(data: object, source: str = RECORD_NAME, library: Path | None = None) -> None:
    """Check all fields of a record. Raises LibraryError with the file and the invalid field."""
    try:
        _DOCUMENT.test(data, "")
    except Mismatch as error:
        raise LibraryError(f"{source}: {error}: {regenerate_hint(library)}") from None


def dump(data: Mapping[str, Any]) -> str:
    """Return a record in its canonical form with its hash: sorted names, floats with nine digits, one final newline."""
    text = _canonical({**data, HASH_FIELD: _NO_HASH})
    return text.replace(f'\n "{HASH_FIELD}": "{_NO_HASH}"', f'\n "{HASH_FIELD}": "{_written_digest(text.encode())}"', 1)


_NO_HASH = "0" * 64


def record_digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record in its canonical form, without the field of the hash itself."""
    return _written_digest(_canonical({**data, HASH_FIELD: _NO_HASH}).encode())


def is_canonical(document: bytes) -> bool:
    """Return whether a document has its hash, and the form of `dump`."""
    line = _HASH_LINE.search(document)
    return line is not None and line[1].decode() == _written_digest(document)


def _canonical(data: Mapping[str, Any]) -> str:
    return json.dumps(_stable(data), sort_keys=True, indent=1, allow_nan=False) + "\n"


_HASH_LINE = re.compile(rb'\n "%s": "([0-9a-f]{64})",(?=\n)' % HASH_FIELD.encode())


def _written_digest(text: bytes) -> str:
    """Return the hash of a document without the line of its hash. This is the record's hash if it is in canonical form."""
    line = _HASH_LINE.search(text)
    if not line:
        return ""
    digest = hashlib.sha256(text[: line.start()])
    digest.update(text[line.end() :])
    return digest.hexdigest()


SPEC_DEFAULTS = {
    "consumers": 0,
    "cooperation": "cooperative",
    "cluster": "1x1",
    "swap_ab": False,
    "store_spacing": 0,
    "prefetch": True,
    "smem_alloc": "dynamic",
    "form": "atoms",
    "epilogue": "none",
    "serial_parts": False,
    "pointer_arrays": False,
}
"""Fields of a spec that its hash leaves out if they have these values."""
_HASHED_SYMBOL = re.compile(r"hgemm_sm\w*_([0-9a-f]{8})", re.ASCII)


def is_symbol_of(symbol: str, spec: Mapping[str, Any]) -> bool:
    """Return whether a symbol ends with the hash of a spec, in present or former words. Symbols of another form pass."""
    digits = _HASHED_SYMBOL.fullmatch(symbol)
    return not digits or digits[1] == _spec_digits(spec) or digits[1] == _spec_digits(former_spec(spec))


def _spec_digits(spec: Mapping[str, Any]) -> str:
    hashed = {name: value for name, value in spec.items() if SPEC_DEFAULTS.get(_PRESENT_NAMES.get(name, name)) != value}
    return hashlib.sha256(_compact(hashed).encode()).hexdigest()[:8]


_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""`json.dumps` with options would make a new encoder for each record."""


def flatten(data: dict[str, Any]) -> dict[str, Scalar]:
    """Return all scalars of a record by a short name. A name that is taken gets its section as a prefix."""
    launch, traits, order = data["launch"], data["traits"], data.get("accumulation_order", {})
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
        ("order", {"accumulation_order": order["id"], "fixed_order": order["fixed"]} if order else {}),
        ("sass", {"sass_" + name.lower().replace(".", "_"): count for name, count in data["sass"].items()}),
        ("files", {name.partition(".")[2] + "_bytes": file["bytes"] for name, file in data["files"].items()}),
        ("seconds", {f"{name}_seconds": value for name, value in data["seconds"].items()}),
        ("toolchain", {name: value for name, value in data["toolchain"].items() if isinstance(value, str)}),
        ("proof", {f"proof_{name}": value for name, value in data["proof"].items() if _is_scalar(value)}),
    ]
    for section, values in sections:
        for name, value in values.items():
            flat[f"{section}_{name}" if name in flat else name] = value
    text = str(flat.get("epilogue", ""))
    if text.startswith("{") and (epilogue := parse_epilogue(text)):
        flat |= {"epilogue": str(epilogue), "epilogue_hash": epilogue.hash}
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
    if isinstance(value, Mapping):
        return {name: _stable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stable(item) for item in value]
    return float(f"{value:.9g}") + 0.0 if isinstance(value, float) else value
