"""Products of arrays: the cache of launchers behind each call, plans, and the choice of a kernel for given arrays.

A call computes the signatures of its arrays and looks up a Launcher. Only the first call of a geometry reads the arrays'
views, selects a kernel and loads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol

from hgemm.arrays import ARRAY_ADAPTERS, Signature, View, new_array, shape_of, stream_handle
from hgemm.capture import preparing
from hgemm.device import open_device
from hgemm.dtypes import OUTPUTS
from hgemm.epilogue import NONE, Epilogue, columns_of_d, parse_epilogue
from hgemm.errors import HgemmError, ProblemError, unknown_word
from hgemm.kernel import Addresses, Kernel, Launcher, bias_kind_of, device_of, problem_of, split_inputs, split_results
from hgemm.launch_traits import INPUT, OUTPUT
from hgemm.problem import ACTIVATIONS, Kind, Problem
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target, with_dense_strides
from hgemm.workspace import Allocate, workspace_address


class KernelSource(Protocol):
    """The part of a Library that products use."""

    def selector(self, target: Target) -> Selector: ...
    def kernel(self, symbol: str) -> Kernel: ...
    @property
    def workspace_bytes(self) -> int: ...


# ==== The cache of launchers ====

MAX_LAUNCHERS = 4096
"""Geometries that a cache holds."""
_ALIGN_BITS = 31
"""The address bits that matter for alignment: kernels require at most 8 elements of 4 bytes."""


class LaunchCache:
    """Launchers by the geometry of the arrays and by options.

    `make(views, device, options, allocate)` returns the launcher of a new geometry. `allocate` takes memory from the library of
    `out`. Threads may share a cache: if two threads meet a new geometry, both make a launcher and the later one is kept.
    """

    def __init__(self, make: Callable[[Mapping[str, View], int, Any, Allocate], Launcher]) -> None:
        self._make = make
        self._launchers: dict[Hashable, Launcher | None] = {}
        self._last: tuple[Hashable, Launcher | None, Addresses] = (None, None, ())
        """The arguments of the last call and its launcher: a comparison is cheaper than a lookup."""

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
        """Launch on `stream`, or on the current stream of `out`'s library, and return `out`."""
        adapter = ARRAY_ADAPTERS[type(out)]
        out_signature = adapter.read(out)
        others = None if bias is None and c is None and workspace is None else (_read(bias), _read(c), _read(workspace))
        given = (ARRAY_ADAPTERS[type(a)].read(a), ARRAY_ADAPTERS[type(b)].read(b), out_signature, others, options)
        last, launcher, addresses = self._last
        if stream is None:
            stream = adapter.stream(out_signature)
        elif type(stream) is not int:
            stream = stream_handle(stream)
        if given != last:
            launcher, addresses = self._find(given, (a, b, out, bias, c, workspace), stream)
        if launcher is not None:
            launcher.launch(addresses, stream)
        return out

    def run_expression(
        self, a: Any, b: Any, out: Any, workspace: Any, stream: Any, options: Hashable, arrays: Mapping[str, Any]
    ) -> Any:
        """Launch a kernel with an expression, as `run`.

        `arrays` has each input and each further result in order, by its name as an operand; None for numbers.
        """
        adapter = ARRAY_ADAPTERS[type(out)]
        out_signature = adapter.read(out)
        given = (
            _read(a),
            _read(b),
            out_signature,
            (_ABSENT, _ABSENT, *map(_read, (workspace, *arrays.values()))),
            options,
        )
        handle = adapter.stream(out_signature) if stream is None else stream_handle(stream)
        launcher, addresses = self._find(
            given, (a, b, out, None, None, workspace, *arrays.values()), handle, (*arrays,)
        )
        if launcher is not None:
            launcher.launch(addresses, handle)
        return out

    def bind(
        self, a: Any, b: Any, out: Any, bias: Any = None, c: Any = None, workspace: Any = None
    ) -> Callable[..., Any]:
        """Return a function `run(stream=None)` that launches on these arrays and returns `out`.

        The arrays are checked once, here. The function keeps them alive; their addresses, sizes and strides must not change.
        """
        return self._bind((a, b, out, bias, c, workspace))

    def _bind(
        self, arrays: tuple[Any, ...], inputs: tuple[str, ...] = (), options: Hashable = None
    ) -> Callable[..., Any]:
        adapter = ARRAY_ADAPTERS[type(arrays[2])]
        out_signature = adapter.read(arrays[2])
        others = tuple(map(_read, arrays[3:])) if inputs or any(array is not None for array in arrays[3:]) else None
        given = (_read(arrays[0]), _read(arrays[1]), out_signature, others, options)
        launcher, addresses = self._find(given, arrays, adapter.stream(out_signature), inputs)

        def run(stream: Any = None) -> Any:
            if launcher is not None:
                given = adapter.stream(out_signature) if stream is None else stream
                launcher.launch(addresses, given if type(given) is int else stream_handle(given))
            return arrays[2]

        return run

    def _find(
        self, given: tuple[Any, ...], arrays: tuple[Any, ...], stream: int, inputs: tuple[str, ...] = ()
    ) -> tuple[Launcher | None, Addresses]:
        """Return the launcher of a call, None if D is empty, and the addresses to launch it with."""
        (a, *like_a), (b, *like_b), (d, *like_d), others, options = given
        bias = c = workspace = 0
        more: Hashable = None
        more_addresses: Sequence[int] = ()
        if others is not None:
            bias, c, workspace, *more_addresses = (read[0] for read in others)
            more = tuple((*read[1:], read[0] & _ALIGN_BITS) for read in others)
        low: Hashable = (a | b | d) & _ALIGN_BITS
        if low:
            low = (a & _ALIGN_BITS, b & _ALIGN_BITS, d & _ALIGN_BITS)
        key = (*like_a, *like_b, *like_d, low, more, options)
        found = self._launchers.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            with preparing(stream) as preparation:
                names = (*_NAMES, *inputs)
                found = self._add(
                    key, {name: array for name, array in zip(names, arrays) if array is not None}, options
                )
            if preparation.forbidden:  # a later call finds a better kernel
                self._launchers.pop(key, None)
                return found, (a, b, c, d, bias, workspace, *more_addresses)
        addresses = (a, b, c, d, bias, workspace, *more_addresses)
        self._last = (given, found, addresses)
        return found, addresses

    def _add(self, key: Hashable, arrays: Mapping[str, Any], options: Hashable) -> Launcher | None:
        views = {name: ARRAY_ADAPTERS[type(array)].view(array, name) for name, array in arrays.items()}
        made = None
        if 0 not in views["D"].shape:
            made = self._make(views, device_of(views), options, ARRAY_ADAPTERS[type(arrays["D"])].allocate)
        if len(self._launchers) >= MAX_LAUNCHERS:
            self._launchers.clear()
        self._launchers[key] = made
        return made


_NAMES = ("A", "B", "D", "bias", "C", "workspace")
_ABSENT: Signature = (0, None)
_UNKNOWN: Any = object()


def _read(array: Any) -> Signature:
    return ARRAY_ADAPTERS[type(array)].read(array) if array is not None else _ABSENT


# ==== Plans: a kernel chosen once, for many calls ====


class MatmulPlan(LaunchCache):
    """A kernel for products of one size, chosen and loaded. CUDA graphs can capture its first call.

    `plan(a, b, out, bias=None, c=None, workspace=None, stream=None)` launches as Library.matmul does, with the plan's kernel,
    alpha and beta. It returns `out` without waiting. A plan with an expression takes its `inputs`, too,
    and `out` as a tuple if it has several results.
    `plan.bind(a, b, out, ...)` returns a function that repeats a launch on
    the same arrays at the lowest cost. Threads may share both.

    Raises: ProblemError if the arrays do not have the plan's sizes, or the kernel does not support them.
    """

    def __init__(self, kernel: Kernel, problem: Problem, device: int, automatic_bytes: int = 0) -> None:
        super().__init__(self._launcher)
        self.kernel, self.problem, self.device = kernel, problem, device
        self._automatic_bytes = automatic_bytes
        kernel.prepare(device)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        c: Any = None,
        workspace: Any = None,
        stream: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Launch on `stream`, or on the current stream of `out`'s library, and return `out`."""
        if inputs is None and not self.kernel.traits.outputs:
            return self.run(a, b, out, bias, c, workspace, stream)
        d, arrays, scalars = self._operands(out, inputs)
        self.run_expression(a, b, d, workspace, stream, scalars, arrays)
        return out

    def bind(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        c: Any = None,
        workspace: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Return a function `run(stream=None)` that launches on these arrays and returns `out`, as LaunchCache.bind."""
        plain = inputs is None and not self.kernel.traits.outputs
        d, arrays, scalars = (out, {}, None) if plain else self._operands(out, inputs)
        run = self._bind((a, b, d, bias, c, workspace, *arrays.values()), (*arrays,), scalars)
        if d is out:
            return run

        def run_all(stream: Any = None) -> Any:
            run(stream)
            return out

        return run_all

    def _operands(
        self, out: Any, inputs: Mapping[str, Any] | None
    ) -> tuple[Any, dict[str, Any], tuple[tuple[str, float], ...]]:
        """Return D, the arrays of the expression's inputs and further results in their order, None for numbers, and the numbers."""
        inputs = inputs or {}
        arrays, numbers = split_inputs(inputs)
        d, further = split_results(self.kernel.traits.epilogue, out)
        epilogue = self.kernel.traits.epilogue
        names = [one.name for one in epilogue.operands] if epilogue else []
        if unknown := inputs.keys() - {*names}:
            raise ProblemError(f"{self} has no input {', '.join(sorted(unknown))}: it has {', '.join(names) or 'none'}")
        return d, {INPUT + name: arrays.get(name) for name in names} | further, tuple(sorted(numbers.items()))

    def __repr__(self) -> str:
        p = self.problem
        return f"MatmulPlan({p.m}x{p.n}x{p.k}, batch {p.batch}: {self.kernel.traits.symbol})"

    @property
    def workspace_bytes(self) -> int:
        """The size of the workspace that a call uses, 0 for most kernels. Only one call at a time may use it."""
        p = self.problem
        return self.kernel.workspace_bytes(p.m, p.n, p.batch, p.options)

    def _launcher(
        self, views: Mapping[str, View], device: int, scalars: tuple[tuple[str, float], ...] | None, allocate: Allocate
    ) -> Launcher:
        if device != self.device:
            raise ProblemError(f"the arrays lie on device {device}: the plan is for device {self.device}")
        p = self.problem
        given = problem_of(self.kernel.traits, views, p.alpha, p.beta, dict(scalars or ()))
        wrong = [
            f"{name} is {getattr(given, name)}, not {getattr(self.problem, name)}"
            for name in ("m", "n", "k", "batch")
            if getattr(given, name) != getattr(self.problem, name)
        ]
        if wrong:
            raise ProblemError(f"the arrays do not fit {self}: {', '.join(wrong)}")
        given = replace(given, options=self.problem.options)
        return _with_workspace(self.kernel, given, device, views, self._automatic_bytes, allocate)


def _with_workspace(
    kernel: Kernel, problem: Problem, device: int, views: Mapping[str, View], automatic_bytes: int, allocate: Allocate
) -> Launcher:
    """Return a launcher with the workspace among the arrays or, if there is none, an automatic one."""
    if "workspace" in views:
        return Launcher(kernel, problem, device, views["workspace"].size_bytes)
    if not automatic_bytes:
        return Launcher(kernel, problem, device)
    return Launcher(
        kernel,
        problem,
        device,
        workspace_of=lambda device, stream: workspace_address(device, stream, automatic_bytes, allocate),
    )


def make_plan(
    library: KernelSource,
    problem: Problem,
    kind: Kind,
    device: int,
    workspace_bytes: int | None,
    batch_invariant: bool = False,
    cublas_order: bool = False,
    epilogue: Epilogue | None = None,
) -> MatmulPlan:
    """Choose the kernel of a library for a problem on a device. Raises UnsupportedError if there is none.

    Fields: `workspace_bytes` is the size of the caller's workspace, or None for an automatic one.
    """
    automatic_bytes = library.workspace_bytes if workspace_bytes is None else 0
    workspace_bytes = automatic_bytes if workspace_bytes is None else workspace_bytes
    if epilogue:
        kind = replace(kind, epilogue=epilogue.hash)
        problem = replace(problem, ldd=problem.ldd or columns_of_d(epilogue, problem.n))
    problem = with_dense_strides(problem, kind)
    target = Target.of(open_device(device))
    query = SelectionQuery.of(kind, problem, workspace_bytes, epilogue)
    query = replace(query, batch_invariant=batch_invariant, cublas_order=cublas_order)
    choice = library.selector(target).choose(query)
    problem = replace(problem, options=choice.options)
    kernel = library.kernel(choice.symbol)
    if epilogue and kernel.traits.epilogue != epilogue:  # kinds have its hash only
        raise ProblemError(f"{choice.symbol} has another expression: {kernel.traits.epilogue}")
    return MatmulPlan(kernel, problem, device, automatic_bytes)


# ==== The choice of a kernel for given arrays ====

PRECISIONS = ("", "tf32")
"""How f32 arrays may be multiplied. The default rejects them, because tf32 keeps 11 of 24 significant bits."""


@dataclass(frozen=True)
class MatmulOptions:
    """The arguments of a product apart from its arrays. `epilogue` is the text of an expression, `scalars` its numbers."""

    alpha: float = 1.0
    beta: float = 0.0
    activation: str = "none"
    precision: str = ""
    batch_invariant: bool = False
    cublas_order: bool = False
    epilogue: str = NONE
    scalars: tuple[tuple[str, float], ...] = ()

    @property
    def expression(self) -> Epilogue | None:
        """The expression of D, if any."""
        return parse_epilogue(self.epilogue)


@dataclass(frozen=True)
class MatmulRequest:
    """The LaunchTraits that arrays of this kind must fit, before a kernel is chosen. `problem_of` takes it."""

    kind: Kind
    symbol: str = "matmul"
    align_a: int = 1
    align_b: int = 1
    align_d: int = 1
    epilogue: Epilogue | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kind, name)

    @property
    def a_k_major(self) -> bool:
        return self.kind.layout[0] == "t"

    @property
    def b_k_major(self) -> bool:
        return self.kind.layout[1] == "n"


def launcher_of(
    library: KernelSource, views: Mapping[str, View], device: int, options: MatmulOptions, allocate: Allocate
) -> Launcher:
    """Choose the kernel of a library for arrays on a device, and return its launcher.

    Without a workspace among the arrays, the launcher takes one with `allocate` if the kernel needs it.

    Raises: ProblemError if the arrays do not form a product, UnsupportedError if no kernel supports it.
    """
    views = fold_batch(views)
    kernel, problem = choose_kernel(library, views, options, Target.of(open_device(device)))
    return _with_workspace(kernel, problem, device, views, library.workspace_bytes, allocate)


def choose_kernel(
    library: KernelSource, views: Mapping[str, View], options: MatmulOptions, target: Target
) -> tuple[Kernel, Problem]:
    """Return the kernel of a library for arrays on a device, and their problem.

    Raises: ProblemError if the arrays do not form a product, UnsupportedError if no kernel supports it.
    """
    size = views["workspace"].size_bytes if "workspace" in views else library.workspace_bytes
    selector = library.selector(target)
    queries = [_query(kind, views, options, size) for kind in matching_kinds(views, options)]
    if options.batch_invariant:
        queries = [_independent_of_rows(queries)]
    choice = selector.choose_any(queries)
    kernel = library.kernel(choice.symbol)
    if kernel.traits.epilogue != options.expression:  # kinds have its hash only
        raise ProblemError(f"{choice.symbol} has another expression: {kernel.traits.epilogue}")
    problem = problem_of(kernel.traits, views, options.alpha, options.beta, dict(options.scalars))
    return kernel, replace(problem, options=choice.options)


def _independent_of_rows(queries: Sequence[SelectionQuery]) -> SelectionQuery:
    """Return the description of a product whose layout does not depend on m. One row fits both layouts of A."""
    first = [query for query in queries if query.kind.layout[0] == queries[0].kind.layout[0]]
    return max(first, key=lambda query: query.align_b)


def empty_product(a: Any, b: Any, epilogue: Epilogue | None = None) -> Any:
    """Return a new array for the product or its expression, of the type and on the device of `a`.

    For an expression with several results, return a tuple of arrays of their types.

    Raises: ProblemError if `a` cannot make one.
    """
    shape_a, shape_b = shape_of(a, "A"), shape_of(b, "B")
    columns = columns_of_d(epilogue, shape_b[-1]) if shape_b else 0
    if not {len(shape_a), len(shape_b)} <= {2, 3}:
        raise ProblemError(f"A is {tuple(shape_a)} and B {tuple(shape_b)}: pass 2 axes, or 3 with a batch")
    batches = [shape[0] for shape in (shape_a, shape_b) if len(shape) == 3]
    rows = (max(batches), shape_a[-2]) if batches else shape_a[:1]
    d = new_array(a, (*rows, columns))
    if not epilogue or not epilogue.outputs:
        return d
    shapes = {"row": (*rows[:-1], columns), "column": rows, "matrix": (*rows, columns)}
    return (d, *(new_array(a, shapes[one.kind], one.of("")) for one in epilogue.outputs))


def check_linear(x: Any, weight: Any, bias: Any = None) -> tuple[int, ...]:
    """Return the shape of x weight^T + bias. Raises ProblemError if the shapes do not form a linear layer."""
    rows, shape = shape_of(x, "x"), shape_of(weight, "weight")
    if len(shape) != 2:
        raise ProblemError(f"weight is {shape}: pass (n, k)")
    if not rows:
        raise ProblemError("x has no axes: pass (..., k)")
    n, k = shape
    if rows[-1] != k:
        transposed = ": pass the transpose of weight" if rows[-1] == n else ""
        raise ProblemError(
            f"x is {rows} and weight {shape}: the last axis of both is k, {rows[-1]} and {k} here{transposed}"
        )
    if bias is not None and shape_of(bias, "bias")[-1:] != (n,):
        raise ProblemError(f"bias is {shape_of(bias, 'bias')}, not ({n},), for weight {shape}")
    return (*rows[:-1], n)


def explain_operands(error: HgemmError) -> None:
    """Add to an error of a product what its operands are in a linear layer, if it names them."""
    if re.search(r"(?<!\d )\b[ABD]\b", str(error)):  # 16 B are bytes
        error.args = (f"{error} (A is x, B the transpose of weight, D the result)",)


def check_same_types(**arrays: Any) -> None:
    """Raise ProblemError if arrays of one library have different types, with their names. None stands for no array."""
    (first, one), *others = ((name, array) for name, array in arrays.items() if array is not None)
    for name, other in others:
        if type(other) is type(one) and getattr(other, "dtype", None) != getattr(one, "dtype", None):
            types = f"{first} is {one.dtype} and {name} {other.dtype}"
            raise ProblemError(f"{types}: convert one of them to the type of the other")


def matching_kinds(views: Mapping[str, View], options: MatmulOptions) -> Iterator[Kind]:
    """Yield the kinds that describe these arrays. There are several if an axis has one element: it fits two layouts.

    Raises: ProblemError for an unsupported type, or an array with no contiguous axis.
    """
    if options.activation not in ACTIVATIONS:
        raise ProblemError(str(unknown_word("activation", options.activation, ACTIVATIONS)))
    if options.precision not in PRECISIONS:
        raise ProblemError(f"precision {options.precision!a} is unknown: use tf32, for f32 arrays")
    for name in "ABD":
        if views[name].dtype not in OUTPUTS:
            usable = "f16, bf16 or f32" if name == "D" else "f16 or bf16, or f32 with precision='tf32'"
            ml_dtypes = " (bf16 in NumPy is ml_dtypes.bfloat16)" if views[name].dtype == "u16" else ""
            raise ProblemError(f"{name} is {views[name].dtype}: use {usable}{ml_dtypes}")
        if len(views[name].shape) not in (2, 3):
            raise ProblemError(f"{name} has {len(views[name].shape)} axes: pass 2, or 3 with a batch")
    a_words, b_words = _contiguous(views["A"], "A", "tn"), _contiguous(views["B"], "B", "tn")
    bias = bias_kind_of(views) if "bias" in views else "none"
    epilogue = options.expression.hash if options.expression else NONE
    if views["A"].dtype != views["B"].dtype:
        types = f"A is {views['A'].dtype} and B {views['B'].dtype}"
        raise ProblemError(f"{types}: convert one of them to the type of the other")
    dtype_a, dtype_b = (_multiplied(views[name].dtype, name, options) for name in "AB")
    for letters in product(a_words, b_words):
        yield Kind(
            "".join(letters),
            dtype_a,
            dtype_b,
            views["D"].dtype,
            bias=bias,
            activation=options.activation,
            epilogue=epilogue,
        )


def _multiplied(dtype: str, name: str, options: MatmulOptions) -> str:
    """Return the type that a matrix is multiplied as."""
    if dtype == "f32" and options.precision != "tf32":
        raise ProblemError(
            f"{name} is f32, and tensor cores multiply only 11 of its 24 significant bits: allow it with precision='tf32' "
            "(torch.set_float32_matmul_precision('high') for the torch operator), or pass f16 or bf16"
        )
    return "tf32" if dtype == "f32" else dtype


def fold_batch(views: Mapping[str, View]) -> dict[str, View]:
    """Fold the batch of A, C and D into their rows if all share one B. The result is one larger product."""
    if any(name.startswith((INPUT, OUTPUT)) for name in views):  # a column, or a matrix, does not fold
        return dict(views)
    a, b, d = (views[name] for name in "ABD")
    shared = len(b.shape) == 2 or b.shape[0] == 1 or (b.shape[0] == a.shape[0] and b.strides[0] == 0)
    row_bias = "bias" not in views or views["bias"].shape == b.shape[-1:]
    stacked = [name for name in "ADC" if name in views]
    if not (
        shared and row_bias and len(a.shape) == 3 and all(_rows_follow(views[name], a.shape[0]) for name in stacked)
    ):
        return dict(views)
    one_b = replace(b, shape=b.shape[-2:], strides=b.strides[-2:])
    return {**views, "B": one_b, **{name: _fold(views[name]) for name in stacked}}


def _rows_follow(matrices: View, batch: int) -> bool:
    """Return whether the rows of the whole batch have one stride."""
    if len(matrices.shape) != 3 or matrices.shape[0] != batch:
        return False
    return matrices.strides[2] == 1 and matrices.strides[0] == matrices.shape[1] * matrices.strides[1]


def _fold(matrices: View) -> View:
    batch, rows, columns = matrices.shape
    return replace(matrices, shape=(batch * rows, columns), strides=matrices.strides[1:])


def _contiguous(matrix: View, name: str, letters: str) -> list[str]:
    """Return the possible layout letters: the first one if the last axis is contiguous, the second if the one before is."""
    found = [letter for axis, letter in ((-1, letters[0]), (-2, letters[1])) if _is_contiguous(matrix, axis)]
    if not found:
        raise ProblemError(
            f"{name} {matrix.shape} with strides {matrix.strides} has no contiguous axis among the last two: copy it"
        )
    return found


def _is_contiguous(matrix: View, axis: int) -> bool:
    return matrix.strides[axis] == 1 or matrix.shape[axis] <= 1


def _query(kind: Kind, views: Mapping[str, View], options: MatmulOptions, workspace_bytes: int) -> SelectionQuery:
    expression = options.expression
    request: Any = MatmulRequest(kind, epilogue=expression)  # it has the fields that problem_of reads
    problem = problem_of(request, views, options.alpha, options.beta, dict(options.scalars))
    if expression:
        for name, value, neutral in (("alpha", options.alpha, 1.0), ("beta", options.beta, 0.0)):
            if value != neutral and not expression.takes(name):
                raise ProblemError(f"{name} is {value}, but the epilogue has no {name}: {expression.formula}")
    elif options.beta and "C" not in views:
        raise ProblemError(f"beta is {options.beta}, but there is no C: pass c, which may be out itself")
    query = SelectionQuery.of(kind, problem, workspace_bytes, expression)
    return replace(query, batch_invariant=options.batch_invariant, cublas_order=options.cublas_order)
