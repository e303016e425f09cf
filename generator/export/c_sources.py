"""The generated parts of the C library: the code of the kernels, the enumerations of hgemm.h, and the table of kernels."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

from generator.errors import INSTALL, HgemmError, LibraryError
from hgemm.consistency import MAX_CLUSTER_EXTENT
from hgemm.dispatch_table import DispatchTable, Group, Row
from hgemm.dtypes import OUTPUTS
from hgemm.epilogue import KINDS, MAX_REDUCTIONS, OF_PROBLEM, PAIR_COLUMNS, Epilogue
from hgemm.gpus import split_arch
from hgemm.launch import OPERANDS
from hgemm.launch_traits import LaunchTraits, TensorMapRule
from hgemm.library import Library, read_stored
from hgemm.measured_options import MeasuredOptions, Place
from hgemm.model.calibrated import DRAM_GBYTES_PER_S, ONE, WAVE_BOUNDS, WAVE_CLASSES, calibration
from hgemm.model.trees import MAX_CHANGE, Tree
from hgemm.model.trees import ONE as TREE_ONE
from hgemm.octave_grid import ESTIMATE_WEIGHTS, NEAREST, WEIGHTS, relative_ratios
from hgemm.problem import ACCUMULATIONS, ACTIVATION_TABLE, ACTIVATIONS, BIASES, LAYOUTS, TYPES, Kind, LaunchOptions
from hgemm.record import (
    CUBIN_NAME,
    MAX_CLUSTER_CTAS,
    MAX_GRID_CTAS,
    MAX_SMEM_BYTES,
    MAX_SPLITS,
    MAX_TILE,
    MAX_TILE_K,
    PTX_NAME,
)

# ==== images.bin: the code of all kernels ====


ALIGN_BYTES = 64
_SMALL_EXPORT = 500
"""Kernels up to which code is compressed for size, in 24 ms each. For more it takes 1.3 ms each, and 21 % more space.

Source: 30 kernels of the catalog for sm_90a, nvFatbin 13.0.
"""


@dataclass(frozen=True)
class ImagePlace:
    """The position of a kernel's code in images.bin, and its CRC-32."""

    offset: int
    size: int
    crc32: int


@dataclass(frozen=True)
class Images:
    """The content of images.bin, and by symbol the positions of cubins and PTX.

    A compressed fat binary holds both, so that both positions are equal.
    """

    blob: bytes | bytearray
    cubins: dict[str, ImagePlace]
    ptx: dict[str, ImagePlace]


def images_of(library: Library, symbols: Iterable[str], compressed: bool = True) -> Images:
    """Read the code of kernels, check its hashes, and pack it in the given order.

    Raises: LibraryError if a kernel's files are damaged, HgemmError if nvFatbin is missing.
    """
    blob = bytearray()
    cubins: dict[str, ImagePlace] = {}
    ptx: dict[str, ImagePlace] = {}
    names = [*symbols]
    mode = "size" if len(names) <= _SMALL_EXPORT else "balance"
    for symbol in names:
        stored = read_stored(library.folder, symbol)
        cubin, text = stored.artefacts[CUBIN_NAME], stored.artefacts[PTX_NAME].rstrip(b"\0") + b"\0"
        if compressed:
            number = stored.record.arch.removeprefix("sm_")
            code = fat_binary(symbol, {number: cubin}, {number: text}, mode)
            cubins[symbol] = ptx[symbol] = _append(blob, code)
        else:
            cubins[symbol], ptx[symbol] = _append(blob, cubin), _append(blob, text)
    return Images(blob, cubins, ptx)


def _append(blob: bytearray, code: bytes) -> ImagePlace:
    blob.extend(bytes(-len(blob) % ALIGN_BYTES))
    blob.extend(code)
    return ImagePlace(len(blob) - len(code), len(code), zlib.crc32(code))


def fat_binary(name: str, cubins: Mapping[str, bytes], ptx: Mapping[str, bytes], mode: str = "size") -> bytes:
    """Return a fat binary of cubins and PTX by the number of their architecture, compressed for `size` or in `balance` with time.

    The driver loads a cubin if one runs on the device, else PTX.

    Source: nvFatbin 13.0, "Supported Options".
    """
    try:
        from cuda.bindings import nvfatbin  # takes 0.05 s to import

        options = ["-compress-all", f"-compress-mode={mode}"]
        handle = nvfatbin.create(options, len(options))
    except (ImportError, RuntimeError) as missing:
        raise HgemmError(
            f"the package nvidia-nvfatbin is missing ({missing}): {INSTALL}, or export with --uncompressed"
        ) from missing
    try:
        for number, code in cubins.items():
            nvfatbin.add_cubin(handle, code, len(code), number, name)
        for number, code in ptx.items():
            nvfatbin.add_ptx(handle, code, len(code), number, name, "")
        code = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, code)
        return bytes(code)
    except nvfatbin.nvFatbinError as error:
        raise HgemmError(
            f"{name}: nvFatbin cannot read its cubin or PTX ({error}): generate it again with --force"
        ) from error
    finally:
        nvfatbin.destroy(handle)


# ==== The enumerations of hgemm.h ====


@dataclass(frozen=True)
class Enum:
    """One C enumeration, hgemm_<name>. Each constant is `prefix` and a word in capitals."""

    name: str
    prefix: str
    words: tuple[str, ...]


ENUMS = (
    Enum("layout", "HGEMM_", LAYOUTS),
    Enum("dtype", "HGEMM_", TYPES),
    Enum("acc", "HGEMM_ACC_", ACCUMULATIONS),
    Enum("bias", "HGEMM_BIAS_", BIASES),
    Enum("activation", "HGEMM_ACTIVATION_", ACTIVATIONS),
    Enum("input_kind", "HGEMM_INPUT_", KINDS),
)
COUNTS = {**{f"{enum.name.upper()}_COUNT": len(enum.words) for enum in ENUMS}, "OUTPUT_COUNT": len(OUTPUTS)}
"""How many values each enumeration has. The types of D are the first OUTPUT_COUNT of hgemm_dtype."""
_PLACEHOLDER = re.compile(r"@ENUM (\w+)@")


def with_enums(text: str) -> str:
    """Replace each line `@ENUM name@` of a header template by the definition of hgemm_<name>."""
    definitions = {enum.name: _definition(enum) for enum in ENUMS}
    return _PLACEHOLDER.sub(lambda found: definitions[found[1]], text)


def _definition(enum: Enum) -> str:
    lines = [f"  {enum.prefix}{word.upper()} = {value}," for value, word in enumerate(enum.words)]
    lines[-1] = lines[-1].removesuffix(",")
    if enum.name == "activation":
        lines = [f"{line} /* {ACTIVATION_TABLE[word].formula} */" for line, word in zip(lines, enum.words, strict=True)]
    return "\n".join([f"typedef enum hgemm_{enum.name} {{", *lines, f"}} hgemm_{enum.name};"])


# ==== table.h and table.c ====


MAX_LISTED_ROW = 2**16 - 1
MAX_CLOCKS = 2**24
"""Limit of a kernel's coefficients. It keeps the products of the estimate below 2^63."""


def table_h(table: DispatchTable, version: str, flags: int = 0, epilogues: int = 0) -> str:
    """Return table.h, the sizes of the table and of the enumerations.

    `flags` are hgemm_flags that all problems have, `epilogues` the number of expressions.
    """
    trees = _trees(table)
    sizes = {
        "GROUP_COUNT": len(table.groups),
        "ROW_COUNT": len(table.rows),
        "EPILOGUE_COUNT": epilogues,
        "PAIR_COLUMNS": PAIR_COLUMNS,
        "SURVEY_COUNT": len(table.surveys),
        "MEASURED_COUNT": sum(len(survey.problems) for survey in table.surveys),
        "ORDER_COUNT": sum(len(problem.order) for survey in table.surveys for problem in survey.problems),
        "OPTIONS_COUNT": sum(len(problem.options) for survey in table.surveys for problem in survey.problems),
        "RATIO_COUNT": sum(len(problem.ratios) for survey in table.surveys for problem in survey.problems),
        "NEAREST": NEAREST,
        "WEIGHT_COUNT": len(WEIGHTS),
        "ESTIMATE_WEIGHT_COUNT": len(ESTIMATE_WEIGHTS),
        "WAVE_BOUND_COUNT": len(WAVE_BOUNDS),
        "WAVE_CLASS_COUNT": WAVE_CLASSES,
        "WAVE_FACTOR_COUNT": WAVE_CLASSES * (len(WAVE_BOUNDS) + 1),
        "WAVE_ONE": ONE,
        "TREE_COUNT": len(trees),
        "NODE_COUNT": sum(map(len, trees)),
        "TREE_ONE": TREE_ONE,
        "TREE_MAX_CHANGE": MAX_CHANGE,
        "DRAM_GBYTES_PER_S": DRAM_GBYTES_PER_S,
        **COUNTS,
        "ALWAYS_FLAGS": flags,
    }
    lines = [f"#define HGEMM_{name} {size}" for name, size in sizes.items()]
    lines += [f"#define HGEMM_{enum.name.upper()}_WORDS {', '.join(map(json.dumps, enum.words))}" for enum in ENUMS]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: the sizes of table.c, and the words of the enumerations for messages. */",
            "#ifndef HGEMM_TABLE_H",
            "#define HGEMM_TABLE_H",
            "",
            *lines,
            f'#define HGEMM_VERSION_TEXT "{version}"',
            "",
            "#endif",
            "",
        ]
    )


def table_c(table: DispatchTable, traits: Mapping[str, LaunchTraits], images: Images) -> str:
    """Return table.c, the table of kernels.

    Raises: LibraryError if a number of a row is out of bounds; ValueError if measurements name more than MAX_LISTED_ROW rows.
    """
    if table.surveys and len(table.rows) > MAX_LISTED_ROW:
        raise ValueError(f"the table has {len(table.rows)} kernels; measurements can refer to {MAX_LISTED_ROW} at most")
    problems = [problem for survey in table.surveys for problem in survey.problems]
    orders = [str(row) for problem in problems for row in problem.order]
    epilogues = [_epilogue(one) for one in epilogues_of(traits.values())]
    trees = _trees(table)
    nodes = [f"{{{bound}, {feature}, {right}}}" for tree in trees for feature, bound, right in tree]
    roots = accumulate(map(len, trees), initial=0)
    ratios = [
        ", ".join(f"{{{row}, {ratio}}}" for row, ratio in relative_ratios(dict(problem.ratios)).items())
        for problem in problems
        if problem.ratios
    ]
    return "\n".join(
        [
            "/* Written by the HGEMM generator: the kernels of this library, in the order of table.json. */",
            '#include "internal.h"',
            "",
            *_array("hgemm_epilogue", "epilogues", "EPILOGUE_COUNT + 1", [*epilogues, "{0}"]),
            *_array("hgemm_group", "groups", "GROUP_COUNT", map(_group, table.groups)),
            *_array("hgemm_row", "rows", "ROW_COUNT", (_row(row, traits[row.symbol], images) for row in table.rows)),
            *_array("hgemm_survey", "surveys", "SURVEY_COUNT + 1", [*_surveys(table), "{0}"]),
            *_array("hgemm_measured", "measurements", "MEASURED_COUNT + 1", [*_measurements(table), "{0}"]),
            *_array("hgemm_options", "measured_options", "OPTIONS_COUNT + 1", [*_options(table), "{0}"]),
            *_array("uint32_t", "orders", "ORDER_COUNT + 1", [*orders, "0"]),
            *_array("hgemm_ratio", "ratios", "RATIO_COUNT + 1", [*ratios, "{0}"]),
            *_array("uint16_t", "weights", "WEIGHT_COUNT", map(str, WEIGHTS), 24),
            *_array("uint16_t", "estimate_weights", "ESTIMATE_WEIGHT_COUNT", map(str, ESTIMATE_WEIGHTS)),
            *_array("uint16_t", "wave_bounds", "WAVE_BOUND_COUNT", map(str, WAVE_BOUNDS), 24),
            *_array(
                "uint16_t",
                "wave_factors",
                "WAVE_FACTOR_COUNT",
                (str(factor) for factors in calibration().waves for factor in factors),
                len(WAVE_BOUNDS) + 1,
            ),
            *_array("hgemm_node", "nodes", "NODE_COUNT + 1", [*nodes, "{0}"], 8),
            *_array("uint32_t", "roots", "TREE_COUNT + 1", map(str, roots), 24),
        ]
    )


def _trees(table: DispatchTable) -> Sequence[Tree]:
    """Return the trees that refine the estimates of a table."""
    return calibration().trees if any(row.calibration for row in table.rows) else ()


def _array(kind: str, name: str, size: str, entries: Iterable[str], per_line: int = 1) -> list[str]:
    every = [*entries]
    lines = [f"    {', '.join(every[at : at + per_line])}," for at in range(0, len(every), per_line)]
    return [f"{kind} const hgemm_{name}[HGEMM_{size}] = {{", *lines, "};", ""]


def _group(group: Group) -> str:
    number, suffix = split_arch(group.arch)
    return f'{{"{group.arch}", {number}, {int(bool(suffix))}, {_kind(group.kind)}, {group.first}, {group.count}}}'


def _kind(code: int) -> str:
    return f"UINT64_C(0x{code:07x})"


def epilogues_of(traits: Iterable[LaunchTraits]) -> list[Epilogue]:
    """Return the expressions of kernels in the order of their hashes.

    Raises: LibraryError if two have the same hash.
    """
    found: dict[str, Epilogue] = {}
    for one in traits:
        if one.epilogue and found.setdefault(one.epilogue.hash, one.epilogue) != one.epilogue:
            raise LibraryError(
                f"{one.symbol} cannot be exported: another kernel's epilogue has its hash, {one.epilogue.hash}: export it alone"
            )
    return [found[name] for name in sorted(found)]


def _epilogue(epilogue: Epilogue) -> str:
    words = [f'"{epilogue.hash}"', f'"{epilogue.formula}"', str(1 + epilogue.gated)]
    for group in (epilogue.operands, epilogue.outputs):
        listed = [f'{{"{one.name}", {KINDS.index(one.kind)}, {_dtype(one.of(""))}}}' for one in group]
        words += [str(len(listed)), f"{{{', '.join(listed) or '{0}'}}}"]
    words += [str(int(epilogue.takes(name))) for name in OF_PROBLEM]
    return f"{{{', '.join(words)}}}"


def _dtype(name: str) -> int:
    return TYPES.index(name) if name else _LIKE_D


_LIKE_D = -1
"""HGEMM_DTYPE_OF_D of hgemm.h."""
_BOUNDS = {
    **dict.fromkeys(("tile_m", "tile_n"), (1, MAX_TILE)),
    "tile_k": (1, MAX_TILE_K),
    **dict.fromkeys(("cluster_m", "cluster_n", "cluster_ctas"), (1, MAX_CLUSTER_CTAS)),
    **dict.fromkeys(("align_a", "align_b", "align_d", "operand_bytes", "result_bytes"), (1, 8)),
    **dict.fromkeys(
        ("beta", "exact_tiles_only", "tensor_maps", "decides_splits", "decides_raster", "serial_parts", "persistent"),
        (0, 1),
    ),
    "splits": (1, MAX_SPLITS),
    "smem_bytes": (0, MAX_SMEM_BYTES),
    "partial_bytes": (0, 4 * MAX_TILE**2),
    "max_ctas": (0, MAX_GRID_CTAS),
    **dict.fromkeys(("reductions", "column_reductions"), (0, MAX_REDUCTIONS)),
    "gated_parts": (1, 2),
    "tiles_per_sm": (1, 64),
    "unusable_sms": (0, 2**16),
    "order": (0, 2**32 - 1),
    "cublas_order": (0, 1),
}
"""The least and the largest value of a number of a row. The C library divides by some, and multiplies others in 32 bits."""


def check_row(row: Row) -> None:
    """Raise LibraryError if a number of a row would overflow, or would be a divisor of 0, in the C library."""
    numbers = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "symbol"}
    bounds = {name: _BOUNDS.get(name, (0, MAX_CLOCKS - 1)) for name in numbers}
    numbers |= {"m of a cluster": row.tile_m * row.cluster_m, "n of a cluster": row.tile_n * row.cluster_n}
    bounds |= dict.fromkeys(("m of a cluster", "n of a cluster"), (1, MAX_CLUSTER_EXTENT))
    bounds["segment_columns"] = (int(row.reductions > 0), MAX_TILE)
    for name, (low, high) in bounds.items():
        if not low <= numbers[name] <= high:
            raise LibraryError(
                f"{row.symbol} cannot be exported: {name} is {numbers[name]}, which must be {low} to {high}: generate it again"
            )


def _row(row: Row, traits: LaunchTraits, images: Images) -> str:
    check_row(row)
    rules = {rule.operand: rule for rule in traits.tensor_maps}
    numbers = [getattr(row, field.name) for field in fields(row)][1:]
    words = [
        f'"{row.symbol}"',
        *map(str, numbers),
        str(traits.threads),
        str(int(traits.programmatic)),
        "{" + ", ".join(_map_rule(rules.get(name)) for name in OPERANDS) + "}",
        _code(images.cubins[row.symbol]),
        _code(images.ptx[row.symbol]),
    ]
    return "{" + ", ".join(words) + "}"


def _map_rule(rule: TensorMapRule | None) -> str:
    if rule is None:
        return "{{0}, 0, 0}"
    return f"{{{{{', '.join(map(str, rule.box))}}}, {rule.swizzle_bytes}, {int(rule.edge)}}}"


def _code(code: ImagePlace) -> str:
    return f"{{{code.offset}, {code.size}, 0x{code.crc32:08x}}}"


def _surveys(table: DispatchTable) -> Iterator[str]:
    first = first_options = 0
    for survey in table.surveys:
        count, options = len(survey.problems), sum(len(problem.options) for problem in survey.problems)
        numbers = (first, count, first_options, options)
        yield f"{{{survey.capability}, {survey.sms}, {_kind(survey.kind)}, {', '.join(map(str, numbers))}}}"
        first, first_options = first + count, first_options + options


def _options(table: DispatchTable) -> Iterator[str]:
    for survey in table.surveys:
        yield from (_options_entry(*entry) for entry in MeasuredOptions(table.rows, survey).entries)


def _options_entry(place: Place, options: LaunchOptions) -> str:
    numbers = (options.splits, options.whole_tiles, options.raster_tiles)
    return f"{{{{{', '.join(map(str, place))}}}, {', '.join(map(str, numbers))}}}"


def _measurements(table: DispatchTable) -> Iterator[str]:
    first = first_ratio = 0
    for survey in table.surveys:
        kind = Kind.from_code(survey.kind)
        for problem in survey.problems:
            numbers = (*problem.extents, first, len(problem.order), first_ratio, len(problem.ratios))
            point, straddles = ", ".join(map(str, problem.point)), int(problem.straddles(kind))
            yield f"{{{', '.join(map(str, numbers))}, {{{point}}}, {straddles}}}"
            first, first_ratio = first + len(problem.order), first_ratio + len(problem.ratios)
