"""The language of `--where`: a tokenizer, a recursive descent parser.

    expression = term {"or" term}          term = factor {"and" factor}
    factor     = "not" factor | "(" expression ")" | field [operator literal | "like" literal]

The outcome is a tree of conditions, and never text again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from generator.arch import parse_arch
from generator.errors import RequestError, nearest
from generator.store.conditions import Compare, Every, Like, Literal, Node, Not, Some, Truth
from hgemm.schema import MAX_INTEGER

FIELD_ALIASES = {"tile": "cta_tile"}
VALUE_ALIASES = {("mma", "wgmma"): "m64n*"}
"""Words for several values of a field, each with the pattern that those match."""
NUMBER_FIELDS = frozenset(
    "registers spill_bytes stack_bytes smem_bytes ctas_per_sm warps_per_sm occupancy threads stages".split()
)
"""Fields that are numbers in every record."""
MAX_CHARACTERS = 4000
MAX_COMPARISONS = 200
MAX_NESTING = 40
_INSTRUCTION = re.compile(r"sass_[a-z0-9_]+", re.ASCII)
"""How often an instruction stands in the machine code; a kernel has the fields of those that it has."""
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
    """Read an expression such as `registers<=128 and (layout=tn or not spilled)`.

    Raises: RequestError that shows where it cannot be read, or names the fields nearest to one not `known`.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"--where has {len(text)} characters: use at most {MAX_CHARACTERS}")
    return _Parser(_tokens(text), text, known).parse()


def check_field(name: str, known: Collection[str] | None, where: str) -> str:
    """Return the field's own name. Raises RequestError with the nearest names where it is not `known`, and no instruction."""
    field = FIELD_ALIASES.get(name.lower(), name.lower())
    if known is not None and field not in known and not _INSTRUCTION.fullmatch(field):
        near = nearest(field, sorted(known), count=3, cutoff=0.4)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise RequestError(f"{where} names an unknown field '{name}': {meant}`hgemm list --fields` lists them")
    return field


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split into (kind, text); the kind of and, or, not, like is the word itself."""
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
    """Recursive descent over the tokens; one method for each rule of the grammar."""

    def __init__(self, tokens: list[tuple[str, str]], text: str, known: Collection[str] | None) -> None:
        self._tokens = tokens
        self._text = text
        self._known = known
        self._position = 0
        self._comparisons = 0

    def parse(self) -> Node:
        node = self._expression(depth=0)
        if self._peek() != ("end", ""):
            raise self._expected("and, or, or the end")
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
        found = self._peek()[1] or "the end"
        return RequestError(f"--where expects {what}, not {found!a}: write it as \"registers<=128 and layout='tn'\"")

    def _expression(self, depth: int) -> Node:
        items = [self._term(depth)]
        while self._took("or"):
            items.append(self._term(depth))
        return items[0] if len(items) == 1 else Some(tuple(items))

    def _term(self, depth: int) -> Node:
        items = [self._factor(depth)]
        while self._took("and"):
            items.append(self._factor(depth))
        return items[0] if len(items) == 1 else Every(tuple(items))

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
            raise self._expected(f"a text for {field} to be like, such as 'a*b'")
        self._position += 1
        return text

    def _literal(self, field: str) -> Literal:
        kind, text = self._peek()
        if kind not in ("word", "quoted", "number"):
            raise self._expected(f"a number or a text to compare {field} with")
        self._position += 1
        if field == "arch":
            return Literal(parse_arch(text))
        if kind == "number":
            return Literal(text, _number(text))
        if kind == "word" and text.lower() in ("true", "false"):
            return Literal(text, int(text.lower() == "true"))
        if field in NUMBER_FIELDS:
            raise RequestError(f"--where compares {field}, a number, with the text {text!a}: write a number, unquoted")
        return Literal(text)


def _number(text: str) -> int | float:
    value = int(text) if text.lstrip("+-").isdecimal() else float(text)
    if not math.isfinite(value) or abs(value) > MAX_INTEGER:
        raise RequestError(f"--where has a number out of range, {text[:40]}: use one that 64 bits hold")
    return value
