"""The linear layers of a model: from its config.json, from a torch module, or from a list of sizes.

A config.json is data: nothing in it is executed. Each supported architecture is one function that yields its layers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generator.errors import RequestError, closest_words, unknown_word
from hgemm.disk import open_input
from hgemm.problem import ACTIVATIONS, LAYOUTS, MAX_EXTENT, Kind

# ==== Layers ====

CONV1D_LAYOUT = "tt"
"""The layout of a weight that is stored as (k, n), as in GPT-2. A weight of torch.nn.Linear is (n, k), which is layout tn."""


NAMES_SHOWN = 4
"""Equal layers of which all names are shown."""


@dataclass(frozen=True)
class Layer:
    """One linear layer: D = activation(A B + bias), for any number of rows m.

    Shapes: A (m, k), B (k, n), bias (n,), D (m, n).
    Fields: `fused` tells whether the layer joins several layers of the model that have the same input.
    """

    name: str
    n: int
    k: int
    bias: bool = False
    activation: str = "none"
    layout: str = "tn"
    fused: bool = False

    def kinds(self, dtype: str, activation_only: bool = False) -> tuple[Kind, ...]:
        """Return the kinds of product to pack: without the activation, and with it if there is one; or only the last."""
        bias = "row" if self.bias else "none"
        out = "f32" if dtype == "tf32" else dtype
        words = dict.fromkeys(("none", self.activation)) if not activation_only else (self.activation,)
        return tuple(Kind(self.layout, dtype, dtype, out, bias=bias, activation=word) for word in words)


@dataclass(frozen=True)
class Model:
    """The layers of a model.

    Fields: `dtype` is the type of its weights, or "" if unknown. `notes` say what a user should know about the layers.
    """

    name: str
    layers: tuple[Layer, ...]
    dtype: str = ""
    notes: tuple[str, ...] = ()


def distinct(layers: Iterable[Layer]) -> list[Layer]:
    """Return each different layer once, with the names of its copies, or the first name and their number."""
    found: dict[Layer, list[Layer]] = {}
    for layer in layers:
        found.setdefault(replace(layer, name="", fused=False), []).append(layer)
    return [replace(copies[0], name=_names([one.name for one in copies])) for copies in found.values()]


def _names(names: Sequence[str]) -> str:
    words = list(dict.fromkeys(names))
    return ", ".join(words) if len(words) <= NAMES_SHOWN else f"{words[0]} and {len(words) - 1} more"


# ==== Activations ====

FUSED_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "leaky_relu": "leaky_relu",
}
"""Names of activations in transformers, with the word of the same function here. Source: transformers, ACT2FN."""
TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate")
"""Names of the approximation of gelu by tanh, which a kernel replaces by gelu itself."""
TANH_GELU_ERROR = 0.0005
"""The largest difference between gelu and its approximation by tanh, rounded up. It is 0.00047, at 2.7 and -2.7."""


def _fused_activation(word: str) -> str:
    """Return the activation that a kernel can fuse for a name in transformers, or none."""
    if word in TANH_GELUS:
        return "gelu"
    found = FUSED_ACTIVATIONS.get(word, "none")
    return found if found in ACTIVATIONS else "none"


def _activation_note(word: str) -> str:
    """Return what to know about an activation; empty if a kernel computes it exactly."""
    if word in TANH_GELUS:
        return (
            f"{word} approximates gelu by tanh; kernels with activation gelu compute gelu itself, which differs by at most "
            f"{TANH_GELU_ERROR}"
        )
    return "" if word in FUSED_ACTIVATIONS else f"no kernel fuses {word}: the pack has kernels without an activation"


# ==== config.json ====

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 2**20
DTYPE_WORDS = {"float16": "f16", "bfloat16": "bf16", "half": "f16", "float32": "f32", "float": "f32"}
"""Types of weights in a config.json."""
_REQUIRED = object()


@dataclass(frozen=True)
class Config:
    """The fields of a config.json, checked as they are read. Errors name `path`."""

    path: Path
    fields: Mapping[str, Any]

    def size(self, name: str, default: Any = _REQUIRED) -> int:
        """Return a whole number from 1 to MAX_EXTENT. A missing field or null is the default."""
        value = self.fields.get(name)
        if value is None:
            if default is _REQUIRED:
                raise RequestError(f"{self.path}: {name} is missing: add it, or list the layers with --nk")
            return int(default)
        if type(value) is not int or not 1 <= value <= MAX_EXTENT:
            raise RequestError(
                f"{self.path}: {name} is {_shown(value)}: it must be a whole number from 1 to {MAX_EXTENT:,}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.fields.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise RequestError(f"{self.path}: {name} is {_shown(value)}: it must be true or false")
        return value

    def word(self, name: str, default: str) -> str:
        """Return a short text."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or not re.fullmatch(r"[\w.\-]{1,64}", value, re.ASCII):
            raise RequestError(f"{self.path}: {name} is {_shown(value)}: it must be a word")
        return value

    def or_else(self, **defaults: Any) -> Config:
        """Return the fields with other defaults for those that are missing or null."""
        return Config(
            self.path, {**defaults, **{name: value for name, value in self.fields.items() if value is not None}}
        )

    def within(self, name: str) -> Config:
        """Return the fields of a nested document."""
        value = self.fields.get(name)
        if not isinstance(value, Mapping):
            raise RequestError(
                f"{self.path}: {name} is {_shown(value)}: it must be an object with the text model's fields"
            )
        return Config(self.path, value)


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_model(path: Path) -> Model:
    """Read the layers of a model from its config.json, which may be given by its folder.

    Raises: RequestError if the file cannot be read, its architecture is unknown, or a field is missing or malformed.
    """
    file = path / CONFIG_NAME if path.is_dir() else path
    try:
        with open_input(file) as opened:
            text = opened.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise RequestError(
            f"model {path} cannot be read ({error.strerror}): name a {CONFIG_NAME} or its folder, or list the layers with --nk"
        ) from None
    if len(text) > MAX_CONFIG_BYTES:
        raise RequestError(f"{file} has more than {MAX_CONFIG_BYTES:,} B, so it is not a model's {CONFIG_NAME}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{file} is not JSON ({' '.join(str(error).split())[:100]})") from None
    if not isinstance(document, dict):
        raise RequestError(f"{file} holds no JSON object: name a {CONFIG_NAME} of Hugging Face")
    return model_of(Config(file, document))


def model_of(config: Config) -> Model:
    """Return the layers of a model from the fields of its config.json.

    Raises: RequestError if its architecture is unknown, or a field is missing or malformed.
    """
    name = config.word("model_type", "")
    if name not in MODELS:
        raise _unknown_model(config, name)
    found = MODELS[name](config)
    words = dict.fromkeys(layer.activation for layer in found if layer.activation != "none")
    notes = [note for note in map(_activation_note, words) if note]
    layers = tuple(replace(layer, activation=_fused_activation(layer.activation)) for layer in found)
    for layer in layers:
        if layer.n > MAX_EXTENT or layer.k > MAX_EXTENT:
            raise RequestError(
                f"{config.path}: {layer.name} has n {layer.n:,} and k {layer.k:,}: the limit is {MAX_EXTENT:,}"
            )
    if config.fields.get("quantization_config") is not None:
        notes.append(
            "the config names a quantisation of the weights; the pack has kernels for weights of 16 or 32 bits only"
        )
    return Model(name, layers, _dtype(config), (*notes, *NOTES.get(name, ())))


def _unknown_model(config: Config, name: str) -> RequestError:
    near = closest_words(name, MODELS)
    hint = f"did you mean {near[0]}? " if near else ""
    problem = f"model_type {name} is unknown" if name else "model_type is missing"
    return RequestError(
        f"{config.path}: {problem}: {hint}known are {', '.join(MODELS)}; for any other model list n and k of its layers: "
        "--nk 4096x14336,14336x4096"
    )


def _dtype(config: Config) -> str:
    """Return the type of the weights, or "" if the config does not name it. Both spellings of the field are read."""
    text = config.word("dtype", "") or config.word("torch_dtype", "")
    word = text.removeprefix("torch.")
    if word and word not in DTYPE_WORDS:
        raise RequestError(f"{config.path}: dtype {word} is unsupported: choose another with --dtype f16, bf16 or tf32")
    return DTYPE_WORDS.get(word, "")


# ==== Architectures ====
#
# Source of the layers: transformers 5, the modeling files of each model. Embeddings, convolutions and the products inside
# attention are no linear layers.


def _attention(config: Config, qkv_bias: bool, out_bias: bool, out: str = "o_proj") -> Iterator[Layer]:
    """Yield q, k and v apart and fused, and the output projection, with grouped keys and values."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    width = config.size("head_dim", hidden // heads or 1)
    q, kv = heads * width, config.size("num_key_value_heads", heads) * width
    yield Layer("q_proj", q, hidden, qkv_bias)
    yield Layer("k_proj", kv, hidden, qkv_bias)
    yield Layer("v_proj", kv, hidden, qkv_bias)
    yield Layer("q, k and v fused", q + 2 * kv, hidden, qkv_bias, fused=True)
    yield Layer(out, hidden, q, out_bias)


def _gated_mlp(config: Config, bias: bool, activation: str) -> Iterator[Layer]:
    """Yield gate (with the activation), up and down, and gate and up fused."""
    hidden, inner = config.size("hidden_size"), config.size("intermediate_size")
    yield Layer("gate_proj", inner, hidden, bias, activation)
    yield Layer("up_proj", inner, hidden, bias)
    yield Layer("gate and up fused", 2 * inner, hidden, bias, fused=True)
    yield Layer("down_proj", hidden, inner, bias)


def _head(config: Config, bias: bool = False) -> Layer:
    return Layer("lm_head", config.size("vocab_size"), config.size("hidden_size"), bias)


def _decoder(config: Config, qkv_bias: bool = False, out_bias: bool = False, mlp_bias: bool = False) -> list[Layer]:
    """Return the layers of a decoder block like that of Mistral."""
    mlp = _gated_mlp(config, mlp_bias, config.word("hidden_act", "silu"))
    return [*_attention(config, qkv_bias, out_bias), *mlp, _head(config)]


def _llama(config: Config) -> list[Layer]:
    bias = config.flag("attention_bias", False)
    return _decoder(config, bias, bias, config.flag("mlp_bias", False))


def _mixtral(config: Config) -> list[Layer]:
    router = Layer("gate (router)", config.size("num_local_experts", 8), config.size("hidden_size"))
    return [*_attention(config, False, False), router, _head(config)]


def _qwen2(config: Config) -> list[Layer]:
    return _decoder(config, qkv_bias=True)


def _qwen3(config: Config) -> list[Layer]:
    bias = config.flag("attention_bias", False)
    return _decoder(config.or_else(head_dim=128), bias, bias)


def _gemma(config: Config) -> list[Layer]:
    bias = config.flag("attention_bias", False)
    activation = config.word("hidden_activation", "") or config.word("hidden_act", "gelu_pytorch_tanh")
    if config.word("model_type", "") == "gemma" and activation == "gelu":
        activation = "gelu_pytorch_tanh"  # transformers reads the first Gemma's gelu in this way
    return [
        *_attention(config.or_else(head_dim=256), bias, bias),
        *_gated_mlp(config, False, activation),
        _head(config),
    ]


def _gemma3(config: Config) -> list[Layer]:
    return _gemma(config.within("text_config"))


def _phi(config: Config) -> list[Layer]:
    hidden, inner = config.size("hidden_size"), config.size("intermediate_size")
    return [
        *_attention(config, True, True, out="dense"),
        Layer("fc1", inner, hidden, True, config.word("hidden_act", "gelu_new")),
        Layer("fc2", hidden, inner, True),
        _head(config, bias=True),
    ]


def _phi3(config: Config) -> list[Layer]:
    hidden, inner, heads = (config.size(name) for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    width = config.size("head_dim", hidden // heads or 1)
    qkv = (heads + 2 * config.size("num_key_value_heads", heads)) * width
    return [
        Layer("qkv_proj", qkv, hidden),
        Layer("o_proj", hidden, heads * width),
        Layer("gate_up_proj", 2 * inner, hidden),
        Layer("down_proj", hidden, inner),
        _head(config),
    ]


def _gpt2(config: Config) -> list[Layer]:
    hidden = config.size("n_embd")
    inner = config.size("n_inner", 4 * hidden)
    stored = {"bias": True, "layout": CONV1D_LAYOUT}
    return [
        Layer("attn.c_attn", 3 * hidden, hidden, **stored),
        Layer("attn.c_proj", hidden, hidden, **stored),
        Layer("mlp.c_fc", inner, hidden, activation=config.word("activation_function", "gelu_new"), **stored),
        Layer("mlp.c_proj", hidden, inner, **stored),
        Layer("lm_head", config.size("vocab_size"), hidden),
    ]


def _encoder(config: Config, qkv_bias: bool = True) -> list[Layer]:
    """Return the layers of an encoder block of BERT or ViT."""
    hidden, inner = config.size("hidden_size"), config.size("intermediate_size")
    return [
        Layer("query, key, value", hidden, hidden, qkv_bias),
        Layer("query, key and value fused", 3 * hidden, hidden, qkv_bias, fused=True),
        Layer("attention.output", hidden, hidden, True),
        Layer("intermediate", inner, hidden, True, config.word("hidden_act", "gelu")),
        Layer("output", hidden, inner, True),
    ]


def _bert(config: Config) -> list[Layer]:
    hidden = config.size("hidden_size")
    transform = Layer("predictions.transform", hidden, hidden, True, config.word("hidden_act", "gelu"))
    decoder = Layer("predictions.decoder", config.size("vocab_size"), hidden, True)
    return [*_encoder(config), Layer("pooler", hidden, hidden, True), transform, decoder]


def _vit(config: Config) -> list[Layer]:
    classes = config.fields.get("id2label")
    count = len(classes) if isinstance(classes, Mapping) and classes else config.size("num_labels", 0)
    head = [Layer("classifier", count, config.size("hidden_size"), True)] if count else []
    return [*_encoder(config, config.flag("qkv_bias", True)), *head]


MODELS: Mapping[str, Callable[[Config], list[Layer]]] = {
    "llama": _llama,
    "mistral": _decoder,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma3,
    "gemma3_text": _gemma,
    "phi": _phi,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "bert": _bert,
    "vit": _vit,
}
"""The supported values of model_type, with the layers of each."""
NOTES = {
    "mixtral": ("the experts are grouped products, which the pack leaves out",),
    "gemma3": ("only the text model is packed",),
    "vit": ("the patch projection is a convolution, which the pack leaves out",),
}
"""Products that a pack leaves out, by model_type."""


# ==== Sizes, and torch modules ====

_NK = re.compile(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", re.ASCII)


def model_of_sizes(text: str, layout: str = "tn", bias: bool = False, activation: str = "none") -> Model:
    """Return layers from sizes such as `4096x14336,14336x4096`, which are n and k.

    Raises: RequestError for a malformed size or an unknown word.
    """
    if layout not in LAYOUTS:
        raise unknown_word("layout", layout, LAYOUTS)
    layers = []
    for word in filter(None, (part.strip().lower() for part in text.split(","))):
        match = _NK.fullmatch(word)
        if not match or max(map(int, match.groups())) > MAX_EXTENT:
            raise RequestError(
                f"--nk {word[:40]!a} is malformed: write n x k, such as 4096x14336, with at most {MAX_EXTENT:,}"
            )
        layers.append(Layer(word, int(match[1]), int(match[2]), bias, activation, layout))
    if not layers:
        raise RequestError("--nk names no layer: write n x k, such as 4096x14336,14336x4096")
    return Model("sizes", tuple(layers))


def model_of_module(module: Any, name: str = "") -> Model:
    """Return the linear layers of a torch module, by its named_modules: torch.nn.Linear, and the Conv1D of transformers.

    A layer has the activation that `hgemm.torch.patch(module, fuse=True, tanh_gelu=True)` would fuse. A layer of hgemm.torch.Linear
    has its own. The type is that of the first layer's weight.
    Raises: RequestError if there is no such layer, or `module` is not a torch module.
    """
    if not hasattr(module, "named_modules"):
        raise RequestError(f"module is a {type(module).__name__}: pass a torch.nn.Module")
    layers, dtypes, activations = [], [], _activations_that_patch_fuses(module)
    for path, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if getattr(weight, "ndim", 0) != 2:
            continue
        words = {base.__name__ for base in type(part).__mro__}
        bias, rows, columns = getattr(part, "bias", None) is not None, *map(int, weight.shape)
        activation = getattr(part, "activation", activations.get(id(part), "none"))
        if "Linear" in words:
            layers.append(Layer(path or "linear", rows, columns, bias, activation))
        elif "Conv1D" in words:
            layers.append(Layer(path or "conv1d", columns, rows, bias, activation, CONV1D_LAYOUT))
        else:
            continue
        dtypes.append(str(weight.dtype).removeprefix("torch."))
    if not layers:
        raise RequestError(f"{type(module).__name__} has no torch.nn.Linear: pass a module that has one")
    return Model(name or type(module).__name__, tuple(layers), DTYPE_WORDS.get(dtypes[0], ""))


def _activations_that_patch_fuses(module: Any) -> dict[int, str]:
    """Return the activations that follow layers of a torch module, by the id of the layer."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        return {}
    from hgemm.torch.layers import fusions_of  # needs torch

    return {layer: word for layer, (_, word) in fusions_of(module, tanh_gelu=True).items()}
