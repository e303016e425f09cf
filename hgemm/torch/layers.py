"""The layer Linear, and `patch`: it lets the linear layers of a model use the library, and undoes it.

A patched layer stays the same object with the same parameters: only its class changes. So hooks, tied weights and state_dict stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hgemm.device import open_device
from hgemm.dtypes import stored_dtype
from hgemm.errors import HgemmError, ProblemError
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target
from hgemm.torch.operator import always_invariant, check_activation, linear, used_library


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters, computed by the library in use and followed by an activation.

    The library needs a kernel with this bias and activation: `hgemm cover --add` generates one.
    """

    activation = "none"
    batch_invariant = False

    def __init__(
        self, *arguments: Any, activation: str = "none", batch_invariant: bool = False, **options: Any
    ) -> None:
        check_activation(activation)
        super().__init__(*arguments, **options)
        self.activation, self.batch_invariant = activation, batch_invariant

    @classmethod
    def of(cls, module: nn.Linear, activation: str = "none", batch_invariant: bool = False) -> Linear:
        """Return a replacement of a torch.nn.Linear that shares its parameters."""
        sizes = (module.in_features, module.out_features, module.bias is not None)
        made = cls(*sizes, device="meta", activation=activation, batch_invariant=batch_invariant)
        made.weight, made.bias = module.weight, module.bias
        made.train(module.training)
        return made

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.activation, self.batch_invariant)

    def extra_repr(self) -> str:
        its: str = super().extra_repr() + f", activation={self.activation}" * (self.activation != "none")
        return its + ", batch_invariant=True" * self.batch_invariant


class Fused(nn.Module):
    """An activation module that the layer before it computes. It returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@cache
def _conv1d_of(base: type) -> type:
    """Return a class with our product for a Conv1D of transformers, which stores its weight as (inputs, outputs)."""

    class Conv1D(base):
        activation = "none"
        batch_invariant = False

        def forward(self, x: Tensor) -> Tensor:
            return linear(x, self.weight.t(), self.bias, self.activation, self.batch_invariant)

    return Conv1D


# ==== What can be patched ====

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "tf32"}
_ROWS = (1, 16, 128, 2048)
"""The rows for which patch looks for kernels. Other numbers of rows use the same ones."""


def _replacement(module: nn.Module) -> tuple[type, str] | None:
    """Return the class that takes a linear layer's place, and the layout of its products. None for other modules."""
    if type(module) is nn.Linear:
        return Linear, "tn"
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        base: Any = type(module)
        return _conv1d_of(base), "tt"
    return None


def _multiplied(weight: Tensor) -> torch.dtype:
    """Return the type that a layer multiplies: that of autocast, if it is on."""
    casts = weight.is_floating_point() and torch.is_autocast_enabled(weight.device.type)
    return torch.get_autocast_dtype(weight.device.type) if casts else weight.dtype


def _kind(module: Any, layout: str, activation: str) -> Kind:
    dtype = _DTYPES[_multiplied(module.weight)]
    bias = "none" if module.bias is None else "row"
    return Kind(layout, dtype, dtype, stored_dtype(dtype), bias=bias, activation=activation)


def _check(module: nn.Module, layout: str, activation: str, batch_invariant: bool) -> None:
    """Raise HgemmError if the library in use cannot compute a layer, with the reason."""
    weight = module.weight
    if weight.device.type != "cuda":
        fix = ": move the model to the GPU first" if torch.cuda.is_available() else ", and torch finds no GPU here"
        raise ProblemError(f"its weight is on {weight.device.type}{fix}")
    dtype = _multiplied(weight)
    if dtype not in _DTYPES:
        raise ProblemError(f"its weight is {dtype}: use float16 or bfloat16")
    if dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest":
        raise ProblemError(
            "its weight is float32: use float16 or bfloat16, or torch.set_float32_matmul_precision('high')"
        )
    library = used_library()
    target = Target.of(open_device(weight.device.index or 0))
    kind = _kind(module, layout, activation)
    k, n = weight.shape if layout == "tt" else reversed(weight.shape)
    for rows in _ROWS:
        query = SelectionQuery.dense(kind, (rows, n, k, 1), library.workspace_bytes)
        query = replace(query, batch_invariant=batch_invariant or always_invariant())
        library.selector(target).choose_any([query])  # a library that grows builds what is missing


# ==== Fusion: a layer, and the activation that its output goes to ====

_FOLLOWERS = {
    "GPT2MLP": ("c_fc", "act"),
    "BertIntermediate": ("dense", "intermediate_act_fn"),
    "RobertaIntermediate": ("dense", "intermediate_act_fn"),
    "ViTIntermediate": ("dense", "intermediate_act_fn"),
    "PhiMLP": ("fc1", "activation_fn"),
    "LlamaMLP": ("gate_proj", "act_fn"),
    "MistralMLP": ("gate_proj", "act_fn"),
    "Qwen2MLP": ("gate_proj", "act_fn"),
    "Qwen3MLP": ("gate_proj", "act_fn"),
}
"""Classes of transformers whose forward passes the output of one attribute to the activation in another, and nowhere else."""

_TANH_GELUS = ("GELUTanh", "NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation")
"""Activations of transformers that approximate gelu by tanh, within 0.0005."""


def _activation_word(module: Any, tanh_gelu: bool) -> str | None:
    """Return the activation of the kernels that a module computes, or None."""
    name, home = type(module).__name__, type(module).__module__
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" or tanh_gelu else None
    if type(module) in (nn.ReLU, nn.SiLU):
        return name.lower()
    if type(module) is nn.LeakyReLU:
        return "leaky_relu" if module.negative_slope == 0.01 else None
    if home.startswith("transformers."):
        if name in ("GELUActivation", "SiLUActivation"):
            return name.removesuffix("Activation").lower()
        return "gelu" if name in _TANH_GELUS and tanh_gelu else None
    return None


def _pairs(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each linear layer whose output only an activation module takes, with that module."""
    for parent in model.modules():
        if type(parent) is nn.Sequential:
            yield from zip(parent, [*parent][1:])
        elif type(parent).__module__.startswith("transformers.") and type(parent).__name__ in _FOLLOWERS:
            yield tuple(getattr(parent, name) for name in _FOLLOWERS[type(parent).__name__])


def fusions_of(model: nn.Module, tanh_gelu: bool) -> dict[int, tuple[nn.Module, str]]:
    """Return the activation module and its word by the id of the layer. Both are used once, and have no hooks."""
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    found = {}
    for layer, follower in _pairs(model):
        word = _activation_word(follower, tanh_gelu)
        alone = all(isinstance(one, nn.Module) and uses[id(one)] == 1 and not _hooked(one) for one in (layer, follower))
        if word and alone and _replacement(layer):
            found[id(layer)] = (follower, word)
    return found


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


# ==== Patch ====


@dataclass(frozen=True)
class Replaced:
    """A layer that uses the library. `activation` is the fused one, or none."""

    name: str
    layer: str
    activation: str


@dataclass(frozen=True)
class Kept:
    """A linear layer that stays as it was."""

    name: str
    reason: str


class Patch:
    """The layers of a model that use the library. Use it as a context manager, or call `unpatch`.

    Fields: `replaced` and `kept` list the linear layers, and `unmatched` the patterns that match none. `str(patch)` shows all.
    """

    def __init__(self) -> None:
        self.replaced: list[Replaced] = []
        self.kept: list[Kept] = []
        self.unmatched: list[str] = []
        self._undo: list[Callable[[], None]] = []

    def unpatch(self) -> None:
        """Give each layer its own class back. Repeated calls do nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        self.unpatch()

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} linear layers use the library, {len(self.kept)} do not"]
        lines += [f"  {pattern!a} matches no linear layer" for pattern in self.unmatched]
        lines += [
            f"  {one.name}: {one.layer}" + f", then {one.activation}" * (one.activation != "none")
            for one in self.replaced
        ]
        return "\n".join(lines + [f"  {one.name}: unchanged, {one.reason}" for one in self.kept])

    def _change(self, module: nn.Module, to: type, **options: str | bool) -> None:
        before = type(module)
        changed = {name: value for name, value in options.items() if value != getattr(to, name)}

        def undo() -> None:
            module.__class__ = before
            for name in changed:
                module.__dict__.pop(name, None)

        module.__class__ = to
        for name, value in changed.items():
            setattr(module, name, value)
        self._undo.append(undo)


def patch(
    model: nn.Module,
    names: str | Sequence[str] = "*",
    *,
    exclude: str | Sequence[str] = (),
    fuse: bool = False,
    tanh_gelu: bool = False,
    batch_invariant: bool = False,
) -> Patch:
    """Let each torch.nn.Linear, and Conv1D of transformers, that the library supports use the library. Return how to undo it.

    Subclasses of torch.nn.Linear stay as they are. Parameters, state_dict, hooks and tied weights do not change.

    Fields: `names` and `exclude` are glob patterns of module names, as of model.named_modules. `fuse` computes an activation
        after a layer in the layer's kernel, in torch.nn.Sequential and in the MLPs of GPT-2, BERT, ViT, Llama and others, if
        the library has kernels for it. `tanh_gelu` also fuses approximations of gelu by tanh as gelu, which changes results
        by up to 0.0005. With `batch_invariant`, the bits of a row of a layer's output do not depend on the number of rows.
    Raises: LibraryError if no library is set; ProblemError if `model` is not a torch.nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise ProblemError(
            f"model is a {type(model).__name__}: pass a torch.nn.Module, such as a model of transformers"
        )
    used_library()
    done = Patch()
    fusions = fusions_of(model, tanh_gelu) if fuse else {}
    named, excluded = _patterns(names), _patterns(exclude)
    unmatched = dict.fromkeys((*named, *excluded))
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) and _replacement(module) is None:
            continue
        for pattern in [one for one in unmatched if fnmatchcase(name, one)]:
            del unmatched[pattern]
        if not _matches(name, named) or _matches(name, excluded):
            done.kept.append(Kept(name, "its name is not selected"))
        elif (found := _replacement(module)) is None:
            done.kept.append(Kept(name, f"it is a {type(module).__name__}, a subclass of Linear"))
        else:
            _patch_one(done, name, module, *found, fusions.get(id(module)), batch_invariant)
    done.unmatched = [*unmatched]
    return done


def _patterns(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else [*given]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)


def _patch_one(
    done: Patch,
    name: str,
    module: nn.Module,
    to: type,
    layout: str,
    fusion: tuple[nn.Module, str] | None,
    batch_invariant: bool,
) -> None:
    """Replace one layer: with its activation if there are kernels for both, else alone, else not."""
    layer = type(module).__name__
    for follower, activation in (*([fusion] if fusion else []), (None, "none")):
        try:
            _check(module, layout, activation, batch_invariant)
        except HgemmError as error:
            reason = str(error)
            continue
        done._change(module, to, activation=activation, batch_invariant=batch_invariant)
        if follower is not None:
            done._change(follower, Fused)
        done.replaced.append(Replaced(name, layer, activation))
        return
    done.kept.append(Kept(name, reason))
