"""The way from arrays to a launch that was made before: what each call of a product does, however its variant is chosen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hgemm.arrays import ARRAY_ADAPTERS, Signature, View, stream_handle
from hgemm.device import open_device
from hgemm.dtypes import OUTPUTS
from hgemm.errors import ProblemError
from hgemm.kernel import Addresses, Kernel, Launcher, device_of, problem_of
from hgemm.problem import ACTIVATIONS, Kind, Problem
from hgemm.selection import Choice, Selector
from hgemm.selection_query import SelectionQuery, Target, with_dense_strides

MAX_LAUNCHERS = 4096
"""Geometries that are remembered."""
_ALIGN_BITS = 31
"""What an address may be a multiple of for a variant's sake: 8 elements of 4 bytes."""


class LaunchCache:
    """Launchers by the signatures of the arrays, and by options that `make` is told beside their views.

    `make` returns a launcher on a device. Threads may share this: two that meet a geometry first both make one, and
    the later one is kept.
    """

    def __init__(self, make: Callable[[Mapping[str, View], int, Any], Launcher]) -> None:
        self._make = make
        self._launchers: dict[Hashable, Launcher | None] = {}
        self._last: tuple[Hashable, Launcher | None, Addresses] = (None, None, ())
        """What was given in the last call, and what followed from it: to compare is cheaper than to find."""

    def run(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        c: Any = None,
        workspace: Any = None,
        stream: Any = None,
        options: Hashable = None,
    ) -> Any:
        """Launch on `stream`, or without one on that on which the library of `out` works now, and return `out`."""
        reader = ARRAY_ADAPTERS[type(out)]
        read_out = reader.read(out)
        others = None if bias is None and c is None and workspace is None else (_read(bias), _read(c), _read(workspace))
        given = (ARRAY_ADAPTERS[type(a)].read(a), ARRAY_ADAPTERS[type(b)].read(b), read_out, others, options)
        last, launcher, addresses = self._last
        if given != last:
            launcher, addresses = self._find(given, (a, b, out, bias, c, workspace))
        if launcher is not None:
            if stream is None:
                stream = reader.stream(read_out)
            elif type(stream) is not int:
                stream = stream_handle(stream)
            launcher.launch(addresses, stream)
        return out

    def bind(
        self, a: Any, b: Any, out: Any, bias: Any = None, c: Any = None, workspace: Any = None
    ) -> Callable[..., Any]:
        """Return a function of a stream, or of nothing, that launches on these very arrays and returns `out`.

        They are checked now and not again: their addresses, sizes and strides must stay what they are; it keeps them alive.
        """
        arrays = (a, b, out, bias, c, workspace)
        reader = ARRAY_ADAPTERS[type(out)]
        read_out = reader.read(out)
        others = tuple(map(_read, arrays[3:])) if any(array is not None for array in arrays[3:]) else None
        launcher, addresses = self._find((_read(a), _read(b), read_out, others, None), arrays)

        def run(stream: Any = None) -> Any:
            if launcher is not None:
                given = reader.stream(read_out) if stream is None else stream
                launcher.launch(addresses, given if type(given) is int else stream_handle(given))
            return arrays[2]

        return run

    def _find(self, given: tuple, arrays: tuple) -> tuple[Launcher | None, Addresses]:
        """Return the launcher of a geometry, None where D has no elements, and the addresses as it takes them."""
        (a, *like_a), (b, *like_b), (d, *like_d), others, options = given
        bias = c = workspace = 0
        more = None
        if others is not None:
            bias, c, workspace = (read[0] for read in others)
            more = tuple((*read[1:], read[0] & _ALIGN_BITS) for read in others)
        low: Hashable = (a | b | d) & _ALIGN_BITS
        if low:
            low = (a & _ALIGN_BITS, b & _ALIGN_BITS, d & _ALIGN_BITS)
        key = (*like_a, *like_b, *like_d, low, more, options)
        found = self._launchers.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._add(key, {name: array for name, array in zip(_NAMES, arrays) if array is not None}, options)
        addresses = (a, b, c, d, bias, workspace)
        self._last = (given, found, addresses)
        return found, addresses

    def _add(self, key: Hashable, arrays: Mapping[str, Any], options: Hashable) -> Launcher | None:
        views = {name: ARRAY_ADAPTERS[type(array)].view(array, name) for name, array in arrays.items()}
        made = self._make(views, device_of(views), options) if 0 not in views["D"].shape else None
        if len(self._launchers) >= MAX_LAUNCHERS:
            self._launchers.clear()
        self._launchers[key] = made
        return made


_NAMES = ("A", "B", "D", "bias", "C", "workspace")
_ABSENT: Signature = (0, None)
_UNKNOWN: Any = object()


def _read(array: Any) -> Signature:
    return ARRAY_ADAPTERS[type(array)].read(array) if array is not None else _ABSENT


# ==== A product whose variant is chosen once, for many calls ====


class MatmulPlan(LaunchCache):
    """A variant for products of one size, loaded, so that the first call may be captured in a graph.

    `plan(a, b, out, bias=None, c=None, workspace=None, stream=None)` launches as Library.matmul does, with the plan's variant,
    alpha and beta, and returns `out` without waiting. `plan.bind(a, b, out, ...)` returns a function that does so again and
    again on the same arrays, at the least cost. Threads may share both. Raises: ProblemError where the arrays are not of the
    plan's sizes, or the variant does not take them.
    """

    def __init__(self, kernel: Kernel, problem: Problem, device: int) -> None:
        super().__init__(self._launcher)
        self.kernel, self.problem, self.device = kernel, problem, device
        kernel.prepare(device)

    __call__ = LaunchCache.run

    def __repr__(self) -> str:
        p = self.problem
        return f"MatmulPlan({p.m}x{p.n}x{p.k}, batch {p.batch}: {self.kernel.traits.symbol})"

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that a call needs, 0 for most variants; used by one call at a time."""
        return self.kernel.workspace_bytes(self.problem.m, self.problem.n, self.problem.batch)

    def _launcher(self, views: Mapping[str, View], device: int, options: None) -> Launcher:
        if device != self.device:
            raise ProblemError(f"the arrays lie on device {device}, and the plan is for device {self.device}")
        given = problem_of(self.kernel.traits, views, self.problem.alpha, self.problem.beta)
        wrong = [
            f"{name} is {getattr(given, name)}, not {getattr(self.problem, name)}"
            for name in ("m", "n", "k", "batch")
            if getattr(given, name) != getattr(self.problem, name)
        ]
        if wrong:
            raise ProblemError(f"the arrays are not those of {self}: {', '.join(wrong)}")
        size = views["workspace"].size_bytes if "workspace" in views else None
        return Launcher(self.kernel, given, device, size)


def make_plan(library: Any, problem: Problem, kind: Kind, device: int, workspace_bytes: int) -> MatmulPlan:
    """Choose the variant of a library for a problem on a device. Raises UnfitError where none serves it."""
    problem = with_dense_strides(problem, kind)
    target = Target.of(open_device(device))
    choice = library.select(SelectionQuery.of(kind, problem, workspace_bytes), target)
    return MatmulPlan(library.kernel(choice.symbol), problem, device)


# ==== The product of two arrays by whichever variant of a library serves them ====


PRECISIONS = ("", "tf32")
"""What f32 may be multiplied as: nothing unless it is asked for, since tf32 keeps 11 of its 24 significant bits."""


@dataclass(frozen=True)
class MatmulOptions:
    """What a product is beside its arrays."""

    alpha: float = 1.0
    beta: float = 0.0
    activation: str = "none"
    precision: str = ""


@dataclass(frozen=True)
class MatmulRequest:
    """A product as it is read from arrays, before a variant is chosen: the part of LaunchTraits that says what they must be."""

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


def launcher_of(library: Any, views: Mapping[str, View], device: int, options: MatmulOptions) -> Launcher:
    """Choose the variant of a library for arrays on a device, and make it ready.

    Raises: ProblemError where the arrays make no product, UnfitError where no variant serves it.
    """
    views = fold_batch(views)
    size = views["workspace"].size_bytes if "workspace" in views else 0
    selector = library.selector(Target.of(open_device(device)))
    choice = _choose(selector, [_wanted(kind, views, options, size) for kind in matching_kinds(views, options)])
    kernel = library.kernel(choice.symbol)
    problem = problem_of(kernel.traits, views, options.alpha, options.beta)
    return Launcher(kernel, problem, device, size if "workspace" in views else None)


def empty_product(a: Any, b: Any) -> Any:
    """Return a new array for the product, of the type of `a` and on its device. Raises ProblemError where none is made."""
    make = ARRAY_ADAPTERS[type(a)].empty
    if make is None:
        raise ProblemError(f"out is missing, and no {type(a).__name__} is made here: bring an array for D")
    shape_a, shape_b = a.shape, b.shape
    if len(shape_a) == len(shape_b) == 2:
        return make(a, (shape_a[0], shape_b[1]))
    if not {len(shape_a), len(shape_b)} <= {2, 3}:
        raise ProblemError(f"A is {tuple(shape_a)} and B {tuple(shape_b)}: bring 2 axes, or 3 with a batch")
    batch = max(shape[0] for shape in (shape_a, shape_b) if len(shape) == 3)
    return make(a, (batch, shape_a[-2], shape_b[-1]))


def matching_kinds(views: Mapping[str, View], options: MatmulOptions) -> Iterator[Kind]:
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


def _multiplied(dtype: str, name: str, options: MatmulOptions) -> str:
    """Return what the elements of a matrix are multiplied as."""
    if dtype == "f32" and options.precision != "tf32":
        raise ProblemError(
            f"{name} is f32, of whose 24 significant bits tensor cores multiply 11: allow that by precision='tf32', of the "
            "operator of torch by torch.set_float32_matmul_precision('high'), or bring f16 or bf16"
        )
    return "tf32" if dtype == "f32" else dtype


def fold_batch(views: Mapping[str, View]) -> dict[str, View]:
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


def _wanted(kind: Kind, views: Mapping[str, View], options: MatmulOptions, workspace_bytes: int) -> SelectionQuery:
    problem = problem_of(MatmulRequest(kind), views, options.alpha, options.beta)
    if options.beta and "C" not in views:
        raise ProblemError(f"beta is {options.beta} and there is no C: bring c, which may be out itself")
    return SelectionQuery.of(kind, problem, workspace_bytes)


def _choose(selector: Selector, wanted: list[SelectionQuery]) -> Choice:
    """Return the best variant for any of several readings of one product."""
    found = [choice for choice in map(selector.find, wanted) if choice]
    if not found:
        return selector.choose(wanted[0])  # which says why there is none
    return min(found, key=lambda choice: (choice.code_match, choice.clocks))
