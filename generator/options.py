"""The options that a spec is written with: on the command line by their flags, in a spec file by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from generator.arch import ARCHS
from generator.errors import RequestError, closest_words
from generator.spec import PARSERS, deprecated
from hgemm.record import current_field

Texts = Mapping[str, str]
"""Options by name, with what was written for them: {"tile": "128x128x32,256x128x32", "stages": "2:5"}."""


@dataclass(frozen=True)
class SpecOption:
    """One option: the fields of a spec that it sets, and how it is explained; `words` is what a shell completes."""

    name: str
    fields: tuple[str, ...]
    group: str
    metavar: str
    help: str
    words: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


_ARCHS = " ".join(name for name, arch in ARCHS.items() if arch.families)
_TARGET, _TYPES, _TILES, _PIPELINE = "Target", "Types and operands", "Tiles", "Pipeline and shared memory"
_ORDER, _EPILOGUE = "Order of the work", "Epilogue"
_ALIGN = "8 4 2 1"
_DTYPES = "f16 bf16 tf32"
_COOPERATION = "cooperative pingpong"
_CLUSTERS = "1x1 2x1 1x2 4x1 1x4 2x2"
_ATOMS = "m16n8k16 m16n8k8 wmma16 wgmma"
_COPY_HELP = "Global to shared memory by: cp_async, ldg_sts, ldg_sts_scalar, ldg_sts_unaligned, tma. wgmma takes tma and cp_async."
_SPACING_HELP = "ldg_sts, ldg_sts_scalar: tensor instructions between two stores to shared memory."
_PREFETCH_HELP = "ldg_sts*: load the next k-tile ahead, to registers, or after the products."
_SMEM = "auto none pad:8 pad_alternate:8 xor:1,3,3 xor:2,3,3 xor:3,3,3 xor:3,3,4"
_SMEM_HELP = "Placement of A and B: auto, none, pad:H, pad_alternate:H, xor:B,M,S."

SPEC_OPTIONS = (
    SpecOption("arch", ("arch",), _TARGET, "ARCHS", "Architectures: sm_89, 89 or 8.9. Has no default.", _ARCHS),
    SpecOption(
        "form",
        ("form",),
        _TARGET,
        "WORDS",
        "How the kernel is written: atoms, all of CuTe: cute, CuTe DSL: dsl.",
        "atoms cute dsl",
    ),
    SpecOption("ctas_per_sm", ("ctas_per_sm",), _TARGET, "N", "CTAs that an SM holds at once; bounds the registers."),
    SpecOption("dtype", ("dtype_a", "dtype_b"), _TYPES, "TYPES", "Type of A and B: f16, bf16, tf32.", _DTYPES),
    SpecOption("dtype_a", ("dtype_a",), _TYPES, "TYPES", "The same for A only.", _DTYPES),
    SpecOption("dtype_b", ("dtype_b",), _TYPES, "TYPES", "The same for B only.", _DTYPES),
    SpecOption("acc", ("acc",), _TYPES, "TYPES", "Accumulator: f32, f16, f16_promoted.", "f32 f16 f16_promoted"),
    SpecOption("out", ("dtype_d",), _TYPES, "TYPES", "Type of C and D: f16, bf16, f32.", "f16 bf16 f32"),
    SpecOption("layout", ("layout",), _TYPES, "LAYOUTS", "A and B in BLAS letters: tn, nn, nt, tt.", "tn nn nt tt"),
    SpecOption("align", ("align_a", "align_b", "align_d"), _TYPES, "N", "Alignment in elements: 8, 4, 2, 1.", _ALIGN),
    SpecOption("align_a", ("align_a",), _TYPES, "N", "The same for A only.", _ALIGN),
    SpecOption("align_b", ("align_b",), _TYPES, "N", "The same for B only.", _ALIGN),
    SpecOption("align_d", ("align_d",), _TYPES, "N", "The same for C and D only.", _ALIGN),
    SpecOption("tile", ("cta_tile",), _TILES, "MxNxK", "CTA tile: 128x128x32,256x128x32."),
    SpecOption("warp_tile", ("warp_tile",), _TILES, "MxN", "Warp tile: 64x64."),
    SpecOption("mma", ("mma",), _TILES, "ATOMS", "Tensor instruction: m16n8k16, m16n8k8, wmma16, wgmma.", _ATOMS),
    SpecOption("consumers", ("consumers",), _TILES, "N", "wgmma: warpgroups that multiply, 1 to 3.", "1 2 3"),
    SpecOption(
        "cooperation", ("cooperation",), _TILES, "WORDS", "wgmma: consumers share a tile or take turns.", _COOPERATION
    ),
    SpecOption("cluster", ("cluster",), _TILES, "MxN", "wgmma: CTAs that share operands, along m and n.", _CLUSTERS),
    SpecOption("swap_ab", ("swap_ab",), _TILES, "SWITCH", "wgmma: multiply B and A transposed, for small m.", "on off"),
    SpecOption("stages", ("stages",), _PIPELINE, "N", "Stages: 1 to 16, of wgmma and by TMA 2 to 16: 3 or 2:5."),
    SpecOption("fragment_stages", ("fragment_stages",), _PIPELINE, "N", "Fragments read ahead: 2, or not: 1.", "1 2"),
    SpecOption(
        "copy", ("copy",), _PIPELINE, "WORDS", _COPY_HELP, "cp_async ldg_sts ldg_sts_scalar ldg_sts_unaligned tma"
    ),
    SpecOption("store_spacing", ("store_spacing",), _PIPELINE, "N", _SPACING_HELP, "0 2 5"),
    SpecOption("prefetch", ("prefetch",), _PIPELINE, "SWITCH", _PREFETCH_HELP, "on off"),
    SpecOption("smem_alloc", ("smem_alloc",), _PIPELINE, "WORDS", "Shared memory: dynamic, static.", "dynamic static"),
    SpecOption("smem", ("smem_a", "smem_b"), _PIPELINE, "WORDS", _SMEM_HELP, _SMEM),
    SpecOption("smem_a", ("smem_a",), _PIPELINE, "WORDS", "The same for A only.", _SMEM),
    SpecOption("smem_b", ("smem_b",), _PIPELINE, "WORDS", "The same for B only.", _SMEM),
    SpecOption("mma_order", ("mma_order",), _PIPELINE, "WORDS", "Order of a warp's atoms: row, zigzag.", "row zigzag"),
    SpecOption(
        "raster", ("raster",), _ORDER, "WORDS", "row, column, group:TILES, panel:COLUMNS.", "row column group:8"
    ),
    SpecOption(
        "schedule",
        ("schedule",),
        _ORDER,
        "WORDS",
        "one_tile, persistent, stream_k, split_k:S, split_k_cluster:S.",
        "one_tile persistent stream_k",
    ),
    SpecOption("beta", ("beta",), _EPILOGUE, "SWITCH", "Add beta * C: on, off.", "on off"),
    SpecOption("bias", ("bias",), _EPILOGUE, "WORDS", "Add a bias: none, row (n,), column (m,).", "none row column"),
    SpecOption("activation", ("activation",), _EPILOGUE, "WORDS", "none, relu, gelu, silu.", "none relu gelu silu"),
    SpecOption(
        "store", ("store",), _EPILOGUE, "WORDS", "D is stored direct, through smem, or by tma.", "direct smem tma"
    ),
)
"""Every option, a general one before those that it covers, so that the more specific has the last word."""

BY_NAME = {option.name: option for option in SPEC_OPTIONS}


_ALSO_CALLED = {
    "swizzle": "smem",
    "padding": "smem",
    "split_k": "schedule split_k:S",
    "stream_k": "schedule stream_k",
}
"""What others call options, and what is written here."""


def flag_meant_by(flag: str) -> str:
    """Return what is written for a flag that is none: a field of `Spec`, or what others call it; nothing for any other."""
    plain = _plain(flag)
    fields = {option.fields: option.flag for option in SPEC_OPTIONS}
    return f"--{_ALSO_CALLED[plain]}" if plain in _ALSO_CALLED else fields.get((plain,), "")


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").lower()


def option_of(name: str) -> SpecOption:
    """Return the option that a name, a flag or a field of `Spec` stands for.

    Raises: RequestError, naming the nearest, where there is none.
    """
    plain = current_field(_plain(name))
    if plain != _plain(name):
        deprecated(name, plain)
    if plain in BY_NAME:
        return BY_NAME[plain]
    exact = [option for option in SPEC_OPTIONS if option.fields == (plain,)]
    if exact:
        return exact[0]
    called = [_ALSO_CALLED[plain]] if plain in _ALSO_CALLED else []
    near = called or closest_words(plain, [*BY_NAME, *PARSERS], cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"the options are {', '.join(BY_NAME)}"
    raise RequestError(f"a spec has no '{name}': {hint}")
