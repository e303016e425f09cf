"""Edits of C++ text that are anchored on a function and an expression in it.

An anchor names a function or struct, and a pattern of tokens in its text:

    At("Mainloop::run", "cta_barrier()").drop()
    At("TmaStages::init", "mbarrier_init(&barriers.empty").argument(1, "@ + 1")

White space, comments and preprocessor lines are ignored. File names are not part of an anchor: functions are searched in
the text of a kernel and in all template headers that it includes.

A name is a suffix of the qualified name: "run" finds `hgemm::Mainloop::run`. A constructor is `Mainloop::Mainloop`. An empty
name searches everything. In a pattern, `...` matches any balanced run of tokens. In the new text of an edit, `@` is the old
text, and `@1`, `@2` are what each `...` matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

KERNEL = "the kernel's own text"
"""The name of the text that includes the headers."""

_TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]* | /\*.*?\*/ | \#(?:\\\n|[^\n])* )
  | (?P<token>
        R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)"
      | "(?:\\.|[^"\\\n])*"
      | (?:0[xX][0-9a-fA-F']+|\d(?:[\d'.]|[eE][+-]?\d)*)\w*
      | '(?:\\.|[^'\\\n])+'
      | [A-Za-z_]\w*
      | \.\.\. | ->\*? | ::  | \+\+ | -- | << | <= | >= | == | != | && | \|\| | [-+*/%&|^]=
      | .
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_RECORDS = {"struct", "class", "union", "enum"}
_NOT_A_NAME = {
    "alignas",
    "decltype",
    "noexcept",
    "requires",
    "sizeof",
    "explicit",
    "if",
    "for",
    "while",
    "switch",
    "return",
}
WILDCARD = "..."


class AnchorError(LookupError):
    """An anchor that is not found, or that fits several places."""


# ---- Text as tokens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """A function or struct: its qualified name, and its tokens [begin, end) with the head and the body."""

    name: str
    begin: int
    end: int

    def is_named(self, suffix: str) -> bool:
        return self.name == suffix or self.name.endswith(f"::{suffix}")


class Text:
    """A C++ text as tokens, with its functions and structs."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.spans: list[tuple[int, int]] = []
        for match in _TOKEN.finditer(text):
            if match["token"]:
                self.tokens.append(match["token"])
                self.spans.append(match.span())
        self.partner, self.outer = self._brackets()
        self.scopes = list(self._scopes(0, len(self.tokens), ""))

    def _brackets(self) -> tuple[dict[int, int], list[int]]:
        """Pair brackets, and find for each token the brace that it stands in, or -1."""
        partner: dict[int, int] = {}
        outer: list[int] = []
        opened: list[int] = []
        for at, token in enumerate(self.tokens):
            if token in (")", "]", "}") and opened:
                partner[opened[-1]], partner[at] = at, opened[-1]
                opened.pop()
            outer.append(next((one for one in reversed(opened) if self.tokens[one] == "{"), -1))
            if token in _CLOSER:
                opened.append(at)
        for at in opened:
            partner[at] = len(self.tokens) - 1
        return partner, outer

    def _scopes(self, begin: int, end: int, outer: str) -> Iterator[Scope]:
        """Find the functions and structs among tokens of a namespace or a struct."""
        head = at = begin
        while at < end:
            token = self.tokens[at]
            if token == ";" or (token == ":" and self.tokens[at - 1] in ("public", "private", "protected")):
                head = at + 1
            elif token == "{":
                close = self.partner[at]
                kind, name = self._opened(head, at)
                qualified = f"{outer}::{name}" if outer and name else outer or name
                if kind == "part":
                    at = close + 1
                    continue
                if kind in ("namespace", "record"):
                    yield from self._scopes(at + 1, close, qualified)
                if kind in ("record", "function"):
                    yield Scope(qualified, head, close + 1)
                head = close + 1
                at = close
            elif token in ("(", "["):
                at = self.partner[at]
            at += 1

    def _opened(self, head: int, brace: int) -> tuple[str, str]:
        """Tell what a brace opens after the tokens from `head` on: a kind, and a name or nothing.

        A "part" is a brace within a declaration, such as an initialiser, after which the declaration goes on.
        """
        at = self._after_template(head)
        words = self.tokens[at:brace]
        if "namespace" in words:
            return "namespace", "::".join(
                word for word in words if word.isidentifier() and word not in ("namespace", "inline")
            )
        if words[:1] == ["extern"] and len(words) == 2:
            return "namespace", ""
        if words and words[0] in _RECORDS:
            return "record", self._record_name(at + 1, brace)
        name, parameters = self._function_name(at, brace)
        if not name or (not name.startswith("operator") and self._top_level("=", at, parameters)):
            return "part", ""
        initialisers = self._top_level(":", self.partner[parameters] + 1, brace)
        if initialisers and self.tokens[brace - 1] not in (")", "}"):
            return "part", ""  # a member's initialiser in braces
        return "function", name

    def _after_template(self, at: int) -> int:
        while self.tokens[at : at + 2] == ["template", "<"]:
            at = self.closing_angle(at + 1) + 1
        return at

    def _record_name(self, at: int, end: int) -> str:
        while at < end:
            if self.tokens[at] in ("alignas", "__align__"):
                at = self.partner[at + 1]
            elif self.tokens[at].isidentifier() and self.tokens[at] not in _RECORDS:
                return self.tokens[at]
            at += 1
        return ""

    def _function_name(self, at: int, end: int) -> tuple[str, int]:
        """Return the name before the first parentheses that are no macro's, and where those open."""
        while at < end:
            token, previous = self.tokens[at], self.tokens[at - 1] if at else ""
            if token == "operator":
                opens = next(i for i in range(at + 2, end) if self.tokens[i] == "(")
                return "".join(self.tokens[at:opens]), opens
            if token == "(":
                macro = previous.isupper() or previous in _NOT_A_NAME or previous.startswith("__")
                if previous.isidentifier() and not macro:
                    return previous, at
                at = self.partner[at]
            elif token == "[":
                at = self.partner[at]
            at += 1
        return "", end

    def _top_level(self, token: str, at: int, end: int) -> bool:
        while at < end:
            if self.tokens[at] == token:
                return True
            at = self.partner[at] + 1 if self.tokens[at] in _CLOSER else at + 1
        return False

    def closing_angle(self, at: int) -> int:
        """Return where the angle bracket at a token is closed."""
        depth = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if token in ("(", "[", "{"):
                at = self.partner[at]
            depth += {"<": 1, ">": -1, "<<": 2}.get(token, 0)
            if depth == 0:
                return at
            at += 1
        raise AnchorError("an angle bracket is not closed")

    def source(self, begin: int, end: int) -> str:
        """Return the text of tokens [begin, end)."""
        return self.text[self.spans[begin][0] : self.spans[end - 1][1]] if begin < end else ""

    def line(self, at: int) -> int:
        """Return the line that a token stands in, from 1 on."""
        return self.text.count("\n", 0, self.spans[at][0]) + 1

    # ---- Statements --------------------------------------------------------------------------------------------------

    def statement(self, at: int) -> tuple[int, int]:
        """Return the whole statement [begin, end) of a block that a token stands in, with its `if` or loop."""
        block = self.outer[at]
        while block >= 0 and self.tokens[block - 1] in ("=", "return", "(", ","):  # a braced list
            block = self.outer[block]
        begin = block + 1
        while True:
            end = self._statement_end(begin)
            if at < end:
                return begin, end
            begin = end

    def _statement_end(self, begin: int) -> int:
        at = begin
        while at < len(self.tokens):
            token = self.tokens[at]
            following = self.tokens[self.partner[at] + 1 :][:1] if token in _CLOSER else self.tokens[at + 1 : at + 2]
            if token == "{" and following not in (["else"], ["while"], [";"], [","], ["{"], ["."]):
                return self.partner[at] + 1
            if token == "{" and following == ["while"] and self.tokens[at - 1] != "do":
                return self.partner[at] + 1
            if token == ";" and following != ["else"]:
                return at + 1
            if token == "}":
                return at
            at = self.partner[at] + 1 if token in _CLOSER else at + 1
        return at


@lru_cache(maxsize=512)
def parsed(text: str) -> Text:
    """Return a text as tokens, parsed once."""
    return Text(text)


@lru_cache(maxsize=512)
def _pattern(find: str) -> tuple[str, ...]:
    return tuple(parsed(find).tokens)


# ---- Matches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """Where a pattern fits: tokens [begin, end), the token of each pattern token, and the span of each wildcard."""

    begin: int
    end: int
    places: tuple[int, ...]
    wildcards: tuple[tuple[int, int], ...]


def _match_at(text: Text, pattern: Sequence[str], begin: int, end: int) -> Match | None:
    """Match a pattern from one token on; wildcards take as little as they can."""

    def fit(at: int, next_one: int, places: tuple, wildcards: tuple, opened: int) -> Match | None:
        while next_one < len(pattern) and pattern[next_one] != WILDCARD:
            if at >= end or text.tokens[at] != pattern[next_one]:
                return None
            opened += (pattern[next_one] in _CLOSER) - (pattern[next_one] in _CLOSER.values())
            places, at, next_one = (*places, at), at + 1, next_one + 1
        if next_one == len(pattern):
            return Match(begin, at, places, wildcards)
        stop = at
        while True:
            found = fit(stop, next_one + 1, (*places, stop), (*wildcards, (at, stop)), opened)
            if found:
                return found
            token = text.tokens[stop] if stop < end else "}"
            if token in (")", "]", "}") or (token == ";" and opened == 0):
                return None
            stop = text.partner[stop] + 1 if token in _CLOSER else stop + 1

    return fit(begin, 0, (), (), 0)


def matches(text: Text, find: str, begin: int, end: int) -> list[Match]:
    """Return all places among tokens [begin, end) that a pattern fits."""
    pattern = _pattern(find)
    starts = (at for at in range(begin, end) if text.tokens[at] == pattern[0])
    return [match for at in starts if (match := _match_at(text, pattern, at, end))]


# ---- Anchors and edits -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One replacement of characters [begin, end) of a file's text."""

    file: str
    begin: int
    end: int
    text: str

    def applied(self, to: str) -> str:
        return to[: self.begin] + self.text + to[self.end :]


@dataclass(frozen=True)
class At:
    """A place: where `find` fits in the function or struct `inside`.

    It must be the only one, unless `occurrence` counts them, from 1 on. With `after`, the function's text up to the first
    place of that pattern is left out.
    """

    inside: str
    find: str
    after: str = ""
    occurrence: int = 0

    # ---- Edits

    def drop(self) -> Edit:
        """Remove the whole statement, with the `if` or the loop that it belongs to."""
        return Edit(self, "drop")

    def replace(self, text: str) -> Edit:
        """Replace the tokens that were found."""
        return Edit(self, "replace", text)

    def argument(self, index: int, text: str) -> Edit:
        """Replace an argument of the call, or the condition of the `if`, whose first parenthesis is in the pattern."""
        return Edit(self, "argument", text, index)

    def template_argument(self, index: int, text: str) -> Edit:
        """Replace an argument of the template whose first angle bracket is in the pattern."""
        return Edit(self, "template_argument", text, index)

    def swap_arguments(self, index: int, other: int) -> Edit:
        """Exchange two arguments of the call."""
        return Edit(self, "swap_arguments", "", index, other)

    def insert_before(self, text: str) -> Edit:
        """Put text before the statement."""
        return Edit(self, "insert_before", text)

    def insert_after(self, text: str) -> Edit:
        """Put text after the statement."""
        return Edit(self, "insert_after", text)

    def swap_with_next(self) -> Edit:
        """Exchange the statement and the one after it."""
        return Edit(self, "swap_with_next")

    # ---- Search

    def __str__(self) -> str:
        place = f"'{self.find}' in '{self.inside}'" if self.inside else f"'{self.find}'"
        return place + (f" after '{self.after}'" if self.after else "")

    def match(self, texts: dict[str, str]) -> tuple[str, Match]:
        """Return the file and the place. Raises: AnchorError if it is not found, or not the only one."""
        scopes = [(file, scope) for file, text in texts.items() for scope in self._scopes(parsed(text))]
        if not scopes:
            raise AnchorError(f"no function or struct is named '{self.inside}'{self._elsewhere(texts)}")
        found = {}
        for file, scope in scopes:
            for match in self._within(parsed(texts[file]), scope):
                found[file, match.begin] = match
        if self.occurrence:
            return self._counted(texts, found)
        if not found:
            raise AnchorError(f"{self} is not found{self._elsewhere(texts)}")
        if len(found) > 1:
            raise AnchorError(
                f"{self} is found {len(found)} times ({_lines(texts, found)}): make the pattern or the name longer, "
                "or give `after` or `occurrence`"
            )
        (((file, _), match),) = found.items()
        return file, match

    def _counted(self, texts: dict[str, str], found: dict[tuple[str, int], Match]) -> tuple[str, Match]:
        if len({file for file, _ in found}) > 1:
            raise AnchorError(f"{self} is found in several files ({_lines(texts, found)}): make the name longer")
        if len(found) < self.occurrence:
            raise AnchorError(f"{self} is found {len(found)} times, not {self.occurrence} ({_lines(texts, found)})")
        key = sorted(found)[self.occurrence - 1]
        return key[0], found[key]

    def _scopes(self, text: Text) -> list[Scope]:
        if not self.inside:
            return [Scope("", 0, len(text.tokens))]
        return [scope for scope in text.scopes if scope.is_named(self.inside)]

    def _within(self, text: Text, scope: Scope) -> list[Match]:
        begin = scope.begin
        if self.after:
            first = matches(text, self.after, scope.begin, scope.end)
            if not first:
                return []
            begin = first[0].end
        return matches(text, self.find, begin, scope.end)

    def _elsewhere(self, texts: dict[str, str]) -> str:
        """Say which functions have the pattern, for who moved or renamed one."""
        names = {}
        for text in map(parsed, texts.values()):
            for match in matches(text, self.find, 0, len(text.tokens)):
                around = [scope for scope in text.scopes if scope.begin <= match.begin < scope.end]
                names[min(around, key=lambda scope: scope.end - scope.begin).name if around else "no function"] = None
        return f"; '{self.find}' is in {', '.join(list(names)[:8])}" if names else f"; no function has '{self.find}'"


def _lines(texts: dict[str, str], found: dict[tuple[str, int], Match]) -> str:
    return ", ".join(f"{file}:{parsed(texts[file]).line(at)}" for file, at in found)


@dataclass(frozen=True)
class Edit:
    """A change of the text at an anchor."""

    at: At
    kind: str
    text: str = ""
    index: int = 0
    other: int = 0

    def change(self, texts: dict[str, str]) -> Change:
        """Return the replacement. Raises: AnchorError if the anchor does not fit one place."""
        file, match = self.at.match(texts)
        text = parsed(texts[file])
        begin, end, new = getattr(self, f"_{self.kind}")(text, match)
        return Change(file, begin, end, new)

    def _filled(self, text: Text, match: Match, old: str) -> str:
        """Fill in the old text and those of the wildcards."""

        def fill(mark: re.Match) -> str:
            return text.source(*match.wildcards[int(mark[1]) - 1]) if mark[1] else old

        return re.sub(r"@(\d*)", fill, self.text)

    def _replaced(self, text: Text, match: Match, begin: int, end: int) -> tuple[int, int, str]:
        return text.spans[begin][0], text.spans[end - 1][1], self._filled(text, match, text.source(begin, end))

    def _replace(self, text: Text, match: Match) -> tuple[int, int, str]:
        return self._replaced(text, match, match.begin, match.end)

    def _argument(self, text: Text, match: Match) -> tuple[int, int, str]:
        return self._replaced(text, match, *self._one_of(self._arguments(text, match), self.index))

    def _template_argument(self, text: Text, match: Match) -> tuple[int, int, str]:
        opens = self._opening(match, "<")
        return self._replaced(text, match, *self._one_of(_split(text, opens, text.closing_angle(opens)), self.index))

    def _swap_arguments(self, text: Text, match: Match) -> tuple[int, int, str]:
        arguments = self._arguments(text, match)
        one, two = sorted((self._one_of(arguments, self.index), self._one_of(arguments, self.other)))
        between = text.text[text.spans[one[1] - 1][1] : text.spans[two[0]][0]]
        return text.spans[one[0]][0], text.spans[two[1] - 1][1], text.source(*two) + between + text.source(*one)

    def _arguments(self, text: Text, match: Match) -> list[tuple[int, int]]:
        opens = self._opening(match, "(")
        return _split(text, opens, text.partner[opens])

    def _opening(self, match: Match, bracket: str) -> int:
        pattern = _pattern(self.at.find)
        if bracket not in pattern:
            raise AnchorError(f"{self.at} must have the '{bracket}' whose arguments are edited")
        return match.places[pattern.index(bracket)]

    def _one_of(self, arguments: list[tuple[int, int]], index: int) -> tuple[int, int]:
        if index >= len(arguments):
            raise AnchorError(f"{self.at} has {len(arguments)} arguments, so none has index {index}")
        return arguments[index]

    def _drop(self, text: Text, match: Match) -> tuple[int, int, str]:
        begin, end = text.statement(match.begin)
        if text.tokens[begin] in ("}", "else"):
            raise AnchorError(f"{self.at} is in no statement that can be removed")
        first, last = text.spans[begin][0], text.spans[end - 1][1]
        line_begin = text.text.rfind("\n", 0, first) + 1
        rest = re.compile(r"[ \t]*(//[^\n]*)?\n").match(text.text, last)
        if rest and not text.text[line_begin:first].strip():
            return line_begin, rest.end(), ""
        return first, last, ""

    def _insert_before(self, text: Text, match: Match) -> tuple[int, int, str]:
        at = text.spans[text.statement(match.begin)[0]][0]
        return at, at, f"{self._filled(text, match, '')} "

    def _insert_after(self, text: Text, match: Match) -> tuple[int, int, str]:
        at = text.spans[text.statement(match.begin)[1] - 1][1]
        return at, at, f" {self._filled(text, match, '')}"

    def _swap_with_next(self, text: Text, match: Match) -> tuple[int, int, str]:
        begin, middle = text.statement(match.begin)
        begin_next, end = text.statement(middle)
        between = text.text[text.spans[middle - 1][1] : text.spans[begin_next][0]]
        return (
            text.spans[begin][0],
            text.spans[end - 1][1],
            text.source(begin_next, end) + between + text.source(begin, middle),
        )


def _split(text: Text, opens: int, closes: int) -> list[tuple[int, int]]:
    """Return the spans of the arguments between two brackets, which commas part."""
    arguments, begin, at = [], opens + 1, opens + 1
    angles = text.tokens[opens] == "<"
    while at < closes:
        if text.tokens[at] == ",":
            arguments.append((begin, at))
            begin = at + 1
        elif text.tokens[at] in _CLOSER:
            at = text.partner[at]
        elif text.tokens[at] == "<" and (angles or _is_template(text, at, closes)):
            at = text.closing_angle(at)
        at += 1
    return [*arguments, (begin, closes)] if closes > opens + 1 else []


def _is_template(text: Text, at: int, end: int) -> bool:
    """Guess whether an angle bracket within a call opens template arguments: then it is closed before a call or a scope."""
    try:
        closes = text.closing_angle(at)
    except AnchorError:
        return False
    return closes + 1 < end and text.tokens[closes + 1] in ("(", "::", "{")


# ---- Texts of a kernel -----------------------------------------------------------------------------------------------


@dataclass
class Program:
    """A kernel's text and the headers of the templates that it includes, by their names."""

    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, templates: Path) -> Program:
        """Read the headers that a kernel includes, and those that they include."""
        program = cls({KERNEL: source})
        program._include(source, templates, templates)
        return program

    def _include(self, text: str, folder: Path, templates: Path) -> None:
        for include in _INCLUDE.findall(text):
            for place in (folder / include, templates / include):
                if not place.is_file():
                    continue
                name = place.resolve().relative_to(templates.resolve()).as_posix()
                if name not in self.texts:
                    self.texts[name] = place.read_text()
                    self._include(self.texts[name], place.parent, templates)
                break

    def edited(self, edits: Sequence[Edit]) -> Program:
        """Return the program with edits, one after the other. Raises: AnchorError if one does not fit one place."""
        texts = dict(self.texts)
        for edit in edits:
            change = edit.change(texts)
            texts[change.file] = change.applied(texts[change.file])
            if texts[change.file] == self.texts[change.file]:
                raise AnchorError(f"{edit.at}: the edit changes nothing")
        return Program(texts)

    def changes_from(self, other: Program) -> dict[str, str]:
        """Return the texts that differ from another program's."""
        return {name: text for name, text in self.texts.items() if text != other.texts.get(name)}
