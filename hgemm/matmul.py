"""The product of two arrays by whichever variant of a library serves them: types and layout are read from the arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hgemm.arrays import View
from hgemm.device import open_device
from hgemm.dtypes import OUTPUTS
from hgemm.errors import ProblemError
from hgemm.kernel import problem_of
from hgemm.kinds import ACTIVATIONS, Kind
from hgemm.launcher import Launcher
from hgemm.readers import READERS
from hgemm.select import Choice, Selector
from hgemm.target import Target
from hgemm.wanted import Wanted

PRECISIONS = ("", "tf32")
"""What f32 may be multiplied as: nothing unless it is asked for, since tf32 keeps 11 of its 24 significant bits."""


@dataclass(frozen=True)
class Options:
    """What a product is beside its arrays."""

    alpha: float = 1.0
    beta: float = 0.0
    activation: str = "none"
    precision: str = ""


@dataclass(frozen=True)
class Asked:
    """A product as it is read from arrays, before a variant is chosen: the part of Facts that says what they must be."""

    kind: Kind
    symbol: str = "matmul"
    align_a: int = 1
    align_b: int = 1
    align_d: int = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kind, name)

    @property
    def a_k_major(self) -> bool:
        return self.kind.layout[0] == "t"

    @property
    def b_k_major(self) -> bool:
        return self.kind.layout[1] == "n"


def launcher_of(library: Any, views: Mapping[str, View], device: int, options: Options) -> Launcher:
    """Choose the variant of a library for arrays on a device, and make it ready.

    Raises: ProblemError where the arrays make no product, UnfitError where no variant serves it.
    """
    views = folded(views)
    size = views["workspace"].size_bytes if "workspace" in views else 0
    selector = library.selector(Target.of(open_device(device)))
    choice = _choose(selector, [_wanted(kind, views, options, size) for kind in kinds(views, options)])
    kernel = library.kernel(choice.symbol)
    problem = problem_of(kernel.facts, views, options.alpha, options.beta)
    return Launcher(kernel, problem, device, size if "workspace" in views else None)


def empty_product(a: Any, b: Any) -> Any:
    """Return a new array for the product, of the type of `a` and on its device. Raises ProblemError where none is made."""
    make = READERS[type(a)].empty
    if make is None:
        raise ProblemError(f"out is missing, and no {type(a).__name__} is made here: bring an array for D")
    shape_a, shape_b = a.shape, b.shape
    if len(shape_a) == len(shape_b) == 2:
        return make(a, (shape_a[0], shape_b[1]))
    if not {len(shape_a), len(shape_b)} <= {2, 3}:
        raise ProblemError(f"A is {tuple(shape_a)} and B {tuple(shape_b)}: bring 2 axes, or 3 with a batch")
    batch = max(shape[0] for shape in (shape_a, shape_b) if len(shape) == 3)
    return make(a, (batch, shape_a[-2], shape_b[-1]))


def kinds(views: Mapping[str, View], options: Options) -> Iterator[Kind]:
    """Yield the kinds of product that arrays can be read as: several where an axis of one element fits two layouts.

    Raises: ProblemError where a type or the way an array lies serves none.
    """
    if options.activation not in ACTIVATIONS:
        raise ProblemError(f"activation {options.activation!a} is unknown: use {', '.join(ACTIVATIONS)}")
    if options.precision not in PRECISIONS:
        raise ProblemError(f"precision {options.precision!a} is unknown: use tf32, for f32 arrays")
    for name in "ABD":
        if views[name].dtype not in OUTPUTS:
            raise ProblemError(f"{name} is {views[name].dtype}: use {', '.join(OUTPUTS)}")
        if len(views[name].shape) not in (2, 3):
            raise ProblemError(f"{name} has {len(views[name].shape)} axes, not 2, or 3 with a batch")
    a_words, b_words = _contiguous(views["A"], "A", "tn"), _contiguous(views["B"], "B", "tn")
    bias = "none"
    if "bias" in views:  # where m is n, that of a linear layer
        bias = "row" if views["bias"].shape[-1:] == views["B"].shape[-1:] else "column"
    types = (*(_multiplied(views[name].dtype, name, options) for name in "AB"), views["D"].dtype)
    for letters in product(a_words, b_words):
        yield Kind("".join(letters), *types, bias=bias, activation=options.activation)


def _multiplied(dtype: str, name: str, options: Options) -> str:
    """Return what the elements of a matrix are multiplied as."""
    if dtype == "f32" and options.precision != "tf32":
        raise ProblemError(
            f"{name} is f32, of whose 24 significant bits tensor cores multiply 11: allow that by precision='tf32', of the "
            "operator of torch by torch.set_float32_matmul_precision('high'), or bring f16 or bf16"
        )
    return "tf32" if dtype == "f32" else dtype


def folded(views: Mapping[str, View]) -> dict[str, View]:
    """Return the views with a batch of A and D folded into their rows, where one B serves it all: one larger product."""
    a, b, d = (views[name] for name in "ABD")
    shared = len(b.shape) == 2 or b.shape[0] == 1 or b.strides[0] == 0
    row_bias = "bias" not in views or views["bias"].shape == b.shape[-1:]
    stacked = [name for name in "ADC" if name in views]
    if not (
        shared and row_bias and len(a.shape) == 3 and all(_rows_follow(views[name], a.shape[0]) for name in stacked)
    ):
        return dict(views)
    return {**views, **{name: _fold(views[name]) for name in stacked}}


def _rows_follow(matrices: View, batch: int) -> bool:
    """Tell whether the rows of the next matrix of a batch go on where one's end, at the same distance."""
    if len(matrices.shape) != 3 or matrices.shape[0] != batch:
        return False
    return matrices.strides[2] == 1 and matrices.strides[0] == matrices.shape[1] * matrices.strides[1]


def _fold(matrices: View) -> View:
    batch, rows, columns = matrices.shape
    return replace(matrices, shape=(batch * rows, columns), strides=matrices.strides[1:])


def _contiguous(matrix: View, name: str, letters: str) -> list[str]:
    """Return the letters of an operand whose last axis (the first letter) or the one before it is contiguous."""
    found = [letter for axis, letter in ((-1, letters[0]), (-2, letters[1])) if _is_contiguous(matrix, axis)]
    if not found:
        raise ProblemError(
            f"{name} {matrix.shape} with strides {matrix.strides} is contiguous along neither of its last two axes: copy it"
        )
    return found


def _is_contiguous(matrix: View, axis: int) -> bool:
    return matrix.strides[axis] == 1 or matrix.shape[axis] <= 1


def _wanted(kind: Kind, views: Mapping[str, View], options: Options, workspace_bytes: int) -> Wanted:
    problem = problem_of(Asked(kind), views, options.alpha, options.beta)
    if options.beta and "C" not in views:
        raise ProblemError(f"beta is {options.beta} and there is no C: bring c, which may be out itself")
    return Wanted.of(kind, problem, workspace_bytes)


def _choose(selector: Selector, wanted: list[Wanted]) -> Choice:
    """Return the best variant for any of several readings of one product."""
    found = [choice for choice in map(selector.find, wanted) if choice]
    if not found:
        return selector.choose(wanted[0])  # which says why there is none
    return min(found, key=lambda choice: (choice.way, choice.clocks))
