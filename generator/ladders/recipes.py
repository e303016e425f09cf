"""Recipes: published kernels as specs, step by step. Each file of `published/` is one ladder.

A step lists only the options that it changes over the step before it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generator.arch import parse_arch
from generator.errors import RequestError, closest_words
from generator.spec import Texts, Tile
from generator.sweep import overridden, read_toml, texts_in
from hgemm.cases import Shape
from hgemm.errors import deprecated

FOLDER = Path(__file__).with_name("published")
Published = Mapping[str, float]
"""Published TFLOP/s by problem, `4096x4096x4096`."""

_Kinds = Mapping[str, "type | tuple[type, ...]"]
_SYSTEM_FIELDS: _Kinds = {"title": str, "source": str, "machine": str, "shapes": list, "step": list, "spec": dict}
_SYSTEM_EXTRAS: _Kinds = {"cublas": dict, "card": str, "note": str}
_STEP_FIELDS: _Kinds = {"name": str, "what": str}
_STEP_EXTRAS: _Kinds = {
    "tflops": dict,
    "ratio": (int, float),
    "fell": bool,
    "note": str,
    "tuned": dict,
    "baseline_kernel": dict,
}
_SOURCE = re.compile(r"\w+\.cu", re.ASCII)
_RENAMED = {"rival": "baseline_kernel"}
"""Old names of a step's fields. They stay accepted for one release."""


@dataclass(frozen=True)
class BaselineSource:
    """A hand-written kernel in a file of `published/`. A CTA computes one `tile` of D."""

    source: str
    tile: Tile
    threads: int
    smem_bytes: int

    @classmethod
    def read(cls, table: Mapping[str, Any], place: str) -> BaselineSource:
        """Read it from a step's table. Raises: RequestError if the table is malformed."""
        kinds: _Kinds = {"source": str, "tile": str, "threads": int, "smem_bytes": int}
        _check(table, kinds, kinds, f"{place}, baseline_kernel,")
        if not _SOURCE.fullmatch(table["source"]) or not (FOLDER / table["source"]).is_file():
            known = ", ".join(sorted(path.name for path in FOLDER.glob("*.cu")))
            raise RequestError(f"recipes {place}: no baseline kernel {table['source']!a}: use {known}")
        return cls(**{**table, "tile": Tile.parse(table["tile"])})


@dataclass(frozen=True)
class Step:
    """One step of a ladder.

    Fields: `texts` are all options of its spec; `changed` are the options that differ from the step before.
        `tflops` (by problem), `ratio` (speedup over the step before, if no rates were published) and `fell` (the step was
        slower than the one before) are published.
        `note` tells how our kernel differs from the published one.
        `tuned` maps an architecture to options that are faster there; they apply to this step only.
        `baseline_kernel` is run instead of a kernel of ours; such a step has no spec.
    """

    ladder: str
    name: str
    what: str
    texts: Texts
    changed: tuple[str, ...]
    tflops: Published
    ratio: float | None
    fell: bool
    note: str
    tuned: Mapping[str, Texts]
    baseline_kernel: BaselineSource | None

    def texts_on(self, arch: str) -> Texts:
        """Return all options of the step's spec for an architecture."""
        return overridden(self.texts, {**self.tuned.get(arch, {}), "arch": arch})

    def note_on(self, arch: str) -> str:
        """Return the note, and the options tuned for an architecture."""
        tuned = ", ".join(f"{name} {text}" for name, text in self.tuned.get(arch, {}).items())
        return f"{self.note} Tuned for {arch}: {tuned}.".strip() if tuned else self.note

    @property
    def path(self) -> str:
        """The recipe's name: `s3/04`."""
        return f"{self.ladder}/{self.name}"


@dataclass(frozen=True)
class PublishedLadder:
    """One publication: its source, the problems to run, and its steps in order.

    Fields: `machine` is the published machine; `card` is its table in the cost model, or empty; `cublas` is the published rate
        of cuBLAS there.
    """

    name: str
    title: str
    source: str
    machine: str
    card: str
    note: str
    shapes: tuple[str, ...]
    cublas: Published
    steps: tuple[Step, ...]

    @property
    def arch(self) -> str:
        """The architecture that its kernels were written for."""
        return self.steps[0].texts["arch"]


@cache
def ladder_names() -> tuple[str, ...]:
    """Return the names of the ladders, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def load_ladder(name: str) -> PublishedLadder:
    """Return a ladder by its name. Raises: RequestError if it is unknown, or its file is malformed."""
    if name not in ladder_names():
        raise RequestError(f"no ladder is named '{name}': choose from {', '.join(ladder_names())}")
    return read_ladder(FOLDER / f"{name}.toml")


def read_ladder(path: Path) -> PublishedLadder:
    """Read the file of a ladder. Raises: RequestError that names the file and the mistake."""
    document = read_toml(path)
    _check(document, {**_SYSTEM_FIELDS, **_SYSTEM_EXTRAS}, _SYSTEM_FIELDS, f"{path}")
    return PublishedLadder(
        name=path.stem,
        **{name: document[name] for name in ("title", "source", "machine")},
        card=document.get("card", ""),
        note=document.get("note", ""),
        shapes=tuple(map(_shape, document["shapes"])),
        cublas=_published(document.get("cublas", {})),
        steps=tuple(_steps(document, path)),
    )


def _steps(document: Mapping[str, Any], path: Path) -> Iterator[Step]:
    texts: Texts = texts_in(document["spec"], path)
    for table in document["step"]:
        place = f"{path}, step {table.get('name', '')!r}"
        for old in _RENAMED.keys() & table.keys():
            deprecated(old, _RENAMED[old])
        table = {_RENAMED.get(name, name): value for name, value in table.items()}
        own = {name: table[name] for name in table if name in {**_STEP_FIELDS, **_STEP_EXTRAS}}
        _check(own, {**_STEP_FIELDS, **_STEP_EXTRAS}, _STEP_FIELDS, place)
        changed = texts_in({name: value for name, value in table.items() if name not in own}, path)
        texts = overridden(texts, changed)
        yield Step(
            ladder=path.stem,
            name=own["name"],
            what=own["what"],
            texts=texts,
            changed=tuple(changed),
            tflops=_published(own.get("tflops", {})),
            ratio=own.get("ratio"),
            fell=own.get("fell", False),
            note=own.get("note", ""),
            tuned={parse_arch(arch): _tuned(table, place, path) for arch, table in own.get("tuned", {}).items()},
            baseline_kernel=(BaselineSource.read(own["baseline_kernel"], place) if "baseline_kernel" in own else None),
        )


def _tuned(table: Any, place: str, path: Path) -> Texts:
    if not isinstance(table, dict):
        raise RequestError(f"recipes {place}: tuned has the wrong type: write a table of options for each architecture")
    return texts_in(table, path)


def _check(table: Mapping[str, Any], known: _Kinds, needed: _Kinds, place: str) -> None:
    missing = [name for name in needed if name not in table]
    unknown = [name for name in table if name not in known]
    wrong = [name for name, value in table.items() if name in known and not isinstance(value, known[name])]
    if missing or unknown or wrong:
        kinds = {"missing": missing, "unknown": unknown, "wrong type": wrong}
        mistakes = "; ".join(f"{what}: {', '.join(names)}" for what, names in kinds.items() if names)
        raise RequestError(f"recipes {place}: {mistakes}")


def _shape(text: str) -> str:
    """Return a problem in full: `4096` is short for `4096x4096x4096`."""
    return str(Shape.parse("x".join([text] * 3) if text.isdecimal() else text))


def _published(table: Mapping[str, Any]) -> Published:
    return {_shape(name): float(value) for name, value in table.items()}


# ==== Recipes by name ====


def steps() -> tuple[Step, ...]:
    """Return every recipe, ladder by ladder."""
    return tuple(step for name in ladder_names() for step in load_ladder(name).steps)


def find(globs: str) -> list[Step]:
    """Return the recipes that match any glob, in the order of the ladders: `s3/*,s1/3.1`. `s3` means `s3/*`.

    Raises: RequestError if a glob matches none.
    """
    words = [word.strip() for word in globs.split(",") if word.strip()]
    patterns = [f"{word}/*" if word in ladder_names() else word for word in words]
    paths = [step.path for step in steps()]
    for pattern in patterns or [""]:
        if not fnmatch.filter(paths, pattern):
            near = closest_words(pattern, paths, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else "`hgemm ladder` lists them"
            raise RequestError(f"no recipe is named '{pattern}': {hint}")
    return [step for step in steps() if any(fnmatch.fnmatchcase(step.path, pattern) for pattern in patterns)]


def load_recipes(globs: str, archs: str = "") -> list[Texts]:
    """Return the requests of recipes for `sweep`, on some architectures (`sm_80,90`) or each on its own.

    Baseline kernels are skipped. Raises: RequestError if a glob matches none, or only baseline kernels match.
    """
    found = find(globs)
    ours = [step for step in found if step.baseline_kernel is None]
    if not ours:
        raise RequestError(f"{found[0].path} is a hand-written baseline kernel: run it with `hgemm ladder`")
    named = [parse_arch(word) for word in archs.split(",") if word.strip()]
    return [step.texts_on(arch) for step in ours for arch in named or [step.texts["arch"]]]


def complete(incomplete: str) -> Sequence[str]:
    """Return the names of recipes, and the globs of whole ladders, that start with `incomplete`."""
    names = [*(f"{ladder}/*" for ladder in ladder_names()), *(step.path for step in steps())]
    return [name for name in names if name.startswith(incomplete)]
