"""A variant that can be called: arrays in, one launch, nothing allocated and nothing waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hgemm.arrays import View, stream_handle, view
from hgemm.checks import check
from hgemm.device import Function, open_device, ordinal_of
from hgemm.dtypes import in_memory
from hgemm.errors import ProblemError
from hgemm.facts import Facts
from hgemm.images import Image
from hgemm.launch import counter_bytes, grid_x, workspace_bytes
from hgemm.problem import Problem
from hgemm.tensor_maps import tensor_maps


class Kernel:
    """One variant of a library, from its record and its code.

    The cubin is loaded where it runs on the device, the PTX elsewhere: at the first launch there, or by `prepare`, which
    must come before a graph is captured. Raises: LibraryError where the record lacks what a launch needs.
    """

    def __init__(self, record: Mapping[str, Any], cubin: bytes = b"", ptx: bytes = b"") -> None:
        self.record, self.facts = record, Facts.of(record)
        self.image = Image(self.facts.arch, cubin, ptx)
        self._functions: dict[int, Function] = {}

    def __repr__(self) -> str:
        return f"Kernel({self.facts.symbol})"

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Any = None,
        bias: Any = None,
        workspace: Any = None,
        stream: Any = None,
    ) -> Any:
        """Launch out = activation(alpha * a b + beta * c + bias) on `stream`, and return `out` without waiting.

        Shapes: a (m, k), b (k, n), out and c (m, n), bias (n,) or (m,), each with or without a leading batch; those
            without, or with a batch of 1, serve all. The variant's layout says which axes of a and b are contiguous.
        Raises: ProblemError where the arrays do not fit the variant, DeviceError where the driver refuses.
        """
        given = {"A": a, "B": b, "D": out, "C": c, "bias": bias, "workspace": workspace}
        views = {name: view(array, name) for name, array in given.items() if array is not None}
        problem = problem_of(self.facts, views, alpha, beta)
        workspace_size = views["workspace"].size_bytes if "workspace" in views else None
        self.launch(problem, stream=stream, device=device_of(views), workspace_size=workspace_size)
        return out

    def launch(
        self, problem: Problem, *, stream: Any = None, device: int = 0, workspace_size: int | None = None
    ) -> None:
        """Launch a problem given by addresses. Raises ProblemError or DeviceError."""
        self.bind(problem, stream=stream, device=device, workspace_size=workspace_size)()

    def bind(
        self, problem: Problem, *, stream: Any = None, device: int = 0, workspace_size: int | None = None
    ) -> Callable[[], None]:
        """Check a problem and return what launches it, as often as is wanted. Raises ProblemError or DeviceError."""
        check(problem, self.facts, workspace_size)
        function = self.prepare(device)
        grid = grid_x(self.facts, problem.m, problem.n, problem.batch, function.resident_ctas)
        counters = (problem.workspace, counter_bytes(self.facts, problem.m, problem.n, problem.batch))
        parameters = [self.parameter(problem)]
        if self.facts.tensor_maps:
            parameters.append(tensor_maps(self.facts, problem, device))
        return open_device(device).bind(function, grid, parameters, stream_handle(stream), counters)

    def parameter(self, problem: Problem) -> bytes:
        """Return a problem as the kernel takes it: one without k reads nothing when k is a tile less, and adds beta * C to 0."""
        return (problem if problem.k else replace(problem, k=-self.facts.tile_k, alpha=0.0)).pack()

    def prepare(self, device: int = 0) -> Function:
        """Load the code on a device, if that was not done. Raises UnfitError where it does not run there."""
        if device not in self._functions:
            self._functions[device] = open_device(device).load(self.image, self.facts)
        return self._functions[device]

    def workspace_bytes(self, m: int, n: int, batch: int = 1) -> int:
        """Return the bytes of workspace that a launch needs, whatever they hold; 0 for most variants."""
        return workspace_bytes(self.facts, m, n, batch)


def device_of(views: Mapping[str, View]) -> int:
    """Return the number of the device on which all arrays lie. Raises ProblemError where they do not lie on one."""
    ordinals = {name: ordinal_of(v.pointer) if v.device is None else v.device for name, v in views.items()}
    if len(set(ordinals.values())) > 1:
        places = ", ".join(f"{name} on {ordinal}" for name, ordinal in ordinals.items())
        raise ProblemError(f"the arrays lie on different devices: {places}")
    return ordinals["D"]


# ---- Arrays to a problem --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    pointer: int
    leading: int
    batch_stride: int

    def fields(self, name: str) -> dict[str, int]:
        """Return them as the fields of a Problem."""
        return {name: self.pointer, f"ld{name}": self.leading, f"batch_stride_{name}": self.batch_stride}


def problem_of(facts: Facts, views: Mapping[str, View], alpha: float = 1.0, beta: float = 0.0) -> Problem:
    """Return the problem that arrays A, B, D and, where given, C, bias and workspace state.

    Raises: ProblemError where shapes, types or contiguous axes do not fit the variant.
    """
    _check_types(facts, views)
    m, n, k, batch = _sizes(facts, views)
    a = _stored(facts, views["A"], "A", contiguous=-1 if facts.a_k_major else -2, align=facts.align_a)
    b = _stored(facts, views["B"], "B", contiguous=-2 if facts.b_k_major else -1, align=facts.align_b)
    d = _stored(facts, views["D"], "D", contiguous=-1, align=facts.align_d)
    problem = Problem(
        *(m, n, k, batch),
        **a.fields("a"),
        **b.fields("b"),
        **d.fields("d"),
        alpha=float(alpha),
        beta=float(beta),
        workspace=views["workspace"].pointer if "workspace" in views else 0,
    )
    if "C" in views:
        c = _stored(facts, views["C"], "C", contiguous=-1, align=facts.align_d)
        problem = replace(problem, **c.fields("c"))
    if "bias" in views:
        bias = views["bias"]
        if bias.shape[-1] > 1 and bias.strides[-1] != 1:
            raise ProblemError(f"{facts.symbol}: bias is not contiguous (stride {bias.strides[-1]})")
        problem = replace(problem, bias=bias.pointer, batch_stride_bias=_batch_stride(bias, 1))
    return problem


def _check_types(facts: Facts, views: Mapping[str, View]) -> None:
    wanted = {"A": facts.dtype_a, "B": facts.dtype_b, "D": facts.dtype_d, "C": facts.dtype_d, "bias": facts.dtype_d}
    wrong = [
        f"{name} is {views[name].dtype}, not {in_memory(dtype)}"
        for name, dtype in wanted.items()
        if name in views and views[name].dtype != in_memory(dtype)
    ]
    wrong += [f"{name} is read-only" for name in ("D", "workspace") if name in views and views[name].readonly]
    if "workspace" in views and not views["workspace"].contiguous:
        wrong.append("the workspace is not contiguous")
    if wrong:
        raise ProblemError(f"{facts.symbol}: {'; '.join(wrong)}")


def _sizes(facts: Facts, views: Mapping[str, View]) -> tuple[int, int, int, int]:
    for name in ("A", "B", "D"):
        if len(views[name].shape) not in (2, 3):
            raise ProblemError(f"{facts.symbol}: {name} has {len(views[name].shape)} axes, not 2, or 3 with a batch")
    (m, k), n = views["A"].shape[-2:], views["B"].shape[-1]
    wanted = {"A": (m, k), "B": (k, n), "D": (m, n), "C": (m, n), "bias": (m,) if facts.bias == "column" else (n,)}
    batch = max(
        view.shape[0] if len(view.shape) > len(wanted[name]) else 1 for name, view in views.items() if name in wanted
    )
    wrong = []
    for name, shape in wanted.items():
        legal = [shape, (batch, *shape)] + ([(1, *shape)] if name != "D" else [])
        if name in views and (
            views[name].shape not in legal or (name == "D" and batch > 1 and views[name].shape == shape)
        ):
            wrong.append(f"{name} is {views[name].shape}, not {(batch, *shape) if batch > 1 else shape}")
    if wrong:
        raise ProblemError(
            f"{facts.symbol}: {'; '.join(wrong)}, which A {views['A'].shape} and B {views['B'].shape} ask for"
        )
    return m, n, k, batch


def _stored(facts: Facts, matrix: View, name: str, contiguous: int, align: int) -> _Stored:
    """Read a matrix whose axis `contiguous` (-1 or -2) must be contiguous."""
    other = -3 - contiguous
    if matrix.shape[contiguous] > 1 and matrix.strides[contiguous] != 1:
        axes = {"A": "mk", "B": "kn"}.get(name, "mn")
        raise ProblemError(
            f"{facts.symbol}: {name} {matrix.shape} with strides {matrix.strides} is not contiguous along "
            f"{axes[contiguous]}: layout {facts.layout} needs that; transpose what is stored, or use a variant of another layout"
        )
    single = matrix.shape[other] <= 1  # then its stride means nothing
    leading = -(-matrix.shape[contiguous] // align) * align if single else matrix.strides[other]
    return _Stored(matrix.pointer, leading, _batch_stride(matrix, 2))


def _batch_stride(matrix: View, axes: int) -> int:
    return matrix.strides[0] if len(matrix.shape) > axes and matrix.shape[0] > 1 else 0
