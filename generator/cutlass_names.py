"""Names of CUTLASS's library, read as requests.

`cutlass_tensorop_f16_s16816gemm_f16_128x128_32x4_tn_align8` names types, instruction, tile and stages. It does not name the order
of D, which is row-major here. `cutlass3x_sm90_..._128x256x64_2x1x1_0_tnn_align8_...` does. If its third layout letter is `n`, D is
column-major. That is the transposed product D^T = B^T A^T with a row-major D: call the kernel with A and B exchanged.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from generator.errors import INSTALL, HgemmError, RequestError
from generator.families.wgmma import exchanged_layout
from generator.spec import DTYPE_BYTES, WGMMA, WMMA, Texts, option_of, parse_field

_NAME_2X = re.compile(
    r"cutlass_(?:wmma_(?=.*[a-z]161616g)|(?!.*[a-z]161616g))tensorop_"
    r"(?:(?P<out>[a-z]+\d+)_)?(?P<acc>[a-z])(?P<atom>161616|16816|1688)gemm(?:_(?P<a>[a-z]+\d+))?(?:_(?P<b>[a-z]+\d+))?"
    r"_(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)_(?P<layout>[nt]{2})_align(?P<align>\d+)"
)
_NAME_3X = re.compile(
    r"cutlass3x_sm90_tensorop_(?:[a-z]64x\d+x16)?gemm_(?P<a>[a-z\d]+)_(?P<b>[a-z\d]+)_(?P<acc>[a-z\d]+)_(?P<c>[a-z\d]+)_(?P<out>\w+?)"
    r"_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<cluster_m>\d+)x(?P<cluster_n>\d+)x1_(?P<stages>\d+)_(?P<layout>[nt]{3})_align(?P<align>\d+)"
    r"(?P<stream_k>_stream_k)?(?P<cpasync>_cpasync)?(?:_warpspecialized(?P<sharing>_cooperative|_pingpong)?)?(?:_epi_(?P<epilogue>tma|nosmem))?"
)

_FOREIGN = (
    (r"_planar_complex", "planar complex numbers"),
    (r"gemm_grouped", "a group of products in one launch"),
    (r"_sptensorop_|spgemm", "a sparse A"),
    (r"_simt_", "no tensor cores"),
    (r"conv|dgrad|fprop|wgrad|rank_k|syrk|herk|symm|hemm|trmm", "another operation than a matrix product"),
    (r"_g?[cz]\d*\w*gemm_", "complex numbers"),
    (r"_b1_", "inputs of 1 bit"),
    (r"_[su]4_", "inputs of 4 bits"),
    (r"_[su]8_|_e[45]m[23]_|f32xe[45]m[23]", "types of 8 bits"),
    (r"_d\d+\w*gemm|_f64_", "f64 inputs"),
    (r"_(?:cvt|scl|sclzr)_", "inputs of two types"),
    (r"16816fast|1688fast|tf32gemm|bf16gemm|f16gemm|1688gemm_\d", "f32 inputs that the kernel converts"),
    (r"tensorop_tf32_", "a D of tf32"),
)
"""Parts of names that no spec supports, the most specific first."""

_SUPPORTED = "a spec has inputs of f16, bf16 or tf32, both of one type, dense and real, and a C of D's type"
_UNKNOWN = "no matrix product as CUTLASS's library names them"
_FORM = "write one as cutlass_tensorop_h16816gemm_128x128_32x4_tn_align8"
MAX_REASONS = 8
"""Reasons for skipped names that a message lists, one a line."""

_ACC = {"s": "f32", "h": "f16"}
_ARCH_AND_MMA = {"1688": ("sm_75", "m16n8k8"), "16816": ("sm_80", "m16n8k16"), "161616": ("sm_80", WMMA)}
"""The default architecture of a name's instruction, as in CUTLASS's library. WMMA kernels, which CUTLASS makes for sm_70, get
sm_80. m16n8k8 with tf32 needs sm_80 too."""

_SHARING = {
    None: {"cooperation": "cooperative", "consumers": "1", "schedule": "one_tile"},
    "_cooperative": {"cooperation": "cooperative", "consumers": "2", "schedule": "persistent"},
    "_pingpong": {"cooperation": "pingpong", "consumers": "2", "schedule": "persistent"},
}
_STORE = {"tma": {"store": "tma"}, "nosmem": {"store": "direct"}, None: {}}


@dataclass(frozen=True)
class Named:
    """The requests of --kernels, one for each name, and remarks for the user."""

    requests: tuple[Texts, ...]
    remarks: tuple[str, ...]


def has_globs(text: str) -> bool:
    """Return whether a text has globs, for which CUTLASS's names must be listed. That takes seconds."""
    return bool(set(text) & set("*?["))


def requests_named(text: str) -> Named:
    """Return the requests of names and globs, separated by commas. Names of a glob that are not supported are skipped.

    Raises: RequestError for an unknown or unsupported name, and for a glob without a supported name.
    """
    requests: dict[str, Texts] = {}
    left_out: Counter[str] = Counter()
    for word in filter(None, (word.strip() for word in text.split(","))):
        if not has_globs(word):
            requests[word] = texts_of_name(word)
            continue
        found, rejected = _matching(word)
        requests |= found
        left_out += rejected
    if not requests:
        raise RequestError("--kernels is empty: write a name of CUTLASS's library, or a glob")
    return Named(tuple(requests.values()), tuple(_remarks(requests, left_out)))


def _matching(glob: str) -> tuple[dict[str, Texts], Counter[str]]:
    """Return the requests of the names that match, and the reasons for skipped ones."""
    names = fnmatch.filter(library_names(), glob)
    if not names:
        raise RequestError(
            f"--kernels '{glob}' matches none of the {len(library_names()):,} names of CUTLASS's library"
        )
    found: dict[str, Texts] = {}
    rejected: Counter[str] = Counter()
    for name in names:
        texts, unsupported = _read(name)
        if unsupported:
            rejected[unsupported] += 1
        else:
            found[name] = texts
    if not found:
        raise RequestError(
            f"--kernels '{glob}' matches {len(names):,} names, none of which is supported:{_lines(rejected)}"
        )
    return found, rejected


def _lines(reasons: Counter[str]) -> str:
    """Return a line for each reason with its number of names, the most frequent first."""
    lines = [f"{count:7,}  {reason}" for reason, count in reasons.most_common(MAX_REASONS)]
    further = len(reasons) - len(lines)
    return "".join(f"\n{line}" for line in [*lines, *([f"  ... and {further} more reasons"] if further else [])])


def _remarks(requests: Iterable[str], left_out: Counter[str]) -> list[str]:
    remarks = []
    if left_out:
        remarks.append(f"skipped {left_out.total():,} matching names that are not supported:{_lines(left_out)}")
    exchanged = sum(_is_exchanged(name) for name in requests)
    if exchanged:
        names = "1 name has" if exchanged == 1 else f"{exchanged:,} names have"
        remarks.append(
            f"{names} a column-major D: the kernel computes the transposed product, so pass B as A and A as B"
        )
    return remarks


def _is_exchanged(name: str) -> bool:
    match = _NAME_3X.fullmatch(name)
    return bool(match and match["layout"][2] == "n")


# ---- One name --------------------------------------------------------------------------------------------------------


def texts_of_name(name: str) -> dict[str, str]:
    """Return the options that a name sets. The others are planned.

    Raises: RequestError for an unknown or unsupported name.
    """
    texts, unsupported = _read(name)
    if unsupported:
        hint = _FORM if unsupported == _UNKNOWN else _SUPPORTED
        raise RequestError(f"'{name}' names {unsupported}: {hint}")
    return texts


def _read(name: str) -> tuple[dict[str, str], str]:
    """Return the options that a name sets, and what it names that is not supported; empty if it is."""
    older, newer = _NAME_2X.fullmatch(name), _NAME_3X.fullmatch(name)
    texts = _texts_2x(older) if older else _texts_3x(newer, name) if newer else {}
    try:
        for option, text in texts.items():
            for field in option_of(option).fields:
                parse_field(field, text)
    except RequestError as error:
        return {}, _foreign(name) or f"an unsupported value ({error})"
    if newer and newer["c"] not in ("void", newer["out"]):
        return {}, "a C of another type than D"
    return texts, "" if texts else _foreign(name) or _UNKNOWN


def _foreign(name: str) -> str:
    return next((reason for pattern, reason in _FOREIGN if re.search(pattern, name)), "")


def _texts_2x(match: re.Match[str]) -> dict[str, str]:
    """Read a name of CUTLASS 2.x. It omits types that are the accumulator's."""
    acc = _ACC.get(match["acc"], match["acc"])
    arch, mma = _ARCH_AND_MMA[match["atom"]]
    out, a = match["out"] or acc, match["a"] or acc
    return {
        "arch": "sm_80" if a == "tf32" else arch,
        "dtype_a": a,
        "dtype_b": match["b"] or a,
        "acc": acc,
        "out": out,
        "layout": match["layout"],
        "align_a": match["align"],
        "align_b": match["align"],
        "align_d": _align_of_d(match["align"], out),
        "tile": f"{match['m']}x{match['n']}x{match['k']}",
        "mma": mma,
        "stages": match["stages"],
    }


def _align_of_d(align: str, dtype: str) -> str:
    """Return the alignment of D for one of A and B: the same, at most 16 bytes."""
    return str(min(int(align), 16 // DTYPE_BYTES.get(dtype, 2)))


def _texts_3x(match: re.Match[str], name: str) -> dict[str, str]:
    """Read a name of CUTLASS 3.x. 0 stages, and words that are missing after the alignment, are planned."""
    out = match["out"]
    tile, cluster, layout, types = (
        (match["m"], match["n"]),
        (match["cluster_m"], match["cluster_n"]),
        match["layout"][:2],
        "ab",
    )
    exchanged = _is_exchanged(name)
    if exchanged:
        tile, cluster, layout, types = tile[::-1], cluster[::-1], exchanged_layout(layout), "ba"
    by_swapping_only_direct = (
        out == "f32" and match["epilogue"] == "tma"
    )  # floats of a swapped tile are not stored by TMA
    planned = "warpspecialized" not in name
    return {
        "arch": "sm_90a",
        "dtype_a": match[types[0]],
        "dtype_b": match[types[1]],
        "acc": match["acc"],
        "out": out,
        "layout": layout,
        "align_a": match["align"],
        "align_b": match["align"],
        "tile": f"{'x'.join(tile)}x{match['k']}",
        "mma": WGMMA,
        "cluster": "x".join(cluster),
        "beta": "off" if match["c"] == "void" else "on",
        "swap_ab": "on" if exchanged and not by_swapping_only_direct else "off",
        **({} if match["stages"] == "0" else {"stages": match["stages"]}),
        **({} if planned else _SHARING[match["sharing"]]),
        **({"schedule": "stream_k"} if match["stream_k"] else {}),
        **({"copy": "cp_async"} if match["cpasync"] else {}),
        **_STORE[match["epilogue"]],
    }


# ---- All names -------------------------------------------------------------------------------------------------------


@cache
def library_names() -> tuple[str, ...]:
    """Return the names of the matrix products that the installed CUTLASS's library makes for sm_75, sm_80 and sm_90, sorted.

    Raises: HgemmError if CUTLASS's wheel is not installed.
    """
    return tuple(sorted({operation.procedural_name() for operation in library_operations()}))


def library_operations() -> list:
    """Return CUTLASS's descriptions of these products, in its order. Raises: HgemmError if its wheel is not installed."""
    try:
        from cutlass_library import generator, manifest  # 0.1 s, and 2 s to list: only for a glob
    except ImportError as missing:
        raise HgemmError(f"wheel nvidia-cutlass is missing: {INSTALL}") from missing
    operations = []
    for arch, make in (("75", generator.GenerateSM75), ("80", generator.GenerateSM80), ("90a", generator.GenerateSM90)):
        cuda = "12.8"
        words = ["--architectures", arch, "--cuda-version", cuda, "--operations", "gemm", "--kernels", "all"]
        listed = manifest.Manifest(generator.define_parser().parse_args(words))
        make(listed, cuda)
        operations += listed.operations_by_name.values()
    return operations
