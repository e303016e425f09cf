"""Queries on a library: the fields that can be named, the language of `--where`, and the choice of kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from generator import epilogue
from generator.arch import ARCHS, parse_arch, parse_arch_list
from generator.errors import LibraryError, RequestError, closest_words, unknown_word
from generator.spec import HASH_DIGITS, parse_field
from generator.store.index import And, Compare, Like, Literal, Node, Not, Or, Truth, any_like
from generator.store.library import Library
from generator.store.schema import flat_fields
from hgemm.checks import MAX_INTEGER
from hgemm.epilogue import NONE, parse_epilogue
from hgemm.errors import deprecated
from hgemm.library import is_symbol
from hgemm.locations import library_suffix
from hgemm.problem import LAYOUTS
from hgemm.record import RECORD_NAME, SOURCE_NAME, Scalar, current_field, current_word

FIELD_MEANINGS = flat_fields()
"""The short name and the meaning of all fields of a record that hold one word or number, without the instruction counts."""
FIELDS = frozenset(FIELD_MEANINGS)


def known_fields(library: Library) -> set[str]:
    """Return the fields that can be named: those of every record, and the other fields of this library if it exists."""
    return FIELDS | (library.field_names() if library.folder.is_dir() else set())


# ---- `--where`: a tokenizer and a recursive descent parser ------------------------------------------------------------

FIELD_ALIASES = {"tile": "cta_tile", "mma_per_k_tile": "proof_mma_per_k_tile"}
VALUE_ALIASES = {("mma", "wgmma"): "m64n*"}
"""Words that stand for several values of a field, with the pattern of those values."""
SWITCHES = {"yes": 1, "on": 1, "true": 1, "no": 0, "off": 0, "false": 0}
"""Words for a field that is true or false. `hgemm list` prints yes and no, and options take on and off."""
NUMBER_FIELDS = frozenset(
    "registers spill_bytes stack_bytes smem_bytes ctas_per_sm warps_per_sm occupancy threads stages".split()
)
"""Fields that are numbers in every record."""
MAX_CHARACTERS = 4000
MAX_COMPARISONS = 200
MAX_NESTING = 40
_INSTRUCTION = re.compile(r"sass_[a-z0-9_]+", re.ASCII)
"""The count of an instruction in the machine code. A kernel has these fields for the instructions that it uses."""
_WORDS = ("and", "or", "not", "like")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.*?:,])
    | (?P<word>[\w.*?:,+-]+)
    | (?P<quoted>'[^']*'|"[^"]*")
    | (?P<operator><=|>=|==|!=|<>|[<>=()])
    )""",
    re.VERBOSE | re.ASCII,
)


def parse_where(text: str, known: Collection[str] | None = None) -> Node:
    """Parse an expression such as `registers<=128 and (layout=tn or not spilled)`.

    Raises: RequestError that shows the position of a syntax error, or the closest names for a field that is not `known`.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"--where has {len(text)} characters: use at most {MAX_CHARACTERS}")
    return _Parser(_tokens(text), text, known).parse()


def check_field(name: str, known: Collection[str] | None, where: str) -> str:
    """Return the current name of a field.

    Raises: RequestError with the closest names if the field is neither `known` nor an instruction count."""
    lower = name.lower()
    field = FIELD_ALIASES.get(lower) or current_field(lower)
    if field != lower and lower not in FIELD_ALIASES:
        deprecated(f"field {lower}", field)
    if known is not None and field not in known and not _INSTRUCTION.fullmatch(field):
        near = closest_words(field, sorted(known), count=3, cutoff=0.4)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise RequestError(f"{where} names an unknown field '{name}': {meant}`hgemm list --fields` lists them")
    return field


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split into (kind, text). The kind of `and`, `or`, `not` and `like` is the word itself."""
    found, position = [], 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if not match or not match.group().isprintable():
            raise RequestError(
                f"--where cannot be read at {text[position : position + 20].strip()!a}: quote texts as 'tn'"
            )
        kind, token, position = str(match.lastgroup), match.group(str(match.lastgroup)), match.end()
        if kind == "word" and token.lower() in _WORDS:
            kind = token.lower()
        found.append((kind, token[1:-1] if kind == "quoted" else token))
    return found


class _Parser:
    """Recursive descent over the tokens, with one method per rule of the grammar."""

    def __init__(self, tokens: list[tuple[str, str]], text: str, known: Collection[str] | None) -> None:
        self._tokens = tokens
        self._text = text
        self._known = known
        self._position = 0
        self._comparisons = 0

    def parse(self) -> Node:
        node = self._expression(depth=0)
        if self._peek() != ("end", ""):
            raise self._expected("`and` or `or`")
        return node

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._position += 1
        return token

    def _took(self, kind: str, text: str | None = None) -> bool:
        found = self._peek()
        if found[0] != kind or text not in (None, found[1]):
            return False
        self._position += 1
        return True

    def _expected(self, what: str) -> RequestError:
        kind, found = self._peek()
        shown = "but it ends" if kind == "end" else f"not {found!a}"
        return RequestError(f"--where expects {what}, {shown}: write it as \"registers<=128 and layout='tn'\"")

    def _expression(self, depth: int) -> Node:
        items = [self._term(depth)]
        while self._took("or"):
            items.append(self._term(depth))
        return items[0] if len(items) == 1 else Or(tuple(items))

    def _term(self, depth: int) -> Node:
        items = [self._factor(depth)]
        while self._took("and"):
            items.append(self._factor(depth))
        return items[0] if len(items) == 1 else And(tuple(items))

    def _factor(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise RequestError(f"--where nests deeper than {MAX_NESTING}: use fewer parentheses")
        if self._took("not"):
            return Not(self._factor(depth + 1))
        if self._took("operator", "("):
            node = self._expression(depth + 1)
            if not self._took("operator", ")"):
                raise self._expected("a closing parenthesis")
            return node
        return self._comparison()

    def _comparison(self) -> Node:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise RequestError(f"--where has more than {MAX_COMPARISONS} comparisons: use fewer")
        if self._peek()[0] != "word":
            raise self._expected("the name of a field")
        field = check_field(self._take()[1], self._known, "--where")
        if self._took("like"):
            return Like(field, self._pattern(field))
        if self._peek()[0] != "operator" or self._peek()[1] in "()":
            return Truth(field)
        op = {"==": "=", "<>": "!="}.get(self._peek()[1], self._peek()[1])
        self._position += 1
        literal = self._literal(field)
        equal = Compare(field, "=", literal)
        if (field, literal.text.lower()) in VALUE_ALIASES:
            equal = Like(field, VALUE_ALIASES[field, literal.text.lower()])
        return {"=": equal, "!=": Not(equal)}.get(op) or Compare(field, op, literal)

    def _pattern(self, field: str) -> str:
        kind, text = self._peek()
        if kind not in ("word", "quoted", "number"):
            raise self._expected(f"a pattern for {field}, such as 'a*b'")
        self._position += 1
        return current_word(field, text)

    def _literal(self, field: str) -> Literal:
        kind, text = self._peek()
        if kind not in ("word", "quoted", "number"):
            raise self._expected(f"a number or a text to compare {field} with")
        self._position += 1
        if current_word(field, text) != text:
            deprecated(f"{field} {text}", current_word(field, text))
            text = current_word(field, text)
        if field == "arch":
            return Literal(parse_arch(text))
        if kind == "number":
            return Literal(text, _number(text))
        if text.lower() in SWITCHES:
            return Literal(text, SWITCHES[text.lower()])
        if field in NUMBER_FIELDS:
            raise RequestError(
                f"--where compares the number {field} with the text {text!a}: write a number without quotes"
            )
        return Literal(text)


def _number(text: str) -> int | float:
    value = int(text) if text.lstrip("+-").isdecimal() else float(text)
    if not math.isfinite(value) or abs(value) > MAX_INTEGER:
        raise RequestError(f"--where has a number out of range, {text[:40]}: use one that 64 bits hold")
    return value


# ---- Choosing kernels ----------------------------------------------------------------------------------------------

MAX_CANDIDATES = 5
"""The most symbols that an error lists for an ambiguous name."""
_HASH = re.compile(rf"[0-9a-f]{{4,{HASH_DIGITS}}}", re.ASCII)
NAME_FIELDS = ("symbol", "alias")
_TILE = re.compile(r"[0-9]{1,5}x[0-9]{1,5}(x[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True)
class KernelFilter:
    """The filters of the command line as texts. An empty filter chooses everything."""

    arch: str = ""
    tile: str = ""
    layout: str = ""
    kernels: str = ""
    where: str = ""
    dtype: str = ""
    acc: str = ""
    out: str = ""
    epilogue: str = ""


def condition_of(kernel_filter: KernelFilter, known: Collection[str] | None = None) -> Node:
    """Return the conjunction of all conditions of a filter.

    Raises: RequestError if a filter is malformed or names a field that is not `known`.
    """
    items: list[Node] = []
    if kernel_filter.arch:
        items.append(_one_of("arch", parse_arch_list(kernel_filter.arch, "--arch")))
    if kernel_filter.tile:
        items.append(Or(tuple(_tile(word) for word in _words(kernel_filter.tile))))
    if kernel_filter.layout:
        items.append(_one_of("layout", tuple(_layout(word) for word in _words(kernel_filter.layout))))
    for name, text in (("dtype_a", kernel_filter.dtype), ("acc", kernel_filter.acc), ("dtype_d", kernel_filter.out)):
        if text:
            items.append(_one_of(name, tuple(parse_field(name, word) for word in _words(text))))
    if kernel_filter.kernels:
        items.append(Or(tuple(_named(word) for word in _words(kernel_filter.kernels))))
    if kernel_filter.where.strip():
        items.append(parse_where(kernel_filter.where, known))
    return And(tuple(items))


def fields_in(node: Node) -> list[str]:
    """Return the fields that a condition names, each once, without symbol and alias."""
    if isinstance(node, (And, Or)):
        names = [name for item in node.items for name in fields_in(item)]
    elif isinstance(node, Not):
        names = fields_in(node.item)
    else:
        names = [] if node.field in NAME_FIELDS else [node.field]
    return list(dict.fromkeys(names))


def _with_epilogue(rows: list[dict[str, Scalar]], text: str) -> list[dict[str, Scalar]]:
    """Return the rows whose epilogue a text names: the hash of an expression, a formula, or `none`. An empty text keeps all."""
    text = text.strip()
    if not text:
        return rows
    asked = text
    if not _EPILOGUE_HASH.fullmatch(text):
        found = parse_epilogue(epilogue.parse_field(text, "--epilogue"))
        asked = found.hash if found else NONE
    return [row for row in rows if row.get("epilogue_hash", NONE) == asked]


_EPILOGUE_HASH = re.compile(r"[0-9a-f]{8}", re.ASCII)


def select_rows(library: Library, kernel_filter: KernelFilter, sort: str = "symbol") -> list[dict[str, Scalar]]:
    """Return the flat records of a filter, sorted by a field; `-field` sorts in descending order.

    Raises: RequestError for a malformed filter or an unknown field; LibraryError if the library cannot be read.
    """
    known = known_fields(library) if kernel_filter.where.strip() or sort != "symbol" else None
    rows = _with_epilogue(library.rows(condition_of(kernel_filter, known)), kernel_filter.epilogue)
    if sort == "symbol":
        return rows
    field = check_field(sort.lstrip("-"), known, "--sort")
    present = [row for row in rows if field in row]
    present.sort(key=lambda row: _sort_key(row[field]), reverse=sort.startswith("-"))
    return present + [row for row in rows if field not in row]


def choose(library: Library, names: Collection[str], kernel_filter: KernelFilter) -> list[str]:
    """Return the symbols that match a filter and, if names are given, one of the names (see `resolve`).

    Raises: RequestError for a malformed filter or an unknown name; LibraryError if nothing matches.
    """
    chosen = _chosen(library, names, kernel_filter)
    if not chosen:
        raise nothing_matches(library)
    return chosen


def nothing_matches(library: Library) -> LibraryError:
    """Return the error for a filter that matches nothing, or for an empty library."""
    made = f"`generate --catalog{library_suffix(library.folder)}` builds the catalog"
    if library.rows():
        shown = f"`hgemm list{library_suffix(library.folder)}` lists its kernels"
        return LibraryError(f"no kernel in {library.folder} matches the filters: {shown}, {made}")
    return LibraryError(f"{library.folder} has no kernels: {made}")


def left_out(library: Library, names: Collection[str], kernel_filter: KernelFilter) -> dict[str, int]:
    """Count, by architecture, the kernels that only --arch excludes although its GPUs run them: sm_90a for sm_90.

    Raises: as `choose`.
    """
    asked = parse_arch_list(kernel_filter.arch, "--arch") if kernel_filter.arch else ()
    kin = {
        arch.name for arch in ARCHS.values() if arch.suffix and arch.name not in asked and f"sm_{arch.number}" in asked
    }
    counts = {arch: len(_chosen(library, names, replace(kernel_filter, arch=arch))) for arch in sorted(kin)}
    return {arch: count for arch, count in counts.items() if count}


def _chosen(library: Library, names: Collection[str], kernel_filter: KernelFilter) -> list[str]:
    rows = [str(row["symbol"]) for row in select_rows(library, kernel_filter)]
    named = {symbol for name in names for symbol in resolve(library, name)}
    return [symbol for symbol in rows if not names or symbol in named]


def resolve(library: Library, name: str) -> list[str]:
    """Return the symbols for a name: a symbol, an alias, a unique prefix of either, the hash of a symbol, or a glob.

    Raises: RequestError if nothing matches, or a prefix matches several.
    """
    found = _exactly(library, name)
    begun = [] if found else _begun(library, name)
    if len(begun) > 1:
        raise _ambiguous(name, begun, f", or '{name}*' for all")
    return found or begun or _none(library, name)


def resolve_one(library: Library, name: str) -> str:
    """Return the one symbol for a name: a symbol, an alias, a prefix of either, the hash of a symbol, or a glob.

    Raises: RequestError if nothing or more than one symbol matches.
    """
    found = _exactly(library, name) or _begun(library, name) or _none(library, name)
    if len(found) > 1:
        raise _ambiguous(name, found)
    return found[0]


def _exactly(library: Library, name: str) -> list[str]:
    return [name] if is_symbol(name) and library.get(name, verify=False) else _symbols(library, name)


def _begun(library: Library, name: str) -> list[str]:
    """Return the symbols with a prefix, or else those whose hash has it."""
    if _is_glob(name):
        return []
    return _symbols(library, name + "*") or (_symbols(library, glob) if (glob := _hash_glob(name)) else [])


def _is_glob(name: str) -> bool:
    return "*" in name or "?" in name


def _hash_glob(name: str) -> str:
    """Return the glob for a prefix of a hash, 4 to 8 hexadecimal digits. Return an empty text for other words."""
    word = name.lower()
    return f"*_{word}{'?' * (HASH_DIGITS - len(word))}" if _HASH.fullmatch(word) else ""


def _ambiguous(name: str, symbols: list[str], other: str = "") -> RequestError:
    shown = "".join(f"\n  {symbol}" for symbol in symbols[:MAX_CANDIDATES])
    more = f"\n  and {len(symbols) - MAX_CANDIDATES} more" if len(symbols) > MAX_CANDIDATES else ""
    fix = "narrow the glob" if _is_glob(name) else f"write a longer prefix{other}"
    return RequestError(f"{name!a} matches {len(symbols)} kernels: {fix}{shown}{more}")


def _symbols(library: Library, pattern: str) -> list[str]:
    return [str(row["symbol"]) for row in library.rows(any_like(NAME_FIELDS, (pattern,)))]


def _none(library: Library, name: str) -> list[str]:
    inside = f"*{name.strip('*')}*"
    if _symbols(library, inside):
        raise RequestError(f"no kernel in {library.folder} begins with {name!a}: did you mean '{inside}'?")
    symbols = [str(row["symbol"]) for row in library.rows()]
    near = closest_words(name, symbols, cutoff=0.3)
    named = [path.parent for path in library.folder.glob(f"*/{SOURCE_NAME}") if path.parent.name.startswith(name)]
    texts = sorted(path.name for path in named if not (path / RECORD_NAME).exists())
    if texts:
        message = f"{texts[0]} has a source but no {RECORD_NAME}: build it again"
        raise RequestError(f"no kernel in {library.folder} is named {name!a}: {message}")
    hint = f"did you mean {near[0]}?" if near else f"`hgemm list{library_suffix(library.folder)}` lists its kernels"
    raise RequestError(f"no kernel in {library.folder} is named {name!a}: {hint}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _named(word: str) -> Node:
    """Return the condition for one word of --kernels: a glob, a prefix of a symbol or alias, or the hash of a symbol."""
    if _is_glob(word):
        return any_like(NAME_FIELDS, (word,))
    by_hash = (Like("symbol", _hash_glob(word)),) if _hash_glob(word) else ()
    return Or((any_like(NAME_FIELDS, (word + "*",)), *by_hash))


def _one_of(field: str, texts: tuple[str, ...]) -> Node:
    return Or(tuple(Compare(field, "=", Literal(text)) for text in texts))


def _layout(word: str) -> str:
    if word.lower() not in LAYOUTS:
        raise unknown_word("--layout", word, LAYOUTS)
    return word.lower()


def _tile(word: str) -> Node:
    match = _TILE.fullmatch(word.lower())
    if not match:
        raise RequestError(f"--tile {word!a} is malformed: write it as MxNxK, such as 128x128x32, or MxN for any K")
    return Like("cta_tile", word.lower() if match[1] else word.lower() + "x*")


def _sort_key(value: Scalar) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
