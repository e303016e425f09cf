"""The operator torch.ops.hgemm.fused: products with an expression, and their gradients, which are traced from the expression."""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hgemm.dispatch_table import DispatchTable
from hgemm.epilogue import OF_PROBLEM, PAIR_COLUMNS, Epilogue, EpilogueError, Input, columns_of_d, parse_expression
from hgemm.epilogue_gradient import ONE, evaluate, gradient_of, gradients, needed, values_of
from hgemm.epilogue_language import Value, as_expression, expression_of, f32
from hgemm.errors import DeviceError, HgemmError, ProblemError, UnsupportedError
from hgemm.gated import interleave
from hgemm.launch_traits import INPUT, OUTPUT
from hgemm.problem import EPILOGUE_SHIFT
from hgemm.products import MatmulOptions
from hgemm.torch import operator
from hgemm.torch.native import Program

_LOG = logging.getLogger("hgemm")
SCHEMA = (
    "(Tensor a, Tensor b, Tensor[] arrays, *, str epilogue, str[] names, float[] numbers, "
    "float alpha=1.0, float beta=0.0, bool batch_invariant=False) -> Tensor[]"
)
"""`names` are those of `arrays`, then those of `numbers`, which are scalars. `epilogue` is the text of an expression.

The results are D and those after it.
"""
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
FUNCTIONS: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "minimum": torch.fmin,
    "maximum": torch.fmax,
    "neg": torch.neg,
    "abs": torch.abs,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "where": torch.where,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "f16": lambda x: x.half().to(x.dtype),
    "bf16": lambda x: x.bfloat16().to(x.dtype),
}
"""The operations of expressions, for derivatives."""


def fused(
    a: Tensor,
    b: Tensor,
    epilogue: Any,
    inputs: Mapping[str, Any] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Return a product with an epilogue as a new tensor, with gradients for a, b and all inputs that are tensors.

    If the expression has several results, return a tuple of tensors. A reduction is in f32: (m,) of rows, (n,) of columns.

    `epilogue` is a Python function, a text, or a traced function, as for Library.matmul. The forward pass of an
    expression with one result saves derivatives if the library has, or builds, a kernel of `training_epilogue`. Otherwise, the
    backward pass computes the product again if a derivative needs it, in one launch if the library has a kernel of
    `backward_epilogue`. It sums gradients of inputs in f32. Tensors among the inputs are converted to the types that the
    expression has.

    Shapes: as Library.matmul.
    Raises: ProblemError for inputs that the expression lacks, or that are missing, and as Library.matmul.
    """
    text, described = _described(epilogue)
    operands, inputs = dict(described), inputs or {}
    if unknown := [name for name in inputs if name not in operands]:
        raise ProblemError(f"the epilogue has no {', '.join(unknown)}: its inputs are {', '.join(operands) or 'none'}")
    if missing := [name for name in operands if name not in inputs]:
        raise ProblemError(f"input {missing[0]} is missing")
    if torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = a.to(dtype), b.to(dtype)
    arrays = {name: inputs[name] for name in operands if isinstance(inputs[name], Tensor)}
    numbers = {name: float(inputs[name]) for name in operands if name not in arrays}
    if a.dtype is not torch.float64:
        arrays = {name: x.to(TYPES[operands[name]] if operands[name] else a.dtype) for name, x in arrays.items()}
    operation: Callable[..., Any] = torch.ops.hgemm.fused
    native = operator._native
    if not torch.compiler.is_compiling() and native is not None and native.plain(a, b, *arrays.values()):
        operation = partial(_differentiable, launch=_launch)  # the dispatcher takes 20 us for an operator in Python
    results = operation(
        *(a, b, [*arrays.values()]),
        epilogue=text,
        names=[*arrays, *numbers],
        numbers=[*numbers.values()],
        alpha=alpha,
        beta=beta,
        batch_invariant=batch_invariant,
    )
    return results[0] if len(results) == 1 else tuple(results)


@torch.compiler.assume_constant_result
def _described(epilogue: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the text of an expression, and its inputs with their types, "" for that of D."""
    expression = as_expression(epilogue)
    return expression.text, tuple(
        (one.name, "f32" if one.kind == "scalar" else one.dtype) for one in expression.operands
    )


# ==== The operator ====


def _launch(
    a: Tensor,
    b: Tensor,
    arrays: Sequence[Tensor],
    *,
    epilogue: str,
    names: Sequence[str],
    numbers: Sequence[float],
    alpha: float = 1.0,
    beta: float = 0.0,
    batch_invariant: bool = False,
) -> list[Tensor]:
    expression = parse_expression(epilogue)
    a, b = operator._readable(a), operator._readable(b)
    results = d, *further = _results(expression, a, b)
    given = dict(zip(names, map(_by_rows, arrays)))
    operands = (*[given.get(one.name) for one in expression.operands], *further)
    program = _program(epilogue, tuple(zip(names[len(arrays) :], numbers)))
    if operator._native is not None:
        operator._native.fused(a, b, d, operands, program, program.number, alpha, beta, batch_invariant)
        return [*results]
    orders = operator._order_options(batch_invariant)
    options = MatmulOptions(
        alpha, beta, "none", operator._precision(a), **orders, epilogue=epilogue, scalars=program.scalars
    )
    operator.used_library().launch_expression(a, b, d, dict(zip(program.operands, operands)), options)
    return [*results]


@lru_cache(1024)
def _program(text: str, scalars: tuple[tuple[str, float], ...]) -> Program:
    expression = parse_expression(text)
    inputs = (INPUT + one.name for one in expression.operands)
    outputs = (OUTPUT + one.name for one in expression.outputs)
    return Program(text, (*inputs, *outputs), tuple(sorted(scalars)), next(_numbers))


_numbers = itertools.count()


def _by_rows(x: Tensor) -> Tensor:
    """Return an input with contiguous rows that do not overlap."""
    rows = x.dim() < 2 or x.shape[-2] <= 1 or x.stride(-2) >= x.shape[-1]
    return x if x.dim() == 0 or (rows and (x.stride(-1) == 1 or x.shape[-1] <= 1)) else x.contiguous()


def _meta(a: Tensor, b: Tensor, arrays: Sequence[Tensor], *, epilogue: str, **options: Any) -> list[Tensor]:
    """Return tensors with the shapes, types and strides of the results, without data on a fake device."""
    operator.check_shapes(a, b)
    return _results(parse_expression(epilogue), a, b)


def _results(expression: Epilogue, a: Tensor, b: Tensor) -> list[Tensor]:
    """Return new tensors for D and the further results."""
    shape = _shape_of_d(expression, a, b)
    results = [a.new_empty(shape)]
    for one in expression.outputs:
        dtype = TYPES[one.of("")] if one.of("") and a.dtype is not torch.float64 else a.dtype
        its_shape = {"row": (*shape[:-2], shape[-1]), "column": shape[:-1], "matrix": shape}[one.kind]
        results.append(a.new_empty(its_shape, dtype=dtype))
    return results


def _shape_of_d(expression: Epilogue, a: Tensor, b: Tensor) -> tuple[int, ...]:
    if a.dim() == b.dim() == 2:
        return a.shape[0], columns_of_d(expression, b.shape[1])
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], columns_of_d(expression, b.shape[-1]))


# ==== Gradients ====


class _Fused(torch.autograd.Function):
    """The operator with gradients. The forward pass saves derivatives if the library has a kernel of `training_epilogue`.

    The arguments are the operator or `_launch`, its keyword arguments, how to save derivatives or None, a, b, and the arrays.
    """

    @staticmethod
    def forward(
        ctx: Any,
        launch: Callable[..., list[Tensor]],
        options: dict[str, Any],
        saving: _Saving | None,
        a: Tensor,
        b: Tensor,
        *arrays: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.options, ctx.saving = options, saving
        ctx.set_materialize_grads(False)  # a loss may not depend on all results
        with torch._C._AutoDispatchBelowAutograd():
            if saving:
                try:
                    d, *saved = launch(a, b, arrays, **{**options, "epilogue": saving.expression.text})
                    ctx.save_for_backward(a, b, *arrays, *saved)
                    return (d,)
                except UnsupportedError:  # the kernel does not support these operands
                    pass
                except (ProblemError, DeviceError):
                    raise
                except HgemmError as error:  # the library cannot build it
                    _LOG.warning(
                        "no kernel saves the derivatives of an epilogue, so they are computed again: %s", error
                    )
                    _not_built.add(saving.expression.hash)
            ctx.save_for_backward(a, b, *arrays)
            return tuple(launch(a, b, arrays, **options))

    @staticmethod
    def backward(ctx: Any, *of_results: Tensor | None) -> tuple[Any, ...]:
        """Return the gradients from those of the results.

        Without saved derivatives, the product is computed again, if a derivative needs it. So it is for gradients of gradients.
        """
        options, saving = ctx.options, ctx.saving
        _, _, _, needs_a, needs_b, *needed_arrays = ctx.needs_input_grad
        a, b, *tensors = ctx.saved_tensors
        arrays, saved = tensors[: len(needed_arrays)], tensors[len(needed_arrays) :]
        expression = parse_expression(options["epilogue"])
        names = options["names"][: len(arrays)]
        given = {at: gradient for at, gradient in enumerate(of_results) if gradient is not None}
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        derivatives = _derivatives(options["epilogue"], tuple(given))
        accumulators = _accumulators(expression)
        wanted = {
            name for name, is_needed in zip(names, needed_arrays, strict=True) if is_needed and name in derivatives
        }
        wanted |= {*accumulators} & derivatives.keys() if needs_a or needs_b else set()
        values = {name: derivatives[name] for name in derivatives if name in wanted}
        leaves = _Leaves(expression, a, b, given, dict(zip(names, arrays, strict=True)), options)
        product = None  # the gradient of a b
        found = leaves.passed_on(values)
        if saved and not torch.is_grad_enabled():
            places = {name: at for name, at in saving.places.items() if name in wanted}
            if expression.gated and all(name in places for name in accumulators):
                product = _scaled_pairs(given[0], *(saved[places.pop(name)] for name in accumulators))
            scaled = {at: given[0] * saved[at] for at in {*places.values()}}
            found |= {name: scaled[at] for name, at in places.items()}
        elif len(found) < len(wanted):
            found |= _launched(frozenset(wanted), leaves)
            for name, accumulator in itertools.product(values, accumulators):  # as of a bias
                if name not in found and accumulator in found and values[name] is values[accumulator]:
                    found[name] = found[accumulator]
        missing = {name: one for name, one in values.items() if name not in found}
        if product is not None:
            missing = {name: one for name, one in missing.items() if name not in accumulators}
        found |= _computed(missing, leaves) if missing else {}
        of_a = of_b = None
        if (needs_a or needs_b) and product is None and any(name in found for name in accumulators):
            none = a.new_zeros(())  # of an accumulator that the loss does not depend on
            parts = [found.get(name, none).to(a.dtype).expand(leaves.d).contiguous() for name in accumulators]
            product = interleave(*parts) if expression.gated else parts[0]
        if product is not None:
            invariant = options["batch_invariant"]
            if needs_a:
                of_a = operator._sum_to(torch.ops.hgemm.matmul(product, b.mT, batch_invariant=invariant), a.shape)
            if needs_b:
                of_b = operator._gradient_b(a, product, b, 1.0, invariant)
        of_arrays = (leaves.summed(name, found[name]) if name in found else None for name in names)
        return None, None, None, of_a, of_b, *of_arrays


def _differentiable(
    a: Tensor, b: Tensor, arrays: Sequence[Tensor], launch: Callable[..., list[Tensor]] | None = None, **options: Any
) -> list[Tensor]:
    launch = launch or torch.ops.hgemm.fused
    if torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, *arrays)):
        saving = _saving(options["epilogue"])
        if saving:
            use = (x.requires_grad for name, x in zip(options["names"], arrays) if name in saving.places)
            if not (a.requires_grad or b.requires_grad or any(use)) or not _gets_kernel(saving.expression.hash):
                saving = None
        return [*_Fused.apply(launch, {**_DEFAULTS, **options}, saving, a, b, *arrays)]
    with torch._C._AutoDispatchBelowAutograd():
        return launch(a, b, arrays, **options)


_DEFAULTS = {"alpha": 1.0, "beta": 0.0, "batch_invariant": False}


# ---- Derivatives that the forward pass saves ----


@dataclass(frozen=True)
class _Saving:
    """An expression whose further results are the derivatives of D with respect to its accumulators.

    Fields: `places` are their numbers by accumulator, and by the inputs that have the same derivative, such as a bias.
    """

    expression: Epilogue
    places: Mapping[str, int]


def training_epilogue(epilogue: Any) -> Epilogue:
    """Return the expression of the kernels that `fused` uses if gradients are recorded.

    Its further results are the derivatives of D with respect to the product. The backward pass multiplies them by the gradient
    of D. Without such a kernel, it computes the product again.

    Raises: ProblemError if the derivatives do not depend on the product, or the expression has several results or too many inputs.
    """
    expression = as_expression(epilogue)
    found = _saving(expression.text)
    if found is None:
        raise ProblemError(
            f"no launch saves derivatives of {expression.formula}: they do not depend on the product, or it has several results or "
            "too many inputs. Generate the epilogue itself, and hgemm.torch.backward_epilogue if that has an expression"
        )
    return found.expression


@lru_cache(256)
def _saving(text: str) -> _Saving | None:
    expression = parse_expression(text)
    if expression.outputs:
        return None
    derivatives = gradients(expression, {0: ONE})
    saved = [derivatives[name] for name in _accumulators(expression) if name in derivatives]
    distinct = {one: at for at, one in enumerate(dict.fromkeys(one for one in saved if _uses_product([one])))}
    if not distinct:
        return None
    try:
        found = expression_of((values_of(expression)[expression.result], *distinct))
    except EpilogueError:  # too many inputs
        return None
    return _Saving(found, {name: distinct[one] for name, one in derivatives.items() if one in distinct})


def _scaled_pairs(gradient: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """Return the products of a gradient with two matrices, in alternating blocks of columns as `interleave` makes them."""
    global _triton_fails
    traced = type(gradient) is not Tensor
    kernels = _triton_kernels() if gradient.is_cuda and not traced and not _triton_fails else None
    if kernels:
        try:
            return kernels.scaled_pairs(gradient, gate, up)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Triton raises errors of the C compiler that it calls, too
            _LOG.warning("operations of torch take the place of a kernel in Triton: %s", error)
            _triton_fails = True
    return interleave(gradient * gate, gradient * up)


_triton_fails = False
"""Whether a kernel in Triton has failed, such as without a C compiler."""


@lru_cache(1)
def _triton_kernels() -> Any:
    """Return the module of kernels in Triton, None if that is not installed."""
    try:
        return importlib.import_module("hgemm.torch.triton_kernels")
    except ImportError:
        return None


@lru_cache(256)
def _derivatives(text: str, results: tuple[int, ...]) -> dict[str, Value]:
    """Return the gradients from those of some results, traced once: a backward pass is as short as their tracing."""
    expression = parse_expression(text)
    return gradients(expression, {at: gradient_of(at) for at in results})


def _accumulators(expression: Epilogue) -> tuple[str, ...]:
    return ("acc", "up") if expression.gated else ("acc",)


def _computed(values: Mapping[str, Value], leaves: _Leaves) -> dict[str, Tensor]:
    """Return the derivatives by name, computed one operation after the other."""
    functions = {
        **FUNCTIONS,
        "row_sum": lambda x: leaves.expanded(x).sum(-1, keepdim=True),
        "row_max": lambda x: x.amax(-1, keepdim=True),
        "column_sum": lambda x: leaves.expanded(x).sum(-2, keepdim=True),
        "column_max": lambda x: x.amax(-2, keepdim=True),
    }
    return dict(zip(values, evaluate([*values.values()], leaves.of(values.values()), functions), strict=True))


# ---- Derivatives in one launch, which computes the product again ----


def backward_epilogue(epilogue: Any, dtype: str = "f16") -> Epilogue:
    """Return the expression of the derivatives of an expression, whose kernels the backward pass of `fused` uses.

    A library without such a kernel computes them one operation after the other. `dtype` is the type of A and B.

    Raises: ProblemError if the derivatives do not depend on the product, or one launch cannot compute them.
    """
    expression = as_expression(epilogue)
    wanted = frozenset((*_accumulators(expression), *(one.name for one in expression.operands)))
    types = ((0, dtype), *((at, one.of(dtype)) for at, one in enumerate(expression.outputs, 1)))
    found = _backward_expression(expression.text, wanted, types, dtype)
    if found is None:
        raise ProblemError(f"one launch does not compute the derivatives of {expression.formula}: they need no kernel")
    return found[1]


@lru_cache(256)
def _backward_expression(
    text: str, wanted: frozenset[str], types: tuple[tuple[int, str], ...], dtype: str
) -> tuple[list[str], Epilogue, dict[int, str]] | None:
    """Return the names of derivatives, the expression that returns them, and the names of the gradients that it takes.

    `types` are those of the gradients by results. Return None if there is no use for a product, or an expression cannot have
    the derivatives, such as those of a maximum.
    """
    expression = parse_expression(text)
    taken = {one.name for one in expression.inputs}
    gradient_inputs = {}
    for at, its in types:
        name = f"gradient{at}"
        while name in taken:
            name += "_"
        kind = expression.outputs[at - 1].kind if at else "matrix"
        gradient_inputs[at] = Input(name, kind, "" if its == dtype and kind == "matrix" else its)
    values = {name: one for name, one in gradients(expression, gradient_inputs).items() if name in wanted}
    operations = {one.op for one in needed(values.values())}
    first = [name for name in _accumulators(expression) if name in values]
    if (
        not first
        or not _uses_product(values.values())
        or operations & {"row_sum", "row_max", "column_sum", "column_max"}
    ):
        return None
    others = [name for name in values if not any(values[name] is values[one] for one in first)]
    names = [*first, *(name for name in others if _uses_product([values[name]]))]
    try:
        found = expression_of(tuple(values[name] if name in first else f32(values[name]) for name in names))
    except EpilogueError:  # D without an accumulator, or too many inputs
        return None
    return names, found, {at: one.name for at, one in gradient_inputs.items()}


def _uses_product(values: Iterable[Value]) -> bool:
    return any(one.op in ("acc", "up") for one in needed(values))


def _launched(wanted: frozenset[str], leaves: _Leaves) -> dict[str, Tensor]:
    """Return the derivatives that use the product by name, from one launch; none if the library has no kernel for them."""
    words = {dtype: word for word, dtype in TYPES.items()}
    dtype = words.get(leaves.a.dtype, "f32")
    types = tuple((at, words.get(leaves.given[gradient_of(at)].dtype, dtype)) for at in leaves.numbered)
    described = _backward_expression(leaves.options["epilogue"], wanted, types, dtype)
    if described is None or not _has_kernel(described[1].hash):
        return {}
    names, found, gradient_names = described
    arrays = {**leaves.arrays, **{name: leaves.given[gradient_of(at)] for at, name in gradient_names.items()}}
    taken = [one.name for one in found.operands]
    arrays = {name: arrays[name] for name in taken if name in arrays}
    numbers = {name: leaves.numbers[name] for name in taken if name not in arrays}
    results = torch.ops.hgemm.fused(
        *(leaves.a, leaves.b, [*arrays.values()]),
        epilogue=found.text,
        names=[*arrays, *numbers],
        numbers=[*numbers.values()],
        batch_invariant=leaves.options["batch_invariant"],
        **{name: leaves.numbers[name] for name in OF_PROBLEM if found.takes(name)},
    )
    return dict(zip(names, results, strict=True))


def _has_kernel(expression_hash: str) -> bool:
    """Return whether the library has kernels of an expression."""
    if not operator.has_library():
        return False
    return int(f"1{expression_hash}", 16) in _expressions(operator.used_library().table)  # as in Kind.code


def _gets_kernel(expression_hash: str) -> bool:
    """Return whether the library has kernels of an expression, or builds them."""
    if _has_kernel(expression_hash):
        return True
    return operator.has_library() and operator.used_library().builds and expression_hash not in _not_built


_not_built: set[str] = set()
"""The hashes of expressions that a library could not build."""


def _expressions(table: DispatchTable) -> frozenset[int]:
    """Return the numbers of the expressions that a library has kernels of."""
    global _last_expressions
    known, found = _last_expressions
    if known is not table:
        found = frozenset(group.kind >> EPILOGUE_SHIFT for group in table.groups)
        _last_expressions = table, found
    return found


_last_expressions: tuple[DispatchTable | None, frozenset[int]] = (None, frozenset())


class _Leaves:
    """The leaves of derivatives as tensors that broadcast to D, in f32 or f64."""

    def __init__(
        self,
        expression: Epilogue,
        a: Tensor,
        b: Tensor,
        given: Mapping[int, Tensor],
        arrays: dict[str, Tensor],
        options: dict[str, Any],
    ) -> None:
        """`given` are the gradients of results by their numbers: 0 is D."""
        self.a, self.b, self.arrays, self.options = a, b, arrays, options
        self.d = _shape_of_d(expression, a, b)
        self.numbered = tuple(given)
        self.given = {gradient_of(result): gradient for result, gradient in given.items()}
        axes = {"row": -2, "column": -1}
        outputs = enumerate(expression.outputs, 1)
        self.reduced = {
            gradient_of(at): axes[one.kind] for at, one in outputs if one.kind in axes
        }  # their missing axes
        self.expression = expression
        self.dtype = torch.float64 if a.dtype is torch.float64 else torch.float32
        self.kinds = {one.name: one.kind for one in expression.operands}
        numbers = zip(options["names"][len(arrays) :], options["numbers"], strict=True)
        self.numbers = {"alpha": options["alpha"], "beta": options["beta"], **dict(numbers)}

    def of(self, values: Iterable[Value]) -> Any:
        """Return the function that `evaluate` calls."""
        accumulators = self._accumulators() if _uses_product(values) else {}

        def leaf(value: Value) -> Tensor:
            if value.op in accumulators:
                return accumulators[value.op]
            if value.given in self.given:
                gradient = self.given[value.given].to(self.dtype)
                return gradient if value.given not in self.reduced else gradient.unsqueeze(self.reduced[value.given])
            name = value.given.name if value.given else ""
            if name in self.arrays:
                return self.arrays[name].to(self.dtype).reshape(self.shape(name))
            return torch.full((), self.numbers[name] if name else value.value, dtype=self.dtype, device=self.a.device)

        return leaf

    def _accumulators(self) -> dict[str, Tensor]:
        product = torch.ops.hgemm.matmul(self.a, self.b, batch_invariant=self.options["batch_invariant"]).to(self.dtype)
        if not self.expression.gated:
            return {"acc": product}
        blocks = product.unflatten(-1, (-1, 2, PAIR_COLUMNS))
        return {name: blocks[..., at, :].flatten(-2) for at, name in enumerate(("acc", "up"))}

    def passed_on(self, values: Mapping[str, Value]) -> dict[str, Tensor]:
        """Return the derivatives that are the gradient of a matrix itself, as of a residual."""
        given = {
            name: one.given for name, one in values.items() if one.given in self.given and one.given not in self.reduced
        }
        return {name: self.given[gradient] for name, gradient in given.items() if gradient}

    def expanded(self, x: Tensor) -> Tensor:
        """Return a tensor that broadcasts to D with the extents of D."""
        return x.expand(self.d)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape with which an input broadcasts to D."""
        x, kind = self.arrays[name], self.kinds[name]
        if kind == "scalar":
            return (x.numel(), 1, 1) if x.numel() > 1 else (1, 1)
        batch = x.shape[: x.dim() - (2 if kind == "matrix" else 1)] if len(self.d) == 3 else ()
        rows, columns = (1 if kind == "row" else self.d[-2]), (1 if kind == "column" else self.d[-1])
        return (*batch, rows, columns)

    def summed(self, name: str, gradient: Tensor) -> Tensor:
        """Return the gradient of an input: its sum over the axes along which the input is broadcast."""
        x = self.arrays[name]
        if gradient.shape == x.shape:
            return gradient.to(x.dtype)
        shape = self.shape(name)
        shape = (1,) * (len(self.d) - len(shape)) + shape
        summed = [at for at, (extent, its) in enumerate(zip(self.d, shape)) if its == 1 != extent]
        found = gradient.expand(self.d)
        return (found.sum(summed, keepdim=True, dtype=self.dtype) if summed else found).reshape(x.shape).to(x.dtype)


torch.library.define("hgemm::fused", SCHEMA, tags=torch.Tag.pt2_compliant_tag)
torch.library.register_fake("hgemm::fused", _meta)
_elsewhere = operator.reject_other_devices("fused")
_registered = torch.library.Library("hgemm", "IMPL")
_registered.impl("fused", _launch, "CUDA")
_registered.impl("fused", _differentiable, "Autograd")
