"""The spec of a kernel: its value types, the table of its fields, and the options that set them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar

from generator import epilogue
from generator.arch import ARCHS, parse_arch
from generator.errors import RequestError, closest_words, unknown_word
from hgemm.dtypes import DTYPES, OUTPUTS, SPELLINGS
from hgemm.errors import deprecated
from hgemm.problem import ACCUMULATIONS, ACTIVATIONS, BIASES, LAUNCH, LAYOUTS, TYPES
from hgemm.record import current_field, current_spec, current_word


def _integers(text: str, pattern: str, what: str, example: str) -> list[int]:
    """Return the integers of a text that matches `pattern`.

    Raises: RequestError that names the text as `what` and shows an example.
    """
    match = re.fullmatch(pattern, text.strip().lower())
    if not match:
        raise RequestError(f"{what} {text!a} is malformed: write it as {example}")
    return [int(group) for group in match.groups()]


@dataclass(frozen=True, order=True)
class Tile:
    """A CTA tile. Units: elements of D (m, n) and of the shared dimension (k)."""

    m: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str, what: str = "tile") -> Tile:
        return cls(*_integers(text, r"(\d{1,5})x(\d{1,5})x(\d{1,5})", what, "MxNxK, such as 128x128x32"))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, order=True)
class WarpTile:
    """The part of a CTA tile that one warp computes. Units: elements of D."""

    m: int
    n: int

    @classmethod
    def parse(cls, text: str, what: str = "warp_tile") -> WarpTile:
        return cls(*_integers(text, r"(\d{1,5})x(\d{1,5})", what, "MxN, such as 64x64"))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


@dataclass(frozen=True, order=True)
class Cluster:
    """CTAs that share operands: m tiles down a column share B, and n tiles along a row share A."""

    m: int
    n: int

    @classmethod
    def parse(cls, text: str, what: str = "cluster") -> Cluster:
        return cls(*_integers(text, r"([1-9]\d?)x([1-9]\d?)", what, "MxN, such as 2x1"))

    @property
    def ctas(self) -> int:
        return self.m * self.n

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


_PADDED = {"pad": "each", "pad_alternate": "every second"}


@dataclass(frozen=True, order=True)
class Smem:
    """The placement of one operand's tile in shared memory.

    none: Rows follow one another.
    pad:H: H elements stay free after each row.
    pad_alternate:H: H elements stay free after every second row.
    xor:B,M,S: B bits of an element's offset, from bit M on, are XORed with the B bits that lie S bits higher. This is
        CuTe's Swizzle<B, M, S>, in elements of the operand.
    """

    kind: str
    parameters: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, what: str = "smem") -> Smem:
        kind, _, rest = text.strip().lower().partition(":")
        if kind == "none" and not rest:
            return cls("none")
        if kind in _PADDED:
            example = f"{kind}:8 (elements after {_PADDED[kind]} row)"
            return cls(kind, tuple(_integers(text, kind + r":(\d{1,3})", what, example)))
        if kind == "xor":
            found = _integers(text, r"xor:(\d),(\d{1,2}),(\d{1,2})", what, "xor:B,M,S, such as xor:2,3,3")
            return cls("xor", tuple(found))
        raise unknown_word(what, text, ("auto", "none", "128B", "64B", "32B", "pad:H", "pad_alternate:H", "xor:B,M,S"))

    @property
    def pad_elements(self) -> int:
        """Elements after each padded row."""
        return self.parameters[0] if self.kind in _PADDED else 0

    @property
    def row_pad(self) -> int:
        """Elements after every row."""
        return self.pad_elements if self.kind == "pad" else 0

    @property
    def pair_pad(self) -> int:
        """Elements after every second row."""
        return self.pad_elements if self.kind == "pad_alternate" else 0

    @property
    def has_one_pitch(self) -> bool:
        """Return whether rows have one pitch and the elements of a row are contiguous."""
        return self.kind in ("none", "pad")

    @property
    def swizzle(self) -> tuple[int, int, int]:
        """Return (bits, base, shift); `bits` is 0 without a swizzle."""
        return self.parameters if self.kind == "xor" else (0, 3, 3)  # type: ignore[return-value]

    def __str__(self) -> str:
        return self.kind + (":" + ",".join(map(str, self.parameters)) if self.parameters else "")


@dataclass(frozen=True, order=True)
class _Sized:
    """A word that may be followed by a colon and a number.

    Fields: `plain` lists the words without a number. `sized` maps each word with a number to the number's name in help texts and
        to what it counts. `unsupported` maps a known word that is not implemented to the word to use.
    """

    kind: str
    size: int = 0

    plain: ClassVar[tuple[str, ...]] = ()
    sized: ClassVar[dict[str, tuple[str, str]]] = {}
    unsupported: ClassVar[dict[str, str]] = {}

    @classmethod
    def parse(cls, text: str, what: str):
        kind, colon, rest = text.strip().lower().partition(":")
        if kind in cls.plain and not colon:
            return cls(kind)
        if kind in cls.sized and re.fullmatch(r"\d{1,6}", rest) and int(rest) >= 1:
            return cls(kind, int(rest))
        if kind in cls.unsupported:
            raise RequestError(f"{what} '{kind}' is not supported: use {cls.unsupported[kind]}")
        if kind in cls.plain:
            raise RequestError(f"{what} '{text}': {kind} takes no number")
        if kind in cls.sized:
            raise RequestError(f"{what} '{text}': {kind} takes {cls.sized[kind][1]}")
        forms = dict(zip((*cls.plain, *cls.sized), cls.forms()))
        meant = "".join(f"did you mean {forms[word]}? " for word in closest_words(kind, forms))
        raise RequestError(f"{what} {text!a} is unknown: {meant}use {', '.join(forms.values())}")

    @classmethod
    def forms(cls) -> tuple[str, ...]:
        """Return how each word is written: row, group:TILES."""
        return (*cls.plain, *(f"{word}:{number}" for word, (number, _) in cls.sized.items()))

    def __str__(self) -> str:
        return self.kind + (f":{self.size}" if self.size else "")


@dataclass(frozen=True, order=True)
class Raster(_Sized):
    """The order of tiles: `row`, `column`, `group:TILES` (rows of tiles), `panel:COLUMNS` (columns of D).

    launch: Each launch decides: groups or panels of any width. group:1 is `row`, and panels of one tile are `column`.
    """

    plain: ClassVar[tuple[str, ...]] = ("row", "column", LAUNCH)
    sized: ClassVar[dict[str, tuple[str, str]]] = {
        "group": ("TILES", "1 to 999,999 rows of tiles, as group:8"),
        "panel": ("COLUMNS", "1 to 999,999 columns of D, as panel:1024"),
    }
    unsupported: ClassVar[dict[str, str]] = {"hilbert": "group:TILES"}


@dataclass(frozen=True, order=True)
class Schedule(_Sized):
    """The distribution of work to CTAs.

    one_tile: Each CTA computes one tile.
    persistent: The grid fills the GPU once, and each CTA computes tiles until none is left.
    split_k:S: S CTAs share the k of a tile and add their accumulators in a workspace.
    split_k_cluster:S: S CTAs of a cluster share the k of a tile and add their accumulators in shared memory.
    stream_k: CTAs compute whole waves of tiles, then share the k-tiles of the last one or two waves evenly, in a workspace.
    launch: Each launch decides: whole tiles, equal splits of each tile in a workspace, or stream-K.
    """

    plain: ClassVar[tuple[str, ...]] = ("one_tile", "persistent", "stream_k", LAUNCH)
    sized: ClassVar[dict[str, tuple[str, str]]] = {
        "split_k": ("S", "2 to 64 parts, as split_k:4"),
        "split_k_cluster": ("S", "2 to 8 CTAs, as split_k_cluster:2"),
    }

    @property
    def splits(self) -> int:
        return self.size or 1

    @property
    def in_workspace(self) -> bool:
        """Return whether partial accumulators can meet in a workspace."""
        return self.kind in ("split_k", "stream_k", LAUNCH)


# ==== The spec of a kernel ====


@dataclass(frozen=True)
class Spec:
    """Every decision behind one kernel, computing D = activation(alpha * A B + beta * C + bias).

    With an `epilogue`, D is an expression of A B and its inputs instead.

    Shapes: A (m, k), B (k, n), C and D (m, n), row-major D. Bias is a row (n,) or a column (m,) of D's type.
    Fields: FIELDS describes each field. A field has a default here if most kernels have no choice in it.
        `layout` names A and B in BLAS letters, read column-major: A is `t` if k is contiguous and `n` if m is; B is `n` if k is
        contiguous and `t` if n is.
    """

    arch: str
    dtype_a: str
    dtype_b: str
    acc: str
    dtype_d: str
    layout: str
    cta_tile: Tile
    warp_tile: WarpTile
    mma: str
    stages: int
    fragment_stages: int
    copy: str
    smem_a: Smem
    smem_b: Smem
    mma_order: str
    raster: Raster
    schedule: Schedule
    ctas_per_sm: int
    beta: bool
    bias: str
    activation: str
    store: str
    align_a: int
    align_b: int
    align_d: int
    consumers: int = 0
    cooperation: str = "cooperative"
    cluster: Cluster = Cluster(1, 1)
    swap_ab: bool = False
    store_spacing: int = 0
    prefetch: bool = True
    smem_alloc: str = "dynamic"
    form: str = "atoms"
    epilogue: str = "none"
    serial_parts: bool = False
    pointer_arrays: bool = False

    def to_dict(self) -> dict[str, str | int | bool]:
        """Return the fields as JSON scalars. `parse_field` reads their texts back."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value if isinstance(value, (bool, int, str)) else str(value) for name, value in plain.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Spec:
        """Read what `to_dict` wrote, in this version or an older one.

        Raises: RequestError for a missing, unknown or malformed field.
        """
        values = current_spec(values)
        missing = [field.name for field in fields(cls) if field.name not in values and field.default is MISSING]
        if missing:
            raise RequestError(f"spec lacks {', '.join(missing)}: name every field or plan them")
        return cls(**{name: parse_field(name, str(value)) for name, value in values.items()})

    def replace(self, **values: Any) -> Spec:
        """Return the spec with other values in some fields; faster than dataclasses.replace."""
        return Spec(**{**vars(self), **values})

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of A."""
        return DTYPE_BYTES[self.dtype_a]

    @property
    def a_k_major(self) -> bool:
        return self.layout[0] == "t"

    @property
    def b_k_major(self) -> bool:
        return self.layout[1] == "n"


HASH_DIGITS = 8
"""Digits of a spec's hash in a symbol."""


def spec_hash(spec: Spec) -> str:
    """Return the SHA-256 of a spec, in hexadecimal.

    A field that has the default of `Spec` is left out, so that a new field with a default changes no hash.
    """
    defaults = {field.name: field.default for field in fields(Spec)}
    values = {name: value for name, value in spec.to_dict().items() if getattr(spec, name) != defaults[name]}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


Request = dict[str, Any]
"""The fields that a user set, by name. The others are planned."""


FORMS = ("atoms", "cute", "dsl")
"""Forms of source: on CuTe's atoms, in all of CuTe, as a CuTe DSL module. The first supports the most specs."""

WGMMA = "wgmma"
"""The instruction of a request that leaves its width to the tile. A spec has the width, such as `m64n256k16`."""

WMMA = "wmma16"
"""Fragments of 16 x 16 x 16. The compiler chooses the instructions that load and multiply them."""

_WGMMA_ATOM = re.compile(r"m64n(\d{1,3})k(?:16|8)", re.ASCII)
_WORD = re.compile(r"[a-z]{3}[a-z0-9_]*", re.ASCII)


# ==== Parsers: text to value ====


Parser = Callable[[str, str], Any]
"""Returns the value of a text, the first argument. Errors call it by the second argument."""


@dataclass(frozen=True)
class WordParser:
    """A parser of one word out of several. `spellings` maps other spellings of a word to it."""

    words: tuple[str, ...]
    spellings: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, text: str, what: str) -> str:
        word = text.strip().lower()
        word = self.spellings.get(word, word)
        if word in self.words:
            return word
        if "/" in text:
            raise RequestError(f"{what} {text!a} is a path; use {', '.join(self.words)}. --library names the folder")
        raise unknown_word(what, text, self.words)


@dataclass(frozen=True)
class IntegerParser:
    """A parser of a whole number from `low` to `high`.

    Numbers up to `readable` are accepted too: the rules reject them with the limit of the kernel.
    """

    low: int
    high: int
    readable: int = 0

    def __call__(self, text: str, what: str) -> int:
        if text.strip().isdecimal() and self.low <= int(text) <= max(self.high, self.readable):
            return int(text)
        raise RequestError(f"{what} {text!a} is not a whole number from {self.low} to {self.high}")


def _switch(text: str, what: str) -> bool:
    word = text.strip().lower()
    if word in ("on", "true", "yes", "1"):
        return True
    if word in ("off", "false", "no", "0"):
        return False
    raise unknown_word(what, text, ("on", "off"))


def _align(text: str, what: str) -> int:
    return int(WordParser(("8", "4", "2", "1"))(text, what))


def _mma(text: str, what: str) -> str:
    """Parse an instruction: a known shape, or a word. The planner knows the words of all families."""
    word = text.strip().lower()
    if _WGMMA_ATOM.fullmatch(word) or _WORD.fullmatch(word):
        return word
    return WordParser(("m16n8k16", "m16n8k8", WMMA, WGMMA, "m64nNk16", "m64nNk8"))(text, what)


# ==== The table of fields ====


_MMA_SYNC, _WGMMA = "mma_sync", "wgmma"
_WARPS = (_MMA_SYNC, "mma_sync_tma")
_ALIGNS = ("8", "4", "2", "1")
_SMEM = ("auto", "none", "pad:8", "pad_alternate:8", "xor:1,3,3", "xor:2,3,3", "xor:3,3,3", "xor:3,3,4")
_INPUTS = tuple(word for word in TYPES if word != "f32")

TARGET, OPERANDS, TILES = "Target", "Types and operands", "Tiles"
PIPELINE, ORDER, EPILOGUE = "Pipeline and shared memory", "Order of the work", "Epilogue"


@dataclass(frozen=True)
class Field:
    """One field of a spec.

    Fields: `parse` reads a value. `option` sets this field alone; `shared` names an option that sets several fields. `examples`
        are words that a shell completes if `parse` has no list of words. `symbol` writes the field's part of a kernel's symbol.
        `enum` is the enumeration hgemm_<enum> of hgemm.h if the run time knows the field. `families` are the kernel families
        that leave the field open; none stands for all. `meaning` describes the field of a record if `help` fits the option only;
        `unit` is the unit of its number.
    """

    name: str
    parse: Parser
    group: str
    metavar: str
    help: str
    option: str = ""
    shared: str = ""
    examples: tuple[str, ...] = ()
    symbol: Callable[[Spec], str] | None = None
    enum: str = ""
    families: tuple[str, ...] = ()
    meaning: str = ""
    unit: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The values that a shell completes: all if the field has a list of values, examples otherwise."""
        if isinstance(self.parse, WordParser):
            return self.parse.words
        return ("on", "off") if self.parse is _switch else self.examples


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


_TYPE, _OUT, _ACC = WordParser(_INPUTS, SPELLINGS), WordParser(OUTPUTS, SPELLINGS), WordParser(ACCUMULATIONS, SPELLINGS)

FIELDS = (
    Field(
        "arch",
        parse_arch,
        TARGET,
        "ARCHS",
        "Architectures: sm_89, 89, 8.9, a card such as h100, or native. Required.",
        examples=tuple(ARCHS),
        symbol=lambda spec: spec.arch.replace("_", ""),
        meaning="Architecture.",
    ),
    Field(
        "form",
        WordParser(FORMS),
        TARGET,
        "NAMES",
        "How the source is written: on CuTe's atoms (atoms), with all of CuTe (cute), in CuTe DSL (dsl).",
        families=(_MMA_SYNC, _WGMMA),
    ),
    Field("ctas_per_sm", IntegerParser(1, 32), TARGET, "N", "CTAs that an SM holds at once. Limits the registers."),
    Field(
        "dtype_a",
        _TYPE,
        OPERANDS,
        "DTYPES",
        "The same for A only.",
        shared="dtype",
        symbol=lambda spec: spec.dtype_a + (spec.dtype_b if spec.dtype_b != spec.dtype_a else ""),
        enum="dtype",
        meaning="Type of A.",
    ),
    Field(
        "dtype_b", _TYPE, OPERANDS, "DTYPES", "The same for B only.", shared="dtype", enum="dtype", meaning="Type of B."
    ),
    Field(
        "acc",
        _ACC,
        OPERANDS,
        "DTYPES",
        f"Accumulator: {_listed(ACCUMULATIONS)}.",
        symbol=lambda spec: {"f16_promoted": "f16p"}.get(spec.acc, spec.acc),
        enum="acc",
    ),
    Field(
        "dtype_d",
        _OUT,
        OPERANDS,
        "DTYPES",
        f"Type of C and D: {_listed(OUTPUTS)}.",
        option="out",
        symbol=lambda spec: spec.dtype_d,
        enum="dtype",
    ),
    Field(
        "layout",
        WordParser(LAYOUTS),
        OPERANDS,
        "LAYOUTS",
        f"A and B in BLAS letters: {_listed(LAYOUTS)}.",
        symbol=lambda spec: spec.layout,
        enum="layout",
    ),
    *(
        Field(
            f"align_{letter}",
            _align,
            OPERANDS,
            "N",
            f"The same for {names} only.",
            shared="align",
            examples=_ALIGNS,
            meaning=f"Alignment of {names}: {_listed(_ALIGNS)}.",
            unit="elements",
        )
        for letter, names in (("a", "A"), ("b", "B"), ("d", "C and D"))
    ),
    Field(
        "cta_tile",
        Tile.parse,
        TILES,
        "MxNxK",
        "CTA tile: 128x128x32,256x128x32.",
        option="tile",
        symbol=lambda spec: str(spec.cta_tile),
        meaning="CTA tile: MxNxK.",
        unit="elements",
    ),
    Field("warp_tile", WarpTile.parse, TILES, "MxN", "Warp tile: 64x64.", families=_WARPS, unit="elements"),
    Field(
        "mma",
        _mma,
        TILES,
        "ATOMS",
        f"Tensor instruction: m16n8k16, m16n8k8, {WMMA}, {WGMMA}.",
        examples=("m16n8k16", "m16n8k8", WMMA, WGMMA),
        meaning=f"Tensor instruction: m16n8k16, m16n8k8, {WMMA}, or m64nNk16 and m64nNk8 of wgmma.",
    ),
    Field(
        "consumers",
        IntegerParser(0, 3),
        TILES,
        "N",
        "wgmma: warpgroups that multiply, 1 to 3.",
        examples=("1", "2", "3"),
        families=(_WGMMA,),
    ),
    Field(
        "cooperation",
        WordParser(("cooperative", "pingpong")),
        TILES,
        "NAMES",
        "wgmma: consumers share a tile (cooperative) or alternate (pingpong).",
        families=(_WGMMA,),
    ),
    Field(
        "cluster",
        Cluster.parse,
        TILES,
        "MxN",
        "wgmma: CTAs that share operands, along m and n.",
        examples=("1x1", "2x1", "1x2", "4x1", "1x4", "2x2", "4x2", "2x4"),
        families=(_WGMMA,),
    ),
    Field(
        "swap_ab",
        _switch,
        TILES,
        "ON/OFF",
        "wgmma: compute the transposed product B^T A^T, for small m.",
        families=(_WGMMA,),
    ),
    Field(
        "stages",
        IntegerParser(1, 16, readable=64),
        PIPELINE,
        "N",
        "Stages of the pipeline: 3, or 2:5. 1 to 16; with wgmma or TMA, at least 2.",
        symbol=lambda spec: f"s{spec.stages}",
        meaning="Stages of the pipeline.",
    ),
    Field(
        "fragment_stages",
        IntegerParser(1, 2, readable=8),
        PIPELINE,
        "N",
        "Buffers of fragments: 2 (the next ones are read during the products) or 1.",
        examples=("1", "2"),
        families=_WARPS,
    ),
    Field(
        "copy",
        WordParser(("cp_async", "ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned", "tma", "ldg")),
        PIPELINE,
        "METHODS",
        "How A and B are loaded. To shared memory: cp_async, ldg_sts, ldg_sts_scalar, ldg_sts_unaligned, tma. "
        "To registers, for few rows: ldg. wgmma supports tma and cp_async.",
    ),
    Field(
        "store_spacing",
        IntegerParser(0, 64),
        PIPELINE,
        "N",
        "ldg_sts, ldg_sts_scalar: tensor instructions between two stores to shared memory. 0: store after the last one.",
        examples=("0", "2", "5"),
        families=(_MMA_SYNC,),
    ),
    Field(
        "prefetch",
        _switch,
        PIPELINE,
        "ON/OFF",
        "ldg_sts*: load the next k-tile into registers before the current one is multiplied, or after.",
        families=(_MMA_SYNC,),
    ),
    Field(
        "smem_alloc",
        WordParser(("dynamic", "static")),
        PIPELINE,
        "NAMES",
        "Shared memory: dynamic, static.",
        families=(_MMA_SYNC,),
    ),
    *(
        Field(
            f"smem_{letter}",
            Smem.parse,
            PIPELINE,
            "NAMES",
            f"The same for {letter.upper()} only.",
            shared="smem",
            examples=_SMEM,
            families=(_MMA_SYNC,),
            meaning=f"Placement of {letter.upper()} in shared memory: none, pad:H, pad_alternate:H, xor:B,M,S.",
            unit="elements",
        )
        for letter in "ab"
    ),
    Field(
        "mma_order",
        WordParser(("row", "zigzag")),
        PIPELINE,
        "NAMES",
        "Order of a warp's tensor instructions: row, zigzag.",
        families=_WARPS,
    ),
    Field(
        "raster",
        Raster.parse,
        ORDER,
        "RASTERS",
        f"Order of tiles: {_listed(Raster.forms())}.",
        examples=("row", "column", "group:8", "panel:1024", LAUNCH),
    ),
    Field(
        "schedule",
        Schedule.parse,
        ORDER,
        "SCHEDULES",
        f"How CTAs take work: {_listed(Schedule.forms())}.",
        examples=("one_tile", "persistent", "stream_k", "split_k:4", "split_k_cluster:2", LAUNCH),
    ),
    Field(
        "serial_parts",
        _switch,
        ORDER,
        "ON/OFF",
        f"wgmma, schedule {LAUNCH}: whole tiles add k in the same parts as split tiles, one part after another.",
        families=(_WGMMA,),
    ),
    Field(
        "pointer_arrays",
        _switch,
        ORDER,
        "ON/OFF",
        "mma.sync and wgmma: read the addresses of a batch's A, B, C and D from pointer arrays in device memory.",
        families=(_MMA_SYNC, _WGMMA),
    ),
    Field("beta", _switch, EPILOGUE, "ON/OFF", "Add beta * C: on, off.", meaning="Add beta * C."),
    Field(
        "bias",
        WordParser((*BIASES, LAUNCH)),
        EPILOGUE,
        "NAMES",
        f"Add a bias: none, row (n,), column (m,), {LAUNCH} (any of them).",
        enum="bias",
    ),
    Field(
        "activation",
        WordParser(ACTIVATIONS),
        EPILOGUE,
        "NAMES",
        f"Activation: {_listed(ACTIVATIONS)}.",
        enum="activation",
    ),
    Field(
        "epilogue",
        epilogue.parse_field,
        EPILOGUE,
        "FORMULAS",
        'Compute D by a formula, "relu(alpha * acc + bias)", or a function, FILE.py:FUNCTION. Types of inputs come first: '
        '"residual: Matrix; acc + residual". Replaces --beta, --bias and --activation. Documentation: epilogue.md.',
        examples=("none",),
        meaning="Expression of D, in JSON; none if beta, bias and activation define D.",
    ),
    Field(
        "store",
        WordParser(("direct", "smem", "tma")),
        EPILOGUE,
        "NAMES",
        "How D is stored: direct, smem (through shared memory), tma.",
    ),
)
"""Every field, in the order of help texts and of sweeps."""

BY_FIELD = {row.name: row for row in FIELDS}

_SHARED = {
    "dtype": f"Type of A and B: {_listed(_INPUTS)}.",
    "align": f"Alignment of the operands, in elements: {_listed(_ALIGNS)}.",
    "smem": "Placement of A and B: auto, none, 128B, 64B, 32B (swizzles), pad:H, pad_alternate:H, xor:B,M,S.",
}
"""Help of the options that set several fields."""

SYMBOL_FIELDS = ("arch", "layout", "dtype_a", "acc", "dtype_d", "cta_tile", "stages")
"""The fields whose words a kernel's symbol has, in its order."""

MAX_SYMBOL = 64


def symbol_of(spec: Spec) -> str:
    """Return the kernel's `extern "C"` name: the fields that people search for, then a hash of all fields.

    Example: `hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_7f3a91c2` has A and B of f16, accumulates in f32 and stores f16.
    A and B of two types are written as one word, f16bf16.
    """
    words = ["hgemm", *(BY_FIELD[name].symbol(spec) for name in SYMBOL_FIELDS)]
    return f"{'_'.join(words)[: MAX_SYMBOL - HASH_DIGITS - 1]}_{spec_hash(spec)[:HASH_DIGITS]}"


def differing(values: Mapping[str, Collection[Any]]) -> list[str]:
    """Return the fields that have several values and are not part of a symbol. `values` are those of some kernels, by field."""
    return [name for name in BY_FIELD if name not in (*SYMBOL_FIELDS, "dtype_b") and len(values.get(name, ())) > 1]


def parse_field(name: str, text: str, called: str = "") -> Any:
    """Return the value of one field from its text; warn of renamed words.

    Raises: RequestError that names the field as `called` and lists the values.
    """
    current = current_word(name, text)
    if current != text:
        deprecated(f"{called or name} {text}", current)
    return _parse_field(name, current, called)


@lru_cache(4096)
def _parse_field(name: str, text: str, called: str) -> Any:
    if name not in BY_FIELD:
        raise RequestError(f"spec has no field '{name}': the fields are {', '.join(BY_FIELD)}")
    return BY_FIELD[name].parse(text, called or name)


DTYPE_BYTES = {name: dtype.bytes for name, dtype in DTYPES.items()}
"""Bytes of an element in memory. A tf32 element is a float; the tensor cores read its upper bits."""


# ==== The options that set fields: flags on the command line, names in a spec file ====


Texts = Mapping[str, str]
"""The texts of options, by name: {"tile": "128x128x32,256x128x32", "stages": "2:5"}."""


@dataclass(frozen=True)
class SpecOption:
    """One option: the fields that it sets, its help, and the words that a shell completes."""

    name: str
    fields: tuple[str, ...]
    group: str
    metavar: str
    help: str
    words: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def _options() -> Iterator[SpecOption]:
    begun: set[str] = set()
    for row in FIELDS:
        if row.shared and row.shared not in begun:
            begun.add(row.shared)
            names = tuple(other.name for other in FIELDS if other.shared == row.shared)
            yield SpecOption(row.shared, names, row.group, row.metavar, _SHARED[row.shared], row.words)
        yield SpecOption(row.option or row.name, (row.name,), row.group, row.metavar, row.help, row.words)


_MORE_OPTIONS = {
    "warp_tile": SpecOption(
        "warps",
        ("warp_tile",),
        TILES,
        "MxN",
        "Warps of a CTA along m and n, instead of --warp-tile: 2x2.",
        ("2x2", "2x4"),
    ),
    "schedule": SpecOption(
        "split_k", ("schedule",), ORDER, "N", "Splits of k: short for --schedule split_k:N.", ("2", "4")
    ),
}
"""Other ways to set a field, before the option whose field they set. `generator.sweep` reads their values."""


SPEC_OPTIONS = tuple(option for own in _options() for option in (_MORE_OPTIONS.get(own.name), own) if option)
"""Every option. One that sets several fields comes before those that set one of them, so that the specific option wins."""

BY_NAME = {option.name: option for option in SPEC_OPTIONS}

_ALSO_CALLED = {
    "swizzle": "smem",
    "padding": "smem",
    "stream_k": "schedule stream_k",
    "streamk": "schedule stream_k",
    "num_stages": "stages",
    "block": "tile",
    "block_tile": "tile",
    "threadblock": "tile",
    "threadblock_tile": "tile",
    "gpu": "arch",
    "device": "arch",
    "num_splits": "split-k",
    "output": "library",
    "output_dir": "library",
    "out_dir": "library",
    "outdir": "library",
    "to": "library",
}
"""Names of options in other projects, with the option here."""
_OF_THE_COMMAND = frozenset(
    "library jobs executor address worker_timeout shard force verify allow_spills json junit explain dry_run quiet catalog kernels "
    "recipe".split()
)
"""Options of `generate` that are not part of a spec."""


def flag_meant_by(flag: str) -> str:
    """Return the flag that an unknown flag means: the name of a field or of another project's option. Empty if unknown."""
    plain = _plain(flag)
    flags = {option.fields: option.flag for option in SPEC_OPTIONS}  # of several options, the last is the field's own
    return f"--{_ALSO_CALLED[plain]}" if plain in _ALSO_CALLED else flags.get((plain,), "")


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").lower()


def option_of(name: str) -> SpecOption:
    """Return the option that a name, a flag or a field of `Spec` stands for.

    Raises: RequestError that names the nearest option.
    """
    plain = current_field(_plain(name))
    if plain != _plain(name):
        deprecated(name, plain)
    if plain in BY_NAME:
        return BY_NAME[plain]
    exact = [option for option in SPEC_OPTIONS if option.fields == (plain,)]
    if exact:
        return exact[0]
    meant = _ALSO_CALLED.get(plain, plain)
    if meant in _OF_THE_COMMAND:
        raise RequestError(f"a spec has no '{name}': write --{meant.replace('_', '-')} on the command line")
    called = [meant] if plain in _ALSO_CALLED else []
    near = called or closest_words(plain, [*BY_NAME, *BY_FIELD], cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"the options are {', '.join(BY_NAME)}"
    raise RequestError(f"a spec has no '{name}': {hint}")
