"""Texts of options to plans: spec files, lists, ranges, combinations and shards."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from generator import epilogue
from generator.arch import ARCHS
from generator.errors import RequestError
from generator.families import family_of
from generator.families.base import Plan
from generator.planner import (
    Violation,
    broken_rules,
    default_family,
    plan_of,
    reject_illegal,
    reported_rules,
    resolve,
    violations,
)
from generator.spec import (
    DTYPE_BYTES,
    SPEC_OPTIONS,
    Request,
    Spec,
    SpecOption,
    Texts,
    Tile,
    WarpTile,
    option_of,
    parse_field,
)
from generator.tables import counted
from hgemm.disk import read_text
from hgemm.errors import deprecated
from hgemm.problem import ACTIVATIONS
from hgemm.record import current_word

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count` of a sweep, counted from 1.

    A hash of the symbol assigns a kernel to a part. The parts of a large sweep have about equal size and cost, and adding or
    removing a kernel does not move another one.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `2/16`. Raises: RequestError if there is no such part."""
        match = _SHARD.fullmatch(text.strip())
        number, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= number <= count:
            raise RequestError(f"--shard {text!a} is malformed: write i/n with 1 <= i <= n <= 999999, such as 2/16")
        return cls(number, count)

    def takes(self, symbol: str) -> bool:
        """Return whether a kernel belongs to this part."""
        return int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:8], "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


# ---- Texts of options to plans ---------------------------------------------------------------------------------------


MAX_COMBINATIONS = 50_000
_RANGES = ("stages", "fragment_stages", "ctas_per_sm", "consumers", "split_k")
_RANGE = re.compile(r"(\d{1,4}):(\d{1,4})(?::(\d{1,4}))?")
_FOREIGN_RANGE = re.compile(r"(\d+) *(?:-|\.\.) *(\d+)")
"""Ranges in other notations, for the error message."""
_OPEN = object()


@dataclass(frozen=True)
class Candidate:
    """One combination: its plan, the fields that the user set, and the names of the rules that it violates."""

    plan: Plan
    request: Request
    rules: tuple[str, ...]

    @cached_property
    def broken(self) -> tuple[Violation, ...]:
        """The violations with their fixes. Finding the fixes is slow."""
        return violations(self.plan, self.request) if self.rules else ()


@dataclass(frozen=True)
class Sweep:
    """Every combination of a request once, in order, legal or not."""

    candidates: tuple[Candidate, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The legal plans."""
        return tuple(candidate.plan for candidate in self.candidates if not candidate.rules)

    @property
    def requests(self) -> dict[Plan, Request]:
        """The fields that the user set, by plan."""
        return {candidate.plan: candidate.request for candidate in self.candidates}

    @property
    def illegal(self) -> tuple[Candidate, ...]:
        return tuple(candidate for candidate in self.candidates if candidate.rules)

    def summary(self, consequence: str = "") -> str:
        """Return how many combinations are illegal, by rule, in one line; empty if none is.

        `consequence` follows the word illegal, as in `and skipped`.
        """
        counts = Counter(rule for candidate in self.illegal for rule in candidate.rules)
        if not counts:
            return ""
        rules = ", ".join(f"{rule} {count}" for rule, count in counts.most_common())
        illegal = " ".join(filter(None, ("is" if len(self.illegal) == 1 else "are", "illegal", consequence)))
        return (
            f"{len(self.illegal)} of {counted(len(self.candidates), 'combination')} {illegal} (violated rules: {rules})"
        )

    def reject_empty(self) -> None:
        """Raise RequestError with every violated rule if no combination is legal."""
        if not self.plans:
            self.reject_illegal()

    def reject_illegal(self) -> None:
        """Raise RequestError with every violated rule if a combination is illegal."""
        if not self.illegal:
            return
        try:
            first = self.illegal[0]
            reject_illegal(first.plan, first.request, _related_arch_hint(first.request))
        except RequestError as error:
            if len(self.candidates) == 1:
                raise
            summary = self.summary() if self.plans else f"all {self.summary().partition(' of ')[2]}"
            raise RequestError(f"{summary}; the first:\n{error}") from None


def _related_arch_hint(request: Request) -> str:
    """Return a hint if the request is legal on an architecture with more instructions for the same GPUs."""
    arch = f"{request['arch']}a"
    if arch not in ARCHS or broken_rules(plan := plan_of(resolve({**request, "arch": arch}))):
        return ""
    family = family_of(plan.spec)
    hint = f"{arch}, for the same GPUs, supports it with {family.name}. Try --arch {arch}."
    return hint if family is default_family(arch) else ""


def sweep(requests: Sequence[Texts], planned: Callable[[int, int], None] = lambda done, total: None) -> Sweep:
    """Plan every combination of every request. `planned` is called with the number of finished combinations and their total.

    Raises: RequestError for a malformed value, an open architecture, or too many combinations.
    """
    found: dict[Plan, Candidate] = {}
    combinations, count = _bounded(requests)
    for done, request in enumerate(combinations, 1):
        plan = plan_of(resolve(request))
        if plan not in found:
            found[plan] = Candidate(plan, request, reported_rules(plan))
        planned(done, count)
    return Sweep(tuple(found.values()))


def _bounded(requests: Sequence[Texts]) -> tuple[Iterator[Request], int]:
    """Return all combinations and their number."""
    axes = [_axes(texts) for texts in requests]
    count = sum(math.prod(len(values) for _, values in request) for request in axes)
    if count > MAX_COMBINATIONS:
        raise RequestError(f"{count:,} combinations are more than {MAX_COMBINATIONS:,}: name fewer values")
    return itertools.chain.from_iterable(map(_combinations, axes)), count


def _axes(texts: Texts) -> list[tuple[SpecOption, list[dict[str, Any]]]]:
    """Return the values of each option, in the order of SPEC_OPTIONS, so that a specific option wins."""
    options = {option_of(name): text for name, text in texts.items()}
    places = {option.name: place for place, option in enumerate(SPEC_OPTIONS)}
    ordered = sorted(options, key=lambda option: places[option.name])
    for option, next_option in itertools.pairwise(ordered):
        if option.fields == next_option.fields:  # such as --split-k and --schedule
            raise RequestError(f"{option.flag} and {next_option.flag} set the same field: remove one of them")
    return [(option, _values(option, options[option], option.flag)) for option in ordered]


def _combinations(axes: list[tuple[SpecOption, list[dict[str, Any]]]]) -> Iterator[Request]:
    for choice in itertools.product(*(values for _, values in axes)):
        merged = {name: value for fields in choice for name, value in fields.items()}
        given = {name: value for name, value in merged.items() if value is not _OPEN}
        known = {name: value for name, value in given.items() if not isinstance(value, _DEPENDENT)}
        resolved = [value.resolved(name, known) for name, value in given.items() if isinstance(value, _DEPENDENT)]
        yield {name: value for fields in (given, *resolved) for name, value in fields.items()}


def _values(option: SpecOption, text: str, called: str) -> list[dict[str, Any]]:
    """Return the fields that each value of a list sets. Errors name the option as `called`."""
    words = [word for item in _items(option, text) for word in _range(option, item, called)]
    if not words:
        raise RequestError(f"{called} has no value: write one, or several with commas")
    return [_set(option, word, called) for word in words]


def _items(option: SpecOption, text: str) -> list[str]:
    """Split at commas, but not inside `xor:2,3,3`. No placement is a number alone, so a number continues the word before it."""
    if option.name == "epilogue":
        return epilogue.texts_of(text)
    items: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        if items and item.isdecimal() and option.fields[0] in ("smem_a", "smem_b"):
            items[-1] += "," + item
        else:
            items.append(item)
    return items


def _range(option: SpecOption, item: str, called: str) -> list[str]:
    """Expand a range of whole numbers, which includes its last one."""
    if option.name in _RANGES and (foreign := _FOREIGN_RANGE.fullmatch(item)):
        raise RequestError(f"{called} '{item}' is not a range: write {foreign[1]}:{foreign[2]}")
    match = _RANGE.fullmatch(item) if option.name in _RANGES else None
    if not match:
        return [item]
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first > last or step < 1:
        raise RequestError(f"range {called} {item} is empty: write first:last or first:last:step, upwards")
    return [str(number) for number in range(first, last + 1, step)]


def _set(option: SpecOption, word: str, called: str) -> dict[str, Any]:
    if word.lower() == "auto":
        return dict.fromkeys(option.fields, _OPEN)
    if option.name == "warps":
        return {"warp_tile": _Warps.parse(word, called)}
    if option.name == "split_k":
        return {"schedule": _schedule(word, called)}
    if option.fields[0] in _SMEM_FIELDS and (match := _SWIZZLE.fullmatch(word.strip())):
        return dict.fromkeys(option.fields, _Swizzle(int(match[1])))
    if option.name == "epilogue" and (words := _epilogue_words(word)):
        return words
    found = {name: parse_field(name, word, called) for name in option.fields}
    if (warps := found.get("warp_tile")) and 0 < warps.m <= _MAX_WARPS and 0 < warps.n <= _MAX_WARPS:
        raise RequestError(
            f"{called} {warps} is smaller than any warp tile, which is 16x8 at least. For that many warps, write --warps {warps}"
        )
    return found


# ---- Values that depend on other fields, and words of other projects --------------------------------------------------


@dataclass(frozen=True)
class _Warps:
    """A number of warps along m and n, as the warp tile that they divide the CTA tile into."""

    m: int
    n: int
    called: str

    @classmethod
    def parse(cls, text: str, called: str) -> _Warps:
        match = _WARPS.fullmatch(text.strip().lower())
        if not match:
            raise RequestError(f"{called} {text!a} is malformed: write the warps along m and n, as in 2x2")
        return cls(int(match[1]), int(match[2]), called)

    def resolved(self, name: str, known: Request) -> Request:
        """Return the warp tile as field `name`, with the CTA tile if that is open.

        Raises: RequestError if the warps do not divide the CTA tile.
        """
        tile = known.get("cta_tile")
        if tile is None:
            return self._planned(name, known)
        if tile.m % self.m or tile.n % self.n:
            raise RequestError(
                f"{self.called} {self.m}x{self.n} does not divide tile {tile}: choose warps that divide {tile.m} and {tile.n}"
            )
        return {name: parse_field(name, f"{tile.m // self.m}x{tile.n // self.n}", f"{self.called} {self.m}x{self.n}:")}

    def _planned(self, name: str, known: Request) -> Request:
        """Return the first usual warp tile of which so many form a legal kernel, and the tile that they form.

        Without a legal one: the first.
        """
        choices = []
        for warp in _USUAL_WARP_TILES:
            k = resolve({**known, name: warp}).cta_tile.k
            choices.append({name: warp, "cta_tile": Tile(m=warp.m * self.m, n=warp.n * self.n, k=k)})
        legal = (one for one in choices if not broken_rules(plan_of(resolve({**known, **one}))))
        return next(legal, choices[0])


_USUAL_WARP_TILES = (
    WarpTile(64, 64),
    WarpTile(64, 32),
    WarpTile(32, 64),
    WarpTile(32, 32),
    WarpTile(16, 32),
    WarpTile(16, 16),
)


@dataclass(frozen=True)
class _Swizzle:
    """A swizzle of shared memory by its width, as of TMA: 128B, 64B, 32B. Source: CUtensorMapSwizzle, CUDA driver API."""

    width_bytes: int

    def resolved(self, name: str, known: Request) -> Request:
        """Return the placement of operand `name`, whose type is among the `known` fields."""
        element_bytes = DTYPE_BYTES[known.get("dtype_a" if name == "smem_a" else "dtype_b", "f16")]
        bits = (self.width_bytes // 16).bit_length() - 1
        return {name: parse_field(name, f"xor:{bits},{(16 // element_bytes).bit_length() - 1},3")}


_DEPENDENT = (_Warps, _Swizzle)
"""Values that depend on the other fields of a combination."""
_MAX_WARPS = 8
"""Warps along m or n, at most, that a warp tile is taken for."""
_WARPS = re.compile(r"([1-9]\d?)x([1-9]\d?)(?:x1)?", re.ASCII)
_SWIZZLE = re.compile(r"(?:swizzle_?)?(128|64|32)b", re.ASCII | re.IGNORECASE)
_SMEM_FIELDS = ("smem_a", "smem_b")


def _schedule(word: str, called: str) -> Any:
    if not word.isdecimal() or int(word) == 0:
        raise RequestError(f"{called} {word!a} is not a number of splits: write 2 to 64, or 1 for one_tile")
    return parse_field("schedule", "one_tile" if int(word) == 1 else f"split_k:{word}", called)


def _epilogue_words(text: str) -> dict[str, Any]:
    """Return the fields of words such as `bias+gelu`, which kernels have without a formula; none if it is not such a text."""
    words = [word.strip().lower() for word in text.split("+")]
    if not {*words} <= {"bias", *ACTIVATIONS} - {"none"} or len(words) != len({*words}):
        return {}
    activations = [word for word in words if word != "bias"]
    if len(activations) > 1 or (activations and words[-1] == "bias"):
        raise RequestError(
            f'epilogue {text!a} is not a bias with an activation after it: write a formula, such as "relu(acc + bias)"'
        )
    fields = {"bias": "row"} if "bias" in words else {}
    return {"epilogue": epilogue.NONE, **fields, **({"activation": activations[0]} if activations else {})}


# ---- Spec files ------------------------------------------------------------------------------------------------------


def read_spec_file(path: Path) -> list[Texts]:
    """Read a TOML file: options, whose lists are swept, and a `[[kernel]]` table for each group of further options.

    Older files name these tables `[[variant]]`.
    Raises: RequestError if the file cannot be read, is not TOML, or has unknown options.
    """
    document = read_toml(path)
    if "variant" in document:
        deprecated("table [[variant]] of a spec file", "[[kernel]]")
    if "kernel" in document and "variant" in document:
        raise RequestError(
            f"spec file {path}: it has tables [[kernel]] and [[variant]], the older name: use one of them"
        )
    tables = document.pop("variant", document.pop("kernel", [{}]))
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RequestError(f"spec file {path}: write each group as a table [[kernel]]")
    for name, value in document.items():
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            raise RequestError(f"spec file {path}: [[{name}]] is unknown: write each group as a table [[kernel]]")
    common = texts_in(document, path)
    return [overridden(common, texts_in(table, path)) for table in tables]


MAX_TOML_BYTES, MAX_DOTS = 8 * 2**20, 256
"""Limits of a TOML file, and of the dots in a line: tomllib takes a time quadratic in the parts of a dotted key."""


def read_toml(path: Path, what: str = "spec file") -> dict[str, Any]:
    """Return the contents of a TOML file. Raises: RequestError if it cannot be read or is not TOML. It says `what` it is."""
    try:
        text = read_text(path, MAX_TOML_BYTES)
        if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {MAX_DOTS} dots")
        return _toml().loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except OSError as error:
        raise RequestError(f"{what} {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} {path} is not TOML: {error}") from error


def sweep_of(spec: Spec) -> Sweep:
    """Return the sweep of one complete spec."""
    plan, request = plan_of(spec), {field.name: getattr(spec, field.name) for field in fields(spec)}
    return Sweep((Candidate(plan, request, tuple(broken_rules(plan))),))


def overridden(texts: Texts, above: Texts) -> Texts:
    """Override options by those `above`. An option is dropped if the options above set all of its fields."""
    covered = {field for name in above for field in option_of(name).fields}
    kept = {name: text for name, text in texts.items() if not covered.issuperset(option_of(name).fields)}
    return {**kept, **above}


def texts_in(table: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the options of a table of a spec file. Raises: RequestError for an unknown option or value."""
    try:
        return texts_from(table)
    except RequestError as error:
        raise RequestError(f"spec file {path}: {error}") from None


def texts_from(values: Mapping[str, Any]) -> dict[str, str]:
    """Return options whose values are texts, numbers, switches, or lists of them. Raises: RequestError for an unknown one."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        option = option_of(name)
        if option.name in texts:
            raise RequestError(f"'{name}' and another name set {option.name} twice: keep one")
        text = ",".join(_text(item, name) for item in (value if isinstance(value, (list, tuple)) else [value]))
        _values(option, text, name)  # notes deprecated words, which would be noted again where the text is parsed
        texts[option.name] = ",".join(current_word(option.fields[0], item) for item in _items(option, text))
    return texts


def _text(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, str)):
        return str(value)
    kind = {"dict": "table", "list": "list of lists"}.get(type(value).__name__, type(value).__name__)
    raise RequestError(f"'{name}' is a {kind}: write a text, a number, or a list of them")


def _toml():
    try:
        import tomllib  # Python 3.11 and later, and only where a file is read
    except ModuleNotFoundError:
        import tomli as tomllib
    return tomllib
