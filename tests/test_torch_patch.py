"""hgemm.torch.patch on models of torch and transformers, on the CPU: what it replaces, what it fuses, and undoing it."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from torch import nn  # noqa: E402

import hgemm.torch as hgemm_torch  # noqa: E402
import hgemm.torch.layers as layers  # noqa: E402
from generator.pack.models import model_of_module  # noqa: E402
from hgemm.errors import ProblemError, RequestError, UnsupportedError  # noqa: E402


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the layers compute with torch on the CPU, and a library support everything but leaky_relu. Return the activations."""
    found = []

    def compute(x, weight, bias=None, activation="none", batch_invariant=False):
        found.append(activation)
        y = nn.functional.linear(x, weight, bias)
        return y if activation == "none" else getattr(nn.functional, activation)(y)

    def check(module, layout, activation, batch_invariant):
        if activation == "leaky_relu":
            raise UnsupportedError("no kernel computes leaky_relu")

    monkeypatch.setattr(layers, "linear", compute)
    monkeypatch.setattr(layers, "_check", check)
    monkeypatch.setattr(layers, "used_library", lambda: None)
    return found


def test_patch_replaces_and_restores_linear_layers(calls: list[str]) -> None:
    class Odd(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Odd(16, 4), nn.Linear(4, 4, bias=False))
    x, names = torch.randn(3, 8), [*model.state_dict()]
    expected, weights = model(x), [*model.parameters()]
    patch = hgemm_torch.patch(model)
    assert [type(layer) for layer in model] == [hgemm_torch.Linear, nn.ReLU, Odd, hgemm_torch.Linear]
    assert torch.equal(model(x), expected) and calls == ["none", "none"]
    assert [*model.state_dict()] == names and all(map(lambda a, b: a is b, model.parameters(), weights))
    assert [one.name for one in patch.replaced] == ["0", "3"]
    assert str(patch).splitlines()[0] == "2 linear layers use the library, 1 do not"
    assert "2: unchanged, it is a Odd, a subclass of Linear" in str(patch)
    copied = copy.deepcopy(model)
    patch.unpatch()
    patch.unpatch()
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, Odd, nn.Linear]
    assert torch.equal(model(x), expected) and len(calls) == 2
    assert torch.equal(copied(x), expected) and len(calls) == 4


def test_layers_can_be_batch_invariant(calls: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    patch = hgemm_torch.patch(model, "0", batch_invariant=True)
    assert model[0].batch_invariant and "batch_invariant=True" in str(model[0])
    patch.unpatch()
    assert "batch_invariant" not in vars(model[0])
    assert hgemm_torch.Linear.of(nn.Linear(4, 4), batch_invariant=True).batch_invariant


def test_names_select_layers(calls: list[str]) -> None:
    model = nn.ModuleDict({"attention": nn.Linear(4, 4), "mlp": nn.Linear(4, 4), "head": nn.Linear(4, 4)})
    with hgemm_torch.patch(model, ["a*", "m*"], exclude="*lp") as patch:
        assert [one.name for one in patch.replaced] == ["attention"]
        assert {(one.name, one.reason) for one in patch.kept} == {
            (name, "its name is not selected") for name in ("mlp", "head")
        }
    assert type(model["attention"]) is nn.Linear


def test_patterns_that_match_no_layer_are_reported(calls: list[str]) -> None:
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"up": nn.Linear(4, 4)}), "head": nn.Linear(4, 4)})
    patch = hgemm_torch.patch(model, ["mlp", "*up"], exclude=["lm_head", "head"])
    assert patch.unmatched == ["mlp", "lm_head"] and [one.name for one in patch.replaced] == ["mlp.up"]
    assert "'mlp' matches no linear layer" in str(patch) and "'lm_head' matches no linear layer" in str(patch)
    assert hgemm_torch.patch(nn.Sequential(nn.ReLU())).unmatched == ["*"]
    patch = hgemm_torch.patch(model)
    assert not patch.unmatched and "matches" not in str(patch)


def test_patch_and_pack_reject_what_is_no_module() -> None:
    with pytest.raises(ProblemError, match="^model is a str: pass a torch.nn.Module"):
        hgemm_torch.patch("model")
    with pytest.raises(RequestError, match="^module is a str: pass a torch.nn.Module"):
        model_of_module("model")


def test_tied_weights_stay_tied(calls: list[str]) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    twice = nn.ModuleDict({"one": model["head"], "two": model["head"]})
    hgemm_torch.patch(model)
    assert model["head"].weight is model["embed"].weight
    assert len(hgemm_torch.patch(twice).kept) == 1, "a layer that is patched already is a subclass"


def test_activations_are_fused_on_request(calls: list[str]) -> None:
    def sequence(*activations):
        return nn.Sequential(*(one for act in activations for one in (nn.Linear(4, 4), act)), nn.Linear(4, 4))

    shared = nn.SiLU()
    model = sequence(
        nn.GELU(), nn.ReLU(), shared, shared, nn.GELU("tanh"), nn.Tanh(), nn.LeakyReLU(), nn.LeakyReLU(0.5)
    )
    words = [layer.activation for layer in model_of_module(model).layers]
    assert words == ["gelu", "relu", "none", "none", "gelu", "none", "leaky_relu", "none", "none"]
    hooked = sequence(nn.ReLU())
    hooked[0].register_forward_hook(lambda *given: None)
    x = torch.randn(3, 4)
    expected = model(x)
    with hgemm_torch.patch(model, fuse=True) as patch:
        assert torch.allclose(model(x), expected)
        assert calls == ["gelu", "relu", *["none"] * 7] and len(patch.replaced) == 9
        assert "0: Linear, then gelu" in str(patch)
    assert type(model[1]) is nn.GELU and torch.equal(model(x), expected)
    assert [one.activation for one in hgemm_torch.patch(hooked, fuse=True).replaced] == ["none", "none"]
    with hgemm_torch.patch(model, fuse=True, tanh_gelu=True):
        assert torch.allclose(model(x), expected, atol=1e-3) and calls[9:] == [
            "gelu",
            "relu",
            "none",
            "none",
            "gelu",
            *["none"] * 4,
        ]


def test_patched_layers_support_gradients_and_compilation(calls: list[str]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)), torch.randn(3, 4)
    expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    with hgemm_torch.patch(model, fuse=True):
        found = torch.autograd.grad(model(x).sum(), [*model.parameters()])
        compiled = torch.compile(model, backend="aot_eager")(x)
    assert all(map(torch.allclose, found, expected)) and torch.allclose(compiled, model(x))


@pytest.mark.parametrize(
    ("has_gpu", "reason"), [(True, ": move the model to the GPU first"), (False, ", and torch finds no GPU here")]
)
def test_unsupported_layers_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, reason: str
) -> None:
    monkeypatch.setattr(layers, "used_library", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    model = nn.Sequential(nn.Linear(4, 4))
    (kept,) = hgemm_torch.patch(model).kept
    assert kept.reason == f"its weight is on cpu{reason}" and type(model[0]) is nn.Linear


# ---- Models of transformers -------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}


def model_of(name: str, **options):
    transformers = pytest.importorskip("transformers")
    if name == "GPT2":
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, **options)
        return transformers.GPT2LMHeadModel(config).eval()
    if name == "Bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, intermediate_size=64, **options)).eval()
    config = getattr(transformers, f"{name}Config")(**SMALL, intermediate_size=64, num_key_value_heads=2, **options)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    ("name", "options", "layer", "activation"),
    [
        ("GPT2", {"activation_function": "gelu"}, "transformer.h.0.mlp.c_fc", "gelu"),
        ("GPT2", {}, "transformer.h.0.mlp.c_fc", "none"),
        ("Bert", {}, "bert.encoder.layer.0.intermediate.dense", "gelu"),
        ("Llama", {}, "model.layers.0.mlp.gate_proj", "silu"),
        ("Mistral", {}, "model.layers.0.mlp.gate_proj", "silu"),
        ("Qwen2", {}, "model.layers.0.mlp.gate_proj", "silu"),
    ],
)
def test_patches_models_of_transformers(
    calls: list[str], name: str, options: dict, layer: str, activation: str
) -> None:
    model = model_of(name, **options)
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = model(tokens).logits
        with hgemm_torch.patch(model, fuse=True) as patch:
            found = model(tokens).logits
        assert torch.equal(model(tokens).logits, expected)
    assert torch.allclose(found, expected, atol=1e-5) and not patch.kept
    assert len(calls) == len(patch.replaced)
    assert next(one.activation for one in patch.replaced if one.name == layer) == activation


# ---- The benchmark of models ------------------------------------------------------------------------------------------

TINY = {
    "gpt2": {"n_embd": 32, "n_head": 4, "vocab_size": 50, "n_positions": 64},
    **dict.fromkeys(
        ("llama", "mistral", "qwen2"),
        {**SMALL, "num_key_value_heads": 2, "intermediate_size": 64, "num_hidden_layers": 1},
    ),
    "bert": {**SMALL, "intermediate_size": 64, "max_position_embeddings": 64},
}


@pytest.mark.parametrize("name", TINY)
def test_benchmark_compares_a_patched_copy(calls: list[str], name: str) -> None:
    pytest.importorskip("transformers")
    from benchmarks import models

    sizes = {key: value for key, value in TINY[name].items() if key != "num_hidden_layers"}
    base = models.make_model(name, "bf16", 1, device="cpu", **sizes)
    ours = models.shared_copy(base)
    assert all(map(lambda a, b: a is b, base.parameters(), ours.parameters()))
    patch = hgemm_torch.patch(ours, fuse=True)
    assert patch.replaced and not any(isinstance(one, hgemm_torch.Linear) for one in base.modules())
    tokens = torch.arange(10)[None]
    with torch.no_grad(), models.runner(base, tokens, "eager") as one, models.runner(ours, tokens, "eager") as other:
        found = models.errors({"torch": one(), "patched": other()}, copy.deepcopy(base).double()(tokens).logits)
    assert 0 < found["patched"] <= models.bound(found["torch"], "bf16")


def test_benchmark_alternates_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import models

    order = []
    monkeypatch.setattr(models, "block_ms", lambda run, calls: run())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runs = {"torch": lambda: order.append("t") or 3.0, "patched": lambda: order.append("p") or 2.0}
    found = models.measure(runs, "steady", models.Plan(seconds=0, load_s=0))
    assert found == {"ratio": 1.5, "spread": 0.0, "error": 0.0, "rounds": 8, "torch_ms": 3.0, "patched_ms": 2.0}
    assert "".join(order) == "tp" + 8 * "tptppt"
    row = {"model": "llama", "dtype": "f16", "tokens": 1, "mode": "graph", "steady": found, "burst": found}
    row |= {"ok": False, "patched_error": 0.1, "torch_error": 0.001}
    text = models.line(row, ["burst", "steady"])
    assert text.count("1.500 (0.000)") == 2 and "error exceeds the bound" in text
    assert models.line({**row, "failed": "out of memory"}, ["steady"]).endswith("failed: out of memory")


def test_benchmark_shares_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import models

    now = iter([0.0, 60.0, 200.0])
    monkeypatch.setattr(models, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    budget = models.Budget(until=100.0, cases=10)
    plans = [budget.plan() for _ in range(3)]
    assert [plan.seconds for plan in plans] == pytest.approx([4.0, 0.4 * 40 / 9, 0.0])
    assert plans[0].load_s == 2.0 and plans[2].load_s == 0.0


def test_layers_under_autocast_need_kernels_of_its_type() -> None:
    layer = nn.Linear(4, 8)
    assert layers._multiplied(layer.weight) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layers._kind(layer, "tn", "none").dtype_a == "bf16"
    assert layers._kind(layer.half(), "tn", "relu") == layers.Kind(
        "tn", "f16", "f16", "f16", bias="row", activation="relu"
    )
