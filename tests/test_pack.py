"""Model packs: the layers of a model, the kernels chosen for them, and the verb `hgemm pack`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import hgemm
from exports import FAST_CC, need_compiler

from generator.build.pipeline import Outcome
from generator.errors import RequestError
from generator.pack import kernels
from generator.pack.kernels import (
    LAUNCH_COSTS,
    MAX_LOSS,
    ROWS,
    PackChooser,
    candidates_for,
    cheap_cover,
    choosers_of,
    compile_cost,
    dtypes_of,
    pack_model,
)
from generator.pack.models import MODELS, Layer, Model, distinct, model_of_module, model_of_sizes, read_model
from generator.spec import symbol_of
from generator.store.library import Library
from generator.tuning import catalog_tiles, planned_record
from hgemm.dispatch_table import OF_KERNEL, DispatchTable, clocks_of
from hgemm.packed import read_pack
from hgemm.problem import ACTIVATIONS, LONG_ACTIVATIONS, Kind
from hgemm.selection import Selector
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target

# ==== Layers ====

BLOCK = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "vocab_size": 1000}
GROUPED = {**BLOCK, "num_key_value_heads": 2}


def written(folder: Path, **fields: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def facts(path: Path) -> dict[str, tuple]:
    """Return n, k, bias and activation of each layer of a config."""
    return {one.name: (one.n, one.k, one.bias, one.activation) for one in read_model(path).layers}


def test_llama_has_grouped_keys_a_gated_mlp_and_no_bias(tmp_path: Path) -> None:
    assert facts(written(tmp_path, model_type="llama", **GROUPED)) == {
        "q_proj": (64, 64, False, "none"),
        "k_proj": (32, 64, False, "none"),
        "v_proj": (32, 64, False, "none"),
        "q, k and v fused": (128, 64, False, "none"),
        "o_proj": (64, 64, False, "none"),
        "gate_proj": (160, 64, False, "silu"),
        "up_proj": (160, 64, False, "none"),
        "gate and up fused": (320, 64, False, "none"),
        "down_proj": (64, 160, False, "none"),
        "lm_head": (1000, 64, False, "none"),
    }


def test_attention_uses_the_head_width_of_the_config(tmp_path: Path) -> None:
    found = facts(written(tmp_path, model_type="mistral", head_dim=32, **GROUPED))
    assert found["q_proj"][:2] == (128, 64) and found["k_proj"][:2] == (64, 64) and found["o_proj"][:2] == (64, 128)


@pytest.mark.parametrize(
    "fields, biased",
    [
        ({"model_type": "qwen2"}, {"q_proj", "k_proj", "v_proj", "q, k and v fused"}),
        ({"model_type": "qwen3"}, set()),
        (
            {"model_type": "llama", "attention_bias": True},
            {"q_proj", "k_proj", "v_proj", "q, k and v fused", "o_proj"},
        ),
        (
            {"model_type": "llama", "mlp_bias": True},
            {"gate_proj", "up_proj", "gate and up fused", "down_proj"},
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_each_model_has_its_biases(fields: dict, biased: set[str], tmp_path: Path) -> None:
    found = facts(written(tmp_path, **GROUPED, **fields))
    assert {name for name, (_, _, bias, _) in found.items() if bias} == biased


@pytest.mark.parametrize("name, width", [("qwen3", 128), ("gemma", 256), ("gemma2", 256), ("gemma3_text", 256)])
def test_models_have_their_own_default_head_width(name: str, width: int, tmp_path: Path) -> None:
    assert facts(written(tmp_path, model_type=name, **GROUPED))["q_proj"][0] == 4 * width


def test_gpt2_stores_its_weights_transposed_and_has_biases(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, model_type="gpt2", n_embd=48, n_inner=None, vocab_size=1001))
    found = {one.name: one for one in model.layers}
    assert found["attn.c_attn"] == Layer("attn.c_attn", 144, 48, bias=True, layout="tt")
    assert found["mlp.c_fc"] == Layer("mlp.c_fc", 192, 48, bias=True, activation="gelu", layout="tt")
    assert found["lm_head"] == Layer("lm_head", 1001, 48)
    assert "tanh" in " ".join(model.notes)


def test_quantised_weights_are_noted(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, model_type="llama", quantization_config={"quant_method": "gptq"}, **GROUPED))
    assert "quantisation" in " ".join(model.notes)


def test_encoders_have_biases_and_an_activation(tmp_path: Path) -> None:
    bert = facts(written(tmp_path / "bert", model_type="bert", **BLOCK))
    assert bert["intermediate"] == (160, 64, True, "gelu") and bert["predictions.decoder"][0] == 1000
    labels = {str(number): "label" for number in range(10)}
    vit = facts(written(tmp_path / "vit", model_type="vit", id2label=labels, qkv_bias=False, **BLOCK))
    assert vit["classifier"] == (10, 64, True, "none") and not vit["query, key, value"][2]


def test_other_models_have_their_layers(tmp_path: Path) -> None:
    phi = facts(written(tmp_path / "phi", model_type="phi", **BLOCK))
    assert phi["fc1"] == (160, 64, True, "gelu") and phi["lm_head"][2]
    phi3 = facts(written(tmp_path / "phi3", model_type="phi3", **GROUPED))
    assert phi3["qkv_proj"][:2] == (128, 64) and phi3["gate_up_proj"][:2] == (320, 64)
    mixtral = read_model(written(tmp_path / "mixtral", model_type="mixtral", num_local_experts=8, **GROUPED))
    assert [one.n for one in mixtral.layers if "router" in one.name] == [8] and "experts" in mixtral.notes[0]
    gemma3 = facts(written(tmp_path / "gemma3", model_type="gemma3", text_config={**GROUPED, "head_dim": 16}))
    assert gemma3["q_proj"][:2] == (64, 64) and gemma3["gate_proj"][3] == "gelu"


def test_equal_layers_are_packed_once() -> None:
    layers = [Layer("a", 8, 8), Layer("b", 8, 8), Layer("c", 8, 16)]
    assert [(one.name, one.k) for one in distinct(layers)] == [("a, b", 8), ("c", 16)]
    (many,) = distinct([Layer(f"h.{number}", 8, 8) for number in range(32)])
    assert many.name == "h.0 and 31 more"


def test_layers_are_packed_with_and_without_their_activation() -> None:
    words = [kind.activation for kind in Layer("a", 8, 8, True, "silu").kinds("bf16")]
    assert words == ["none", "silu"]
    assert Layer("a", 8, 8, True).kinds("tf32") == (Kind("tn", "tf32", "tf32", "f32", bias="row"),)


def test_kernels_without_the_activation_can_be_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["pack", "--nk", "64x64", "--activation", "silu", "--arch", "80", "--rows", "8:8", "-j", "1"]
    both = json.loads(hgemm(capsys, *words, "--dry-run", "--json")[1])
    packed = {one["kind"] for choice in both["choices"] for one in choice["ranges"]}
    assert packed == {str(kind) for kind in Layer("a", 64, 64, activation="silu").kinds("f16")} and len(packed) == 2
    status, out, err = hgemm(capsys, *words, "--activation-only", "--to", tmp_path)
    assert status == 0, err
    assert {record.data["spec"]["activation"] for record in Library(tmp_path).records()} == {"silu"}
    assert {layer.kind.activation for layer in read_pack(tmp_path)} == {"silu"}
    assert [line.split()[5] for line in out.splitlines()[:2]] == ["activation", "silu"], "one row for the layer"


def test_a_model_keeps_kernels_of_layers_that_have_no_activation() -> None:
    layers = [Layer("gate", 64, 64, activation="silu"), Layer("up", 64, 64)]
    (chooser,) = choosers_of(Model("mlp", tuple(layers)), ["sm_80"], ["f16"], rows=(8, 8), activation_only=True)
    assert [(one.name, one.kind.activation) for one in chooser.layers()] == [("gate", "silu"), ("up", "none")]


def test_tiles_of_the_catalog_are_candidates_with_any_bias_and_activation() -> None:
    kind = Kind("tn", "bf16", "bf16", "bf16", bias="row", activation="gelu")
    found = {
        one.plan.spec.cta_tile
        for one in candidates_for(kind, SelectionQuery.dense(kind, (777, 4096, 1024, 1), 0), "sm_90a")
    }
    tiles = {str(tile) for group in catalog_tiles() for tile in group["tile"].split(",")}
    assert len(tiles) > 50 and len(tiles & {str(one) for one in found}) > 0.8 * len(tiles)


@pytest.mark.parametrize("field", ["torch_dtype", "dtype"])
def test_type_comes_from_the_config(field: str, tmp_path: Path) -> None:
    model = read_model(written(tmp_path, model_type="llama", **{field: "bfloat16"}, **BLOCK))
    assert dtypes_of(model) == ["bf16"] and dtypes_of(model, "fp16,tf32") == ["f16", "tf32"]
    assert dtypes_of(replace(model, dtype="")) == ["f16"]
    with pytest.raises(RequestError, match="float32.*--dtype"):
        dtypes_of(replace(model, dtype="f32"))


# ---- What is refused ----


def test_unknown_model_error_lists_known_models(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="did you mean llama.*--nk") as caught:
        read_model(written(tmp_path, model_type="lama", **BLOCK))
    assert all(name in str(caught.value) for name in MODELS)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({**BLOCK, "model_type": None}, "model_type is missing"),
        ({**BLOCK, "model_type": 7}, "model_type is 7"),
        ({**BLOCK, "hidden_size": None}, "hidden_size is missing"),
        ({**BLOCK, "hidden_size": "64"}, "hidden_size is '64'"),
        ({**BLOCK, "hidden_size": True}, "hidden_size is True"),
        ({**BLOCK, "hidden_size": 0}, "hidden_size is 0"),
        ({**BLOCK, "vocab_size": 2**40}, "vocab_size is 1099511627776"),
        ({**BLOCK, "intermediate_size": 2**30}, "gate and up fused has n"),
        ({**BLOCK, "attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({**BLOCK, "hidden_act": ["silu"]}, "hidden_act"),
        ({**BLOCK, "torch_dtype": "int8"}, "dtype int8"),
        ({**BLOCK, "model_type": "gemma3", "text_config": 1}, "text_config is 1"),
    ],
)
def test_malformed_config_gives_a_one_line_error(fields: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        read_model(written(tmp_path, **{"model_type": "llama", **fields}))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"model_type": "llama", ' * 3, "[" * 100_000])
def test_files_that_are_no_config_are_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RequestError):
        read_model(tmp_path)


def test_a_missing_or_huge_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_model(tmp_path / "none")
    (tmp_path / "config.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(RequestError, match="1,048,576"):
        read_model(tmp_path)


def test_sizes_are_n_and_k() -> None:
    model = model_of_sizes("64x32, 32X64", bias=True)
    assert [(one.n, one.k, one.bias) for one in model.layers] == [(64, 32, True), (32, 64, True)]
    for text in ("", "64", "64x", "0x4", "64x32x8", "99999999999x1", "4294967296x4"):
        with pytest.raises(RequestError, match="--nk"):
            model_of_sizes(text)


# ---- Modules ----


class Weight:
    """Stands in for a parameter of torch."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.ndim, self.dtype = shape, len(shape), "torch.bfloat16"


class Linear:
    def __init__(self, n: int, k: int, bias: bool = False) -> None:
        self.weight, self.bias = Weight(n, k), Weight(n) if bias else None


class FusedLinear(Linear):
    activation = "gelu"


class Conv1D:
    """Stands in for the layer of transformers whose weight is (k, n)."""

    bias = None

    def __init__(self, k: int, n: int) -> None:
        self.weight = Weight(k, n)


class Embedding:
    weight = Weight(100, 8)


class Module:
    def __init__(self, **parts: object) -> None:
        self.parts = parts

    def named_modules(self) -> list[tuple[str, object]]:
        return [("", self), *self.parts.items()]


def test_the_linear_layers_of_a_module_are_found() -> None:
    module = Module(up=Linear(32, 8, bias=True), down=FusedLinear(8, 32), c_fc=Conv1D(8, 24), words=Embedding())
    model = model_of_module(module)
    assert model.dtype == "bf16"
    assert list(model.layers) == [
        Layer("up", 32, 8, bias=True),
        Layer("down", 8, 32, activation="gelu"),
        Layer("c_fc", 24, 8, layout="tt"),
    ]


def test_a_module_without_linear_layers_is_rejected() -> None:
    with pytest.raises(RequestError, match="no torch.nn.Linear"):
        model_of_module(Module(words=Embedding()))


# ==== Kernels ====


@pytest.fixture(scope="module")
def chooser() -> PackChooser:
    layers = [
        Layer("mlp", 14336, 4096, activation="silu"),
        Layer("qkv", 6144, 4096),
        Layer("odd", 1001, 512, bias=True),
    ]
    return PackChooser(layers, "bf16", "sm_90a", rows=(1, 2048))


@pytest.mark.parametrize("loss", [0.02, 0.1])
def test_pack_stays_within_its_loss(loss: float, chooser: PackChooser) -> None:
    choice = chooser.choose(loss)
    symbols = {symbol_of(plan.spec) for plan in choice.plans}
    places = [at for at, one in enumerate(chooser.candidates) if one.symbol in symbols]
    ratios = chooser.clocks[:, places].min(axis=1) / chooser.clocks.min(axis=1)
    assert ratios.max() - 1 == pytest.approx(choice.worst_loss) and choice.worst_loss <= loss
    assert choice.mean_loss <= choice.worst_loss


def test_an_architecture_without_cp_async_has_small_tiles_without_splits() -> None:
    chooser = PackChooser([Layer("a", 4096, 4096)], "f16", "sm_75", (1, 16))
    specs = [one.plan.spec for one in chooser.candidates]
    assert {str(spec.cta_tile) for spec in specs if spec.schedule.kind == "one_tile"} >= {"16x64x64", "32x64x64"}
    without = [at for at, one in enumerate(chooser.problems) if one.query.workspace_bytes == 0]
    assert {specs[at].cta_tile.m for at in chooser.clocks[without].argmin(axis=1)} == {16}
    assert all(one.plan.spec.copy == "cp_async" for one in PackChooser([Layer("a", 64, 64)], "f16", "sm_80").candidates)


@pytest.mark.parametrize("loss", [-0.01, float("nan")])
def test_a_loss_that_no_kernel_has_is_rejected(loss: float, chooser: PackChooser) -> None:
    with pytest.raises(RequestError, match="max_loss is .*: pass 0 or more"):
        chooser.choose(loss)


def test_a_larger_loss_needs_fewer_kernels(chooser: PackChooser) -> None:
    counts = [len(chooser.choose(loss).plans) for loss in (0.0, 0.05, 0.2, 1.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_every_row_of_a_layer_has_one_kernel_of_the_pack(chooser: PackChooser) -> None:
    choice = chooser.choose()
    symbols = {symbol_of(plan.spec) for plan in choice.plans}
    by_layer: dict = {}
    for one in choice.ranges:
        by_layer.setdefault((one.layer, one.kind, one.workspace), []).append(one)
    for workspace in (True, False):
        kinds = {kind.activation for name, kind, its in by_layer if name == "mlp" and its == workspace}
        assert kinds == {"none", "silu"}
    for ranges in by_layer.values():
        assert ranges[0].first == 1 and ranges[-1].last == 2048
        assert all(one.last + 1 == other.first for one, other in zip(ranges, ranges[1:]))
        assert {one.symbol for one in ranges} <= symbols


def test_library_selects_the_kernels_of_the_pack(chooser: PackChooser) -> None:
    choice = chooser.choose()
    table = DispatchTable.of([planned_record(plan) for plan in choice.plans])
    selector = Selector(table, Target.typical("sm_90"))
    sizes = {layer.name: (layer.n, layer.k) for layer in (problem.layer for problem in chooser.problems)}
    for one in choice.ranges:
        workspace = ANY_WORKSPACE if one.workspace else 0
        query = SelectionQuery.dense(one.kind, (one.first, *sizes[one.layer], 1), workspace)
        clocks = {other.symbol: other.clocks for other in selector.ranked(query)}
        assert selector.choose(query).clocks == clocks[one.symbol]


def test_pack_is_chosen_for_rows_that_are_close_to_all_others(chooser: PackChooser) -> None:
    """A tile that wastes no rows at 768 wastes many at 777."""
    rows = sorted(chooser.rows)
    assert all(more - few <= max(1, few / 32) for few, more in zip(rows, rows[1:]))


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_activations_add_to_the_latency_of_a_tile_and_in_part_to_the_time_of_several(activation: str) -> None:
    kind = Kind("tn", "f16", "f16", "f16")
    query = SelectionQuery.dense(kind, (2048, 4096, 4096, 1), 0)
    added: dict[int, set[float]] = {}
    for plain in candidates_for(kind, query, "sm_90a"):
        if plain.row.tile_m < 64:  # a few clocks, rounded
            continue
        record = planned_record(plain.plan)
        before, after = (
            clocks_of({**record, "spec": {**record["spec"], "activation": word}}) for word in ("none", activation)
        )
        assert after.single_tile > before.single_tile and after.k_tile == before.k_tile
        share = (after.tile - before.tile) / (after.single_tile - before.single_tile)
        added.setdefault(before.tiles_per_sm, set()).add(round(share, 2))
    assert added[1] == {0.0} and added[2] == {0.5 if activation in LONG_ACTIVATIONS else 0.0}
    (small, *_) = candidates_for(kind, query, "sm_80")
    record = planned_record(small.plan)
    assert clocks_of({**record, "spec": {**record["spec"], "activation": activation}}) == clocks_of(record)


def test_kernels_use_wgmma_if_the_alignment_allows_it() -> None:
    plans = PackChooser([Layer("a", 512, 512)], "f16", "sm_90a", (1, 256)).choose().plans
    assert {plan.spec.arch for plan in plans} == {"sm_90a"}
    odd = PackChooser([Layer("a", 511, 511)], "f16", "sm_90a", (1, 256)).choose().plans
    assert {plan.spec.arch for plan in odd} == {"sm_90"} and all(plan.spec.align_a == 1 for plan in odd)


def test_a_type_that_the_architecture_lacks_is_rejected() -> None:
    with pytest.raises(RequestError, match="sm_75 multiplies f16 only"):
        PackChooser([Layer("a", 64, 64)], "bf16", "sm_75")


def test_cover_is_cheap_and_complete() -> None:
    losses = np.array([[0.0, 0.2, 0.04], [0.3, 0.0, 0.04], [0.3, 0.0, 0.01]])
    assert cheap_cover(losses, 0.05, [1, 1, 1]) == [2]
    assert sorted(cheap_cover(losses, 0.05, [1, 1, 4])) == [0, 1]
    assert sorted(cheap_cover(losses, 0.0, [1, 1, 1])) == [0, 1]
    assert sorted(cheap_cover(losses, 0.05, [1, 1, 4], kept=[2])) == [2]


def test_kernels_whose_launches_decide_the_splits_take_long_to_compile() -> None:
    query = SelectionQuery.dense(Kind(), (777, 4096, 4096, 1))
    costs: dict[str, set[float]] = {}
    for one in candidates_for(Kind(), query, "sm_90a", wide=True):
        costs.setdefault(str(one.plan.spec.schedule), set()).add(compile_cost(one.plan.spec))
    assert costs.pop("launch") == {*LAUNCH_COSTS.values()} and {*map(max, costs.values())} == {1.0}


def test_packs_for_wgmma_choose_from_the_measured_kernels() -> None:
    query = SelectionQuery.dense(Kind(), (777, 4096, 4096, 1))
    few, many = candidates_for(Kind(), query, "sm_90a"), candidates_for(Kind(), query, "sm_90a", wide=True)
    others = {one.symbol: one for one in many if one not in few}
    assert len(others) > 1000 and all(one.row.calibration == OF_KERNEL for one in others.values())
    assert candidates_for(Kind(), query, "sm_80") == candidates_for(Kind(), query, "sm_80", wide=True)
    layers = [Layer("up", 14336, 4096)]
    assert {symbol_of(plan.spec) for plan in PackChooser(layers, "f16", "sm_90a", (512, 1024)).choose().plans} & {
        *others
    }


def test_a_kernel_that_does_not_build_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of_sizes("64x64")
    choosers = choosers_of(model, ["sm_80"], ["f16"], rows=(1, 8192))
    first, reason = symbol_of(choosers[0].choose(1.0).plans[0].spec), "it spills. Try --tile 8x8x8."

    class Made:
        key, data = "", {"files": {"kernel.cubin": {"bytes": 100}, "kernel.ptx": {"bytes": 10}}}

    def make(plans, settings, processes):
        for place, plan in enumerate(plans):
            symbol = symbol_of(plan.spec)
            failed = symbol == first
            yield place, Outcome(symbol, "failed" if failed else "built", 1.0, None if failed else Made(), reason)

    monkeypatch.setattr(kernels, "make", make)
    lines: list[str] = []
    done = pack_model(model, tmp_path, "80", max_loss=1.0, rows=(1, 8192), progress=lines.append)
    assert done.dropped == {first: reason} and sum(line.endswith(f": failed {first}") for line in lines) == 1
    assert {line.rpartition(" ")[2] for line in lines} == {first, *done.symbols}
    assert [(one.n, one.k, one.kind, one.rows) for one in read_pack(tmp_path)] == [(64, 64, Kind(), (1, 8192))]
    assert first not in done.symbols and done.bytes == 110 * len(done.symbols)
    words = (
        "--nk",
        "64x64",
        "--arch",
        "80",
        "--rows",
        "1:8192",
        "--loss",
        "100",
        "--to",
        tmp_path,
        "--json",
        "--quiet",
    )
    status, _, err = hgemm(capsys, "pack", *words)
    assert status == 0 and f"{first} failed (it spills): other kernels replace it" in err


# ==== The verb ====


def test_a_dry_run_lists_layers_and_builds_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = written(tmp_path / "model", model_type="llama", torch_dtype="bfloat16", **GROUPED)
    words = ("pack", folder, "--arch", "80", "--to", tmp_path / "lib")
    status, short, err = hgemm(capsys, *words, "--dry-run")
    assert status == 0 and "nothing was built" in err and "--explain" in err
    assert "q, k and v fused" in short and "hgemm_sm80" not in short and re.search("^chose .* kernels", short, re.M)
    status, out, err = hgemm(capsys, *words, "--explain")
    assert status == 0 and not (tmp_path / "lib").exists()
    assert "nothing was built" in err and set(short.splitlines()) <= set(out.splitlines())
    assert "hgemm_sm80_tn_bf16" in out and str(ROWS[1]) in out
    rows = [line.split() for line in out.splitlines()]
    counts = {row[-2]: int(row[-1]) for row in rows if row[:1] == ["gate_proj"] and row[-1].isdecimal()}
    served = {row[1] for row in rows if row[:1] == ["gate_proj"] and row[-1].startswith("hgemm_")}
    assert set(counts) == served == {"none", "silu"} and min(counts.values()) >= 1
    words = ("--arch", "90a", "--rows", "1:64", "--dry-run", "--json")
    status, out, err = hgemm(capsys, "pack", folder, *words)
    document = json.loads(out)
    assert status == 0 and document["dtypes"] == ["bf16"] and document["choices"][0]["worst_loss"] <= MAX_LOSS


def test_explain_shows_the_kernels_of_calls_with_and_without_a_workspace(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("pack", "--nk", "4096x4096", "--arch", "75", "--rows", "1:64", "--explain")
    status, out, _ = hgemm(capsys, *words, "--json")
    (choice,) = json.loads(out)["choices"]
    served = {
        workspace: {one["symbol"] for one in choice["ranges"] if one["workspace"] == workspace}
        for workspace in (True, False)
    }
    assert status == 0 and served[True] != served[False] and len(served[True] | served[False]) == choice["kernels"]
    status, out, _ = hgemm(capsys, *words)
    default, other = out.split("calls without a workspace")
    assert all(symbol in default for symbol in served[True]) and all(symbol in other for symbol in served[False])


def test_a_pack_has_kernels_for_the_rows_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("pack", "--nk", "64x64", "--arch", "80,90a", "--explain")
    status, out, _ = hgemm(capsys, *words, "--rows", "3:16")
    assert status == 0 and "kernels sm_80  kernels sm_90a" in out and "3 to 16" in out
    status, out, _ = hgemm(capsys, *words, "--rows", "3:16", "--json")
    for choice in json.loads(out)["choices"]:
        assert (choice["ranges"][0]["first"], choice["ranges"][-1]["last"]) == (3, 16)
    status, out, _ = hgemm(capsys, *words, "--rows", "1:1", "--json")
    assert status == 0 and {one["last"] for choice in json.loads(out)["choices"] for one in choice["ranges"]} == {1}
    for text, reason in (("5", "malformed"), ("a:b", "malformed"), ("0:4", "out of range"), ("9:8", "FIRST <= LAST")):
        status, _, err = hgemm(capsys, *words, "--rows", text)
        assert status == 2 and reason in err


def test_a_second_pack_says_how_many_kernels_the_library_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("pack", "--nk", "64x64", "--rows", "8:8", "--to", tmp_path / "lib", "-q", "-j", "1")
    assert "the library has" not in hgemm(capsys, *words, "--arch", "80")[1]
    status, out, _ = hgemm(capsys, *words, "--arch", "75")
    assert status == 0 and "1 kernel for sm_75" in out and out.endswith("; the library has 2 kernels\n")


def test_a_pack_can_be_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--nk", "64x64", "--arch", "80", "--loss", "100", "--to", tmp_path / "lib", "--json", "-j", "1")
    status, out, err = hgemm(capsys, "pack", *words)
    document = json.loads(out)
    assert status == 0, err
    assert document["symbols"] and document["bytes"] > 1000 and document["seconds"] > 0
    assert f"hgemm export --library {tmp_path / 'lib'}" not in out
    need_compiler()
    status, out, err = hgemm(capsys, "export", "--library", tmp_path / "lib", "--to", tmp_path / "c", "--cc", FAST_CC)
    assert status == 0 and (tmp_path / "c" / "include" / "hgemm.h").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--arch", "80", "--to", "x"], "config.json"),
        (["config.json", "--nk", "8x8", "--arch", "80", "--to", "x"], "--nk replaces"),
        (["--nk", "8x8", "--arch", "80"], "--to is missing"),
        (["--nk", "8x8", "--arch", "81", "--to", "x"], "arch '81' is unknown"),
        (["--nk", "8by8", "--arch", "80", "--to", "x"], "--nk"),
        (["no/such/model", "--arch", "80", "--to", "x"], "cannot be read"),
        (["--nk", "8x8", "--arch", "80", "--dry-run", "--activation-only"], "omit --activation-only"),
        (["config.json", "--bias", "row", "--arch", "80", "--to", "x"], "--bias applies to --nk only"),
        (
            ["config.json", "--layout", "tn", "--activation", "gelu", "--arch", "80", "--dry-run"],
            "--layout and --activation apply to --nk only",
        ),
    ],
)
def test_illegal_request_gives_a_one_line_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = hgemm(capsys, "pack", *words)
    lines = [line for line in err.splitlines() if "error" in line]
    assert status == 2 and out == "" and len(lines) == 1 and message in lines[0]


def test_an_invariant_pack_suggests_invariant_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--nk", "64x64", "--arch", "80", "--loss", "100", "--invariant", "--to", tmp_path / "lib", "-j", "1")
    status, _, err = hgemm(capsys, "pack", *words)
    assert status == 0, err
    assert re.search(r"hgemm export .* --invariant", err) and "batch_invariant=True" in err
