"""Benchmark problems: sizes, layout and types; suites of problems; kernels of a library folder."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hgemm.cases import Shape
from hgemm.checks import TEXT, fields
from hgemm.disk import read_text
from hgemm.dtypes import DTYPES
from hgemm.epilogue import NONE, PAIR_COLUMNS, Epilogue, columns_of_d, parse_epilogue
from hgemm.errors import LibraryError, RequestError, unknown_word
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.library import read_stored, read_usable_records, scan
from hgemm.measured import EPILOGUE_FIELDS, PROBLEM_FIELDS
from hgemm.problem import LAUNCH, REQUEST_WORDS, Kind
from hgemm.record import CUBIN_NAME, PTX_NAME

_EXAMPLES = "4096, 512,1024 or 1024:4096:256"
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})(?::([0-9]{1,10}))?", re.ASCII)

MAX_PROBLEMS = 1_000_000
"""Limit on problems from --m, --n and --k. Listing a million takes 4 s and 0.2 GiB; more are likely a mistake."""

WORK = fields({**PROBLEM_FIELDS, "group": TEXT}, optional={**EPILOGUE_FIELDS, "expression": TEXT})
"""Form of a problem in result files: `Work.plain`."""


@dataclass(frozen=True)
class Work:
    """One problem with dense operands: leading dimensions equal the contiguous extents.

    Fields: `expression` is the text of D's expression, or `none`.
    Shapes: as in hgemm.launch_traits.LaunchTraits, with the same names for layout and types.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "tn"
    dtype_a: str = "f16"
    dtype_b: str = "f16"
    acc: str = "f32"
    dtype_d: str = "f16"
    group: str = "shapes"
    bias: str = "none"
    activation: str = "none"
    expression: str = NONE

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def weight_bytes(self) -> int:
        """Bytes of B. A product must read them at least once."""
        return self.n * self.k * self.batch * DTYPES[self.dtype_b].bytes

    @property
    def key(self) -> str:
        """Return the problem's name without its group: one measurement counts for every group."""
        return f"{self.shape} {self.layout} {self.dtype_a} {self.dtype_b} {self.acc} {self.dtype_d}{self.epilogue}"

    @property
    def epilogue(self) -> str:
        """Return the bias and the activation, or the hash of the expression, as words. Empty if there is none."""
        words = [f" bias {self.bias}"] * (self.bias != "none") + [f" {self.activation}"] * (self.activation != "none")
        words += [f" epilogue {self.parsed.hash}"] if self.parsed else []
        return "".join(words)

    @property
    def parsed(self) -> Epilogue | None:
        """The expression of D, if there is one."""
        return parse_epilogue(self.expression)

    @property
    def columns_of_d(self) -> int:
        """Columns of D: half of those of B for a gated pair."""
        return columns_of_d(self.parsed, self.n)

    @property
    def kind(self) -> Kind:
        types = (self.dtype_a, self.dtype_b, self.dtype_d, self.acc)
        return Kind(self.layout, *types, self.bias, self.activation, self.parsed.hash if self.parsed else NONE)

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.batch

    @property
    def shape(self) -> Shape:
        return Shape(self.m, self.n, self.k, self.batch)

    def fits(self, traits: LaunchTraits) -> bool:
        """Return whether a kernel computes this problem: same layout, types and epilogue, or a bias that the launch decides."""
        same = all(getattr(traits, name) == getattr(self, name) for name in _COMPARED)
        return same and traits.bias in (self.bias, LAUNCH) and traits.epilogue == self.parsed

    def plain(self) -> dict[str, Any]:
        """Return the problem as a dictionary, without a bias, an activation or an expression that it does not have."""
        optional = ("bias", "activation", "expression")
        return {name: value for name, value in asdict(self).items() if name not in optional or value != "none"}

    @property
    def transposed(self) -> Work:
        """The product whose D is the transpose of this one's: B^T A^T."""
        a = "t" if self.layout[1] == "n" else "n"
        b = "n" if self.layout[0] == "t" else "t"
        bias = {"row": "column", "column": "row"}.get(self.bias, self.bias)
        types = replace(self, dtype_a=self.dtype_b, dtype_b=self.dtype_a)
        return replace(types, m=self.n, n=self.m, layout=a + b, bias=bias)


_COMPARED = ("layout", "dtype_a", "dtype_b", "acc", "dtype_d", "activation")


def checked(work: Work) -> Work:
    """Return the work. Raises RequestError for an unknown layout, type or extent."""
    for name, words in REQUEST_WORDS.items():
        if getattr(work, name) not in words:
            raise unknown_word(f"{work.group}: {name}", getattr(work, name), words)
    Shape.parse(str(work.shape))
    if work.parsed and (work.bias, work.activation) != ("none", "none"):
        raise RequestError(f"an epilogue excludes bias {work.bias} and activation {work.activation}: write them in it")
    if work.parsed and work.parsed.gated and work.n % (2 * PAIR_COLUMNS):
        raise RequestError(
            f"n is {work.n}: for a gated pair, it counts the columns of B; use a multiple of {2 * PAIR_COLUMNS}"
        )
    return work


def extents(text: str, name: str) -> list[int]:
    """Return the positive numbers of `numbers`. Raises RequestError if malformed or too long, or if one is 0."""
    found = numbers(text, name)
    if min(found) < 1:
        raise RequestError(f"--{name} {text!a} names no positive number: write {_EXAMPLES}")
    return found


def numbers(text: str, name: str) -> list[int]:
    """Parse `512`, `512,1024` or `1024:4096:256` (end included). Raises RequestError if malformed or too long."""
    found: list[int] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _RANGE.fullmatch(word)
        if match:
            first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
            added = range(first, last + 1, step) if step else range(0)
        elif _NUMBER.fullmatch(word):
            added = range(int(word), int(word) + 1)
        else:
            raise RequestError(f"--{name} {word!a} is malformed: write {_EXAMPLES}")
        _reject_too_many(len(found) + len(added), f"--{name} {text!a}")
        found += added
    if not found:
        raise RequestError(f"--{name} {text!a} names no number: write {_EXAMPLES}")
    return found


def grid(m: str, n: str, k: str, like: Work) -> list[Work]:
    """Return every combination of extents. A missing n or k equals m. Raises RequestError as `extents` does."""
    all_rows = extents(m, "m")
    all_columns, all_depths = (extents(text, name) if text else [] for text, name in ((n, "n"), (k, "k")))
    found = combinations(all_rows, all_columns, all_depths)
    return [replace(like, m=rows, n=columns, k=depth) for rows, columns, depth in found]


def combinations(
    all_rows: Sequence[int], all_columns: Sequence[int], all_depths: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return every (m, n, k). A missing n or k equals m. Raises RequestError if there are too many."""
    _reject_too_many(
        len(all_rows) * max(1, len(all_columns)) * max(1, len(all_depths)), "the ranges of --m, --n and --k"
    )
    return [
        (rows, columns, depth)
        for rows in all_rows
        for columns in all_columns or [rows]
        for depth in all_depths or [rows]
    ]


def require_rows(options: Mapping[str, Any]) -> None:
    """Raise RequestError if --n or --k is given without --m, and would have no effect."""
    given = [f"--{name}" for name in ("n", "k") if options[name]]
    if given and not options["m"]:
        raise RequestError(f"{' and '.join(given)} without --m: add --m")


def _reject_too_many(count: int, what: str) -> None:
    if count > MAX_PROBLEMS:
        raise RequestError(
            f"{what}: {count:,} problems exceed the limit of {MAX_PROBLEMS:,}: use larger steps, as in 1024:4096:256"
        )


# ---- Suites ----------------------------------------------------------------------------------------------------------


FOLDER = Path(__file__).resolve().parents[1] / "suites"
_TYPES = {"f16": "f16", "fp16": "f16", "half": "f16", "bf16": "bf16", "f32": "f32", "fp32": "f32", "float": "f32"}


def names() -> list[str]:
    """Return the names of the built-in suites."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_suite(name: str, groups: str = "") -> list[Work]:
    """Return the problems of a suite, given by name or file. `groups` selects groups by words in their names.

    Raises: RequestError if the suite does not exist or is malformed, or if no group matches.
    """
    path = FOLDER / f"{name}.json" if name in names() else Path(name)
    try:
        entries = json.loads(read_text(path))
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise RequestError(
                f"suite {name} is not a list of problems or groups: see the example {FOLDER / 'public.json'}"
            )
        works = [
            checked(work) for at, entry in enumerate(entries) for work in _parsed(entry, f"suite {name}, entry {at}")
        ]
    except FileNotFoundError:
        raise RequestError(f"no file and no suite {name!a}: use a file, or one of {', '.join(names())}") from None
    except OSError as error:
        raise RequestError(f"suite {name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"suite {name} cannot be read ({type(error).__name__}: {error})") from None
    return _of_groups(works, groups) if groups else works


SUITE_FORM = 'write [{"m": 512, "n": 4096, "k": 4096}], or groups: [{"name": "mlp", "shapes": [[512, 4096, 4096]]}]'
"""The smallest files, for error messages."""


def _parsed(entry: Mapping[str, Any], where: str) -> list[Work]:
    """Return the problems of one entry. Raises RequestError that names the missing or malformed field."""
    try:
        return _works(entry)
    except KeyError as error:
        raise RequestError(f"{where} has no {error.args[0]!a}: {SUITE_FORM}") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RequestError(f"{where} is malformed ({error}): {SUITE_FORM}") from None


def _of_groups(works: list[Work], groups: str) -> list[Work]:
    words = tuple(word.strip() for word in groups.split(",") if word.strip())
    known = list(dict.fromkeys(work.group for work in works))
    for word in words:
        if not any(word in name for name in known):
            raise RequestError(f"no group {word!a} in the suite: it has {', '.join(known)}")
    return [work for work in works if any(word in work.group for word in words)]


def _works(entry: Mapping[str, Any]) -> list[Work]:
    return _group(entry) if "shapes" in entry else [_problem(entry)]


def _group(entry: Mapping[str, Any]) -> list[Work]:
    """Parse a group: name, layout, types, and shapes (m, n, k) or (m, n, k, batch)."""
    common = {
        "layout": entry.get("layout", "tn"),
        "dtype_a": entry.get("in", "f16"),
        "dtype_b": entry.get("in", "f16"),
        "acc": entry.get("acc", "f32"),
        "dtype_d": entry.get("out", "f16"),
        "group": str(entry["name"]),
        **_epilogue(entry),
    }
    return [Work(*shape, **common) for shape in entry["shapes"]]


def _epilogue(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(entry[name]) for name in ("bias", "activation") if name in entry}


def _problem(entry: Mapping[str, Any]) -> Work:
    """Parse one problem in the form of CUTLASS's tools. Its layout has two letters, or three with D's.

    A column-major D, as in tnn, gives the transposed product.
    """
    layout = str(entry.get("layout", "tnt")).lower()

    def dtype(*keys: str, default: str) -> str:
        return next((_TYPES.get(str(entry[key]).lower(), str(entry[key])) for key in keys if key in entry), default)

    a = dtype("dtype_a", "dtype_A", default="f16")
    work = Work(
        m=int(entry["m"]),
        n=int(entry["n"]),
        k=int(entry["k"]),
        batch=int(entry.get("batch_count", 1)),
        layout=layout[:2],
        dtype_a=a,
        dtype_b=dtype("dtype_b", "dtype_B", default=a),
        acc=dtype("dtype_acc", default="f32"),
        dtype_d=dtype("dtype_d", "dtype_D", "dtype_c", "dtype_C", default=a),
        group=str(entry.get("name", "problems")),
        **_epilogue(entry),
    )
    return work.transposed if layout[2:] == "n" else work


# ---- Kernels of a library folder ------------------------------------------------------------------------------------


def read_kernels(folder: Path, names: str = "") -> list[Kernel]:
    """Return the kernels whose symbol or alias matches one of the globs `names`, or all.

    Raises: LibraryError if there are none, or if a record cannot be read.
    """
    patterns = [word.strip() for word in names.split(",") if word.strip()] or ["*"]
    found = []
    for symbol, record in read_usable_records(folder, sorted(scan(folder))).items():
        if any(fnmatch.fnmatch(name, pattern) for name in (symbol, record.data["alias"]) for pattern in patterns):
            files = read_stored(folder, symbol).artefacts
            found.append(Kernel(record.data, files[CUBIN_NAME], files[PTX_NAME]))
    if not found:
        raise LibraryError(f"no kernel in {folder} matches {', '.join(patterns)}: create kernels with `generate`")
    return found
