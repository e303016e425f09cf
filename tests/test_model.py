"""The cost model: published tables to the cycle, properties of its equations, and predictions from fitted constants."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from conftest import hgemm
from hypothesis import given
from hypothesis import strategies as st
from tables import catalog_records

from benchmarks import cost_model
from generator.cli.main import hgemm_command, main
from generator.explain import Question, model_of
from generator.sweep import sweep
from hgemm.checks import Mismatch
from hgemm.errors import RequestError
from hgemm.model.cards import FOLDER, USUAL, Card, Figure, Source, card, card_keys, card_named, parse_card, usual_card
from hgemm.model.kernel import (
    COPIES,
    DRAM,
    L2,
    SHARED_MEMORY,
    TENSOR,
    Size,
    busiest_sm_ctas,
    copy_cycles,
    fragment_cycles,
    intensity,
    k_tile,
    launch,
    waves,
)
from hgemm.model.predict import PATH, card_for, cycles_of, fit_of, fits, parse_fits, predict, problem_of, report, terms

TURING = {
    **{"mma": "m16n8k8", "acc": "f16", "dtype_a": "f16", "dtype_b": "f16", "dtype_d": "f16", "copy": "ldg_sts"},
    **{"align_a": 8, "align_b": 8, "schedule": "one_tile", "cluster": "1x1", "beta": False},
}
AMPERE = {**TURING, "mma": "m16n8k16", "acc": "f32", "copy": "cp_async"}
HOPPER = {**AMPERE, "mma": "m64n256k16", "copy": "tma", "cta_tile": "128x256x64", "warp_tile": "64x256"}
ALONE = {"ctas_per_sm": 1, "warps_per_sm": 8, "occupancy": 0.25}

PUBLISHED = [
    ("128x128x32", "64x64", 1031, 1370, COPIES),
    ("128x128x32", "128x64", 1031, 1235, L2),  # 1274 by the L2 that the same authors measured
    ("256x128x32", "64x64", 2063, 2325, COPIES),
    ("256x128x32", "128x64", 2063, 2055, TENSOR),
    ("256x256x32", "64x64", 4126, 3821, TENSOR),
    ("256x256x32", "128x64", 4126, 3281, TENSOR),
]
"""CTA tile, warp tile, and the cycles of tensor cores and memory that Yan, Wang and Chu give for the RTX 2070."""


@pytest.mark.parametrize(("cta_tile", "warp_tile", "tensor", "memory", "bound"), PUBLISHED)
def test_model_reproduces_the_published_turing_table(cta_tile, warp_tile, tensor, memory, bound) -> None:
    spec = {**TURING, "cta_tile": cta_tile, "warp_tile": warp_tile}
    found = report(spec, ALONE, card_named("RTX 2070"))
    assert (found["tensor_cycles"], found["memory_cycles"], found["bound"]) == (tensor, memory, bound)


def test_terms_of_the_turing_table_match_its_equations() -> None:
    assert copy_cycles(256 * 32 * 2, 16, 15.95 + 10.0) == pytest.approx(256 * 32 * 2 / 512 * 25.95)
    assert fragment_cycles(4, 64, 64, 64, 2.11) == pytest.approx(4 * (8 + 8) * 4 * 2.11)
    assert intensity(256, 256) == 128 and intensity(128, 128) == 64 and intensity(128, 128, 4) == 32


# ---- Laws -------------------------------------------------------------------------------------------------------------

counts = st.integers(1, 10**6)


@given(counts, st.integers(1, 200), st.integers(1, 16))
def test_waves_hold_exactly_all_ctas(ctas: int, sms: int, ctas_per_sm: int) -> None:
    count, efficiency = waves(ctas, sms, ctas_per_sm)
    places = sms * ctas_per_sm
    assert (count - 1) * places < ctas <= count * places
    assert math.isclose(efficiency * count * places, ctas)
    busiest = busiest_sm_ctas(ctas, sms, ctas_per_sm)
    assert busiest * sms >= ctas and (busiest - 1) * sms < ctas and busiest <= count * ctas_per_sm


tiles = st.sampled_from([32, 64, 96, 128, 256])


@given(tiles, tiles, st.sampled_from([32, 64]), st.sampled_from([key for key in card_keys() if card(key).number >= 80]))
def test_doubled_k_doubles_the_cycles(m: int, n: int, k: int, key: str) -> None:
    once, twice = (
        k_tile({**AMPERE, "cta_tile": f"{m}x{n}x{depth}", "warp_tile": "32x32"}, card(key)) for depth in (k, 2 * k)
    )
    assert twice.bound == once.bound and twice.flop_per_byte == once.flop_per_byte
    for name in ("tensor", "copy", "fragments", "memory", "cycles"):
        assert math.isclose(getattr(twice, name), 2 * getattr(once, name))


@given(tiles, tiles, st.sampled_from([key for key in card_keys() if card(key).number >= 80]))
def test_larger_warp_tiles_read_less_and_wider_copies_issue_less(m: int, n: int, key: str) -> None:
    spec = {**AMPERE, "cta_tile": f"{m}x{n}x32", "warp_tile": "32x32"}
    narrow = k_tile({**spec, "warp_tile": "16x16"}, card(key))
    wide = k_tile(spec, card(key))
    assert wide.fragments < narrow.fragments and wide.tensor == narrow.tensor
    by_two, by_one = (k_tile({**spec, "align_a": align, "align_b": align}, card(key)) for align in (2, 1))
    assert wide.copy <= by_two.copy < by_one.copy


def figured(**figures: float) -> Card:
    """Return a card on which all is free but what is named."""
    free = {"cpi.hmma_m16n8k16_f32": 1e-9, "cpi.ldsm_x4": 1e-9, "cpi.cp_async128": 1e-9, "dram_gbytes_per_s": 1e9}
    every = {"sms": 100, "sm_mhz": 1000, **free, **figures}
    return Card("none", "none", 90, {name: Figure(value, Source("")) for name, value in every.items()})


@pytest.mark.parametrize(
    ("figure", "value", "bound"),
    [
        ("cpi.hmma_m16n8k16_f32", 8.0, TENSOR),
        ("cpi.ldsm_x4", 4.0, SHARED_MEMORY),
        ("cpi.cp_async128", 8.0, COPIES),
        ("l2_bytes_per_clock_per_sm", 10.0, L2),
        ("dram_gbytes_per_s", 1.0, DRAM),
    ],
)
def test_slowest_term_is_the_bound(figure: str, value: float, bound: str) -> None:
    spec, slow = {**AMPERE, "cta_tile": "128x128x32", "warp_tile": "64x64"}, figured(**{figure: value})
    found = launch(spec, k_tile(spec, slow), slow, Size(4096, 4096, 4096), 1)
    assert found.bound == bound


def test_shifted_copies_cost_two_loads_and_one_store() -> None:
    spec = {
        **AMPERE,
        "cta_tile": "128x128x32",
        "warp_tile": "64x64",
        "copy": "ldg_sts_unaligned",
        "align_a": 1,
        "align_b": 8,
    }
    slow = figured(**{"cpi.ldg128": 3.0, "cpi.sts128": 2.0})
    pieces = 128 * 32 * 2 / 512  # of a warp, of each operand
    assert k_tile(spec, slow).copy == pytest.approx(pieces * (4 * 3.0 + 2.0) + pieces * (3.0 + 2.0))


def test_busiest_sm_and_dram_bound_the_time() -> None:
    spec = {**AMPERE, "cta_tile": "128x128x32", "warp_tile": "64x64", "schedule": "split_k:2"}
    hundred = figured(**{"cpi.hmma_m16n8k16_f32": 8.0})  # 128*128*32 / (16*8*16 * 4) * 8 = 512 cycles a k-tile
    found = launch(spec, k_tile(spec, hundred), hundred, Size(1280, 1280, 640, batch=2), ctas_per_sm=1)
    assert (found.tiles, found.ctas, found.waves, found.k_tiles_per_cta) == (200, 400, 4, 10)
    assert found.tail_efficiency == 1 and found.sm_cycles == pytest.approx(4 * 10 * 512)
    assert found.lower_bound_us == pytest.approx(found.sm_cycles / 1000)
    paired = {**spec, "schedule": "one_tile", "cluster": "2x1"}
    odd = launch(paired, k_tile(paired, hundred), hundred, Size(128, 128, 640), ctas_per_sm=1)
    assert odd.tiles == 2  # a cluster is whole
    few = figured(**{"dram_gbytes_per_s": 100.0})
    moved = launch(spec, k_tile(spec, few), few, Size(1000, 2000, 3000), ctas_per_sm=1)
    assert moved.lower_bound_us == pytest.approx(2 * (3000 * 3000 + 1000 * 2000) / 100e9 * 1e6)


def test_multicast_reduces_l2_traffic_only() -> None:
    hopper = card("h200")
    alone, paired = (k_tile({**HOPPER, "cluster": cluster}, hopper) for cluster in ("1x1", "2x1"))
    assert (alone.tensor, alone.copy, alone.fragments) == (paired.tensor, paired.copy, paired.fragments)
    known = Card("h", "h", 90, {**hopper.figures, "l2_bytes_per_clock_per_sm": Figure(64.0, Source(""))})
    shares = [k_tile({**HOPPER, "cluster": cluster}, known).l2 * 64 for cluster in ("1x1", "2x1", "1x2")]
    assert shares == [(128 + 256) * 128, (128 + 256 / 2) * 128, (128 / 2 + 256) * 128]


def test_wgmma_cycles_are_interpolated_between_widths() -> None:
    cycles = {
        n: k_tile({**HOPPER, "cta_tile": f"64x{n}x64", "mma": f"m64n{n}k16"}, card("h200")).tensor
        for n in (192, 208, 256)
    }
    assert cycles[208] == pytest.approx(cycles[192] * 0.75 + cycles[256] * 0.25)


# ---- Tables -----------------------------------------------------------------------------------------------------------

DENSE_TFLOPS = {
    **{("rtx2070", "m16n8k8_f16"): 59.7, ("t4", "m16n8k8_f16"): 65, ("t4", "m16n8k8_f32"): 65},
    **{("a100", "m16n8k16_f16"): 312, ("a100", "m16n8k16_f32"): 312, ("a100", "m16n8k8_tf32"): 156},
    **{("a10", "m16n8k16_f32"): 125, ("rtx3090", "m16n8k16_f16"): 142, ("rtx3090", "m16n8k16_f32"): 71},
    **{("rtx4090", "m16n8k16_f16"): 330.3, ("rtx4090", "m16n8k16_f32"): 165.2, ("rtx4090", "m16n8k8_tf32"): 82.6},
    **{("l4", "m16n8k16_f32"): 121, ("l40s", "m16n8k16_f32"): 362.05, ("l40s", "m16n8k8_tf32"): 183},
    **{("rtx5090", "m16n8k16_f16"): 419, ("rtx5090", "m16n8k16_f32"): 209.5},
}
"""Figures of NVIDIA's documents, by card and instruction."""


@pytest.mark.parametrize(("key", "shape"), DENSE_TFLOPS)
def test_tensor_instruction_cycles_match_the_published_rate(key: str, shape: str) -> None:
    k = int(shape.partition("_")[0].rpartition("k")[2])
    flop_per_clock = 2 * 16 * 8 * k * 4 / card(key)[f"cpi.hmma_{shape}"]
    tflops = flop_per_clock * card(key).sms * card(key)["sm_mhz"] / 1e6
    assert tflops == pytest.approx(DENSE_TFLOPS[key, shape], rel=0.015)


@pytest.mark.parametrize("key", ["h100", "h200"])
def test_wgmma_cycles_match_the_published_rate(key: str) -> None:
    published = 989.4e12 / 132 / 1830e6
    assert 2 * 64 * 256 * 16 / card(key)["cpi.hgmma_m64n256k16_f32"] == pytest.approx(published, rel=0.01)


def test_every_figure_has_a_source() -> None:
    assert {*USUAL.values()} <= {*card_keys()}
    for key in card_keys():
        for name, figure in card(key).figures.items():
            assert figure.source.text and figure.value > 0, (key, name)
            assert bool(figure.source.date) == bool(figure.source.device), (key, name)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("h200", "measured: NVIDIA H200, 2026-11-22"),
        ("h100", "measured on another card: NVIDIA H200, 2026-11-22"),
        ("a100", "unmeasured"),
    ],
)
def test_figures_taken_from_another_card_name_it(key: str, message: str) -> None:
    assert card(key).describe_sources(["cpi.lds128"]) == message
    assert card(key).describe_sources(["cpi.lds128", "power_w"]) == message + "; in part unmeasured" * (
        message != "unmeasured"
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda table: table["figures"].pop("sms"), "figures.sms is missing"),
        (
            lambda table: table["figures"].update({"sms": [132, "nowhere"]}),
            "figures.sms names an unknown source",
        ),
        (lambda table: table["figures"].update({"cpi.lds32": "1"}), r"figures.cpi.lds32 must be \[number, source\]"),
        (lambda table: table["figures"].update({"cpi.lds32": [-1, "document"]}), "cpi.lds32 must be a number"),
        (lambda table: table["figures"].update({"speed": [1, "document"]}), "the name of a figure"),
        (lambda table: table["sources"].update({"document": {}}), "sources.document.text is missing"),
        (lambda table: table.update(arch="hopper"), "arch must be"),
        (lambda table: table.update(more=1), "more is not a field"),
    ],
)
def test_malformed_card_tables_are_rejected(damage, message: str) -> None:
    table = json.loads((FOLDER / "a100.json").read_text())
    parse_card("a100", copy.deepcopy(table))
    damage(table)
    with pytest.raises(Mismatch, match=message):
        parse_card("a100", table)


def test_measured_report_updates_its_card_only() -> None:
    from test_benchmarks import timed_report

    from benchmarks.cpi import merged, table_text

    public = json.loads((FOLDER / "a100.json").read_text())
    table = merged(public, timed_report(number=90), sm_only=False)
    found = parse_card("a100", json.loads(table_text(table)))
    assert found.figures["cpi.hmma_m16n8k16_f32"].value == pytest.approx(100 / 16 / 4, rel=1e-2)
    assert found.figures["cpi.cp_async128"].source.device == "a device" and found["dram_gbytes_per_s"] == 2039
    assert {"latency.ldg_dram", "cpi.hgmma_m64n256k16_f32", "tma_bytes_per_clock_per_sm", "launch_graph_us"} <= {
        *found.figures
    }
    other = parse_card("a100", merged(public, timed_report(number=90), sm_only=True))
    assert other["sms"] == 108 and other["sm_mhz"] == 1410 and other.figures["cpi.lds32"].source.measured


# ---- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("H200", "h200"), ("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090")),
        *(("A100-SXM4-80GB", "a100"), ("NVIDIA A100-PCIE-40GB", "a100"), ("Tesla T4", "t4"), ("A10", "a10")),
        *(("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100 80GB PCIe", "a100"), ("NVIDIA H100 PCIe", "h100")),
    ],
)
def test_cards_have_common_and_driver_names(name: str, key: str) -> None:
    assert card_named(name).key == key


@pytest.mark.parametrize("name", ["B200", "RTX 4080", "H20"])
def test_suggestions_never_name_another_card(name: str) -> None:
    with pytest.raises(RequestError, match="has no table of figures: known are a10, a100"):
        card_named(name)


def test_card_must_exist_and_run_the_kernels() -> None:
    with pytest.raises(RequestError, match="did you mean rtx4090.*known are a10, a100"):
        card_named("RTX 4900")
    with pytest.raises(RequestError, match="sm_89 do not run on NVIDIA A100-SXM4-80GB"):
        card_for("sm_89", "A100")
    with pytest.raises(RequestError, match="sm_90a do not run on NVIDIA GeForce RTX 5090"):
        card_for("sm_90a", "RTX 5090")
    with pytest.raises(RequestError, match="no table is for sm_100"):
        card_for("sm_100", sms=148)
    assert (
        card_for("sm_100") is None and card_for("sm_80", "H200").key == "h200" and card_for("sm_89", sms=10).sms == 10
    )


# ---- Explanations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", sorted(number for number in USUAL if number >= 80))
@pytest.mark.parametrize(
    "changes", [{}, {"acc": "f16"}, {"dtype_a": "bf16", "dtype_b": "bf16", "dtype_d": "bf16"}, {"align": "1"}]
)
def test_every_planned_kernel_has_a_model_on_its_usual_card(number: int, changes: dict[str, str]) -> None:
    for plan in sweep([{"arch": str(number), "layout": "tn,nn", **changes}]).plans:
        found = model_of(plan, Question(size=Size(1000, 3000, 500)))
        assert found["card"] == usual_card(number).name
        assert all(found[f"{part}_cycles"] > 0 for part in ("tensor", "copy", "fragment", "memory", "k_tile"))
        assert found["ctas_per_sm"] >= plan.spec.ctas_per_sm and 0 < found["problem"]["tail_efficiency"] <= 1


@pytest.mark.parametrize(
    "texts", [{}, {"tile": "256x128x64"}, {"tile": "16x64x128"}, {"acc": "f16", "cluster": "1x2"}], ids=str
)
def test_wgmma_kernels_have_a_model(texts: dict[str, str]) -> None:
    (plan,) = sweep([{"arch": "90a", **texts}]).plans
    found = model_of(plan, Question())
    assert found["card"] == "NVIDIA H200" and found["problem"] is None and found["tensor_cycles"] > 0


@pytest.mark.parametrize(("cta_tile", "warp_tile", "tensor", "memory", "bound"), PUBLISHED)
def test_explain_prints_the_published_turing_table(capsys, cta_tile, warp_tile, tensor, memory, bound) -> None:
    """Without loads ahead, for which warp tiles of 128x64 leave no registers in the smaller CTA tiles."""
    asked = ("--arch", "sm_75", "--tile", cta_tile, "--warp-tile", warp_tile, "--acc", "f16", "--prefetch", "off")
    status, out, _ = hgemm(capsys, "explain", *asked, "--smem", "pad_alternate:8", "--store", "direct", "--json")
    (found,) = json.loads(out)
    if (cta_tile, warp_tile) == ("256x256x32", "64x64"):  # 16 warps, with 128 registers a thread
        assert (status, found["model"]) == (2, None) and [each["rule"] for each in found["broken"]] == ["registers"]
        return
    model = found["model"]
    assert status == 0 and model["card"] == "NVIDIA GeForce RTX 2070"
    assert (model["tensor_cycles"], model["memory_cycles"], model["bound"]) == (tensor, memory, bound)


def test_explain_prints_cycles_bound_and_waves(capsys) -> None:
    arguments = ["explain", "--arch", "sm_89", "--tile", "128x128x32", "--device", "RTX 4090", "--m", "4096"]
    status, out, _ = hgemm(capsys, *arguments)
    for line in (
        "  model of NVIDIA GeForce RTX 4090 with 128 SMs, unmeasured",
        "    tensor_cycles             2048",
        "    fragment_cycles           256",
        "    bound                     tensor cores",
        "    flop_per_byte             64",
        "  problem 4096x4096x4096 on NVIDIA GeForce RTX 4090 with 128 SMs",
        "    tiles                     1024",
        "    waves                     4",
    ):
        assert f"{line}\n" in out
    status, out, _ = hgemm(capsys, *arguments, "--k", "64", "--batch", "3", "--sms", "100", "--json")
    (found,) = json.loads(out)
    assert status == 0 and found["model"]["sms"] == 100
    assert {name: found["model"]["problem"][name] for name in ("m", "n", "k", "batch", "tiles", "waves")} == {
        **{"m": 4096, "n": 4096, "k": 64, "batch": 3},
        **{"tiles": 3072, "waves": 16},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "89", "--device", "RTX 4900"], "device 'RTX 4900' has no table of figures: did you mean rtx4090?"),
        (["--arch", "89", "--device", "T4"], "kernels for sm_89 do not run on NVIDIA T4 (sm_75)"),
        (["--arch", "89", "--k", "64"], "need --m"),
        (["--arch", "89", "--m", "64", "--batch", "4" + "0" * 20], "is not in the range 1<=x<=2147482624"),
    ],
)
def test_explain_rejects_requests_outside_the_model(capsys, arguments: list[str], message: str) -> None:
    status, out, err = hgemm(capsys, "explain", *arguments)
    assert status == 2 and not out and message in err


def test_explain_says_that_a_planned_tile_does_not_depend_on_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "--arch", "sm_120", "--m", "16", "--n", "4096", "--k", "2048"]
    command = "hgemm pack --nk 4096x2048 --rows 16:16 --dtype f16 --layout tn --arch sm_120 --explain"
    assert hgemm(capsys, *words)[1].splitlines()[-1].strip() == command
    assert command not in hgemm(capsys, *words, "--tile", "16x64x64")[1]


def test_explain_says_what_its_prediction_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    def notes(*words: str) -> str:
        out = hgemm(capsys, "explain", "--arch", "90a", "--layout", "nt", "--n", "5120", *words)[1]
        return out.partition("  legal\n")[2]

    assert "dense A of this problem: pad the rows, or add --align-a 1" in notes("--m", "301")
    assert "dense" not in notes("--m", "301", "--align-a", "1") and "dense" not in notes("--m", "304")
    assert "may split k" in notes("--m", "304", "--schedule", "launch") and "may split k" not in notes("--m", "304")


def test_explain_takes_the_card_that_arch_names(capsys: pytest.CaptureFixture[str]) -> None:
    for words, name in ((["h100"], "H100"), (["t4"], "T4"), (["h100", "--device", "h200"], "H200"), (["90a"], "H200")):
        assert f"  model of NVIDIA {name}" in hgemm(capsys, "explain", "--arch", *words)[1]
    note = hgemm(capsys, "explain", "--arch", "90a,80,100", "--stages", "3,4", "--m", "64")[2]
    assert "predictions are for NVIDIA H200 with 132 SMs, NVIDIA A100" in note


def test_explain_gives_the_reason_without_a_model(capsys) -> None:
    status, out, _ = hgemm(capsys, "explain", "--arch", "100")
    assert (
        status == 0
        and "no times: the cost model has no card for sm_100; these cards run its kernels, too: --device rtx5090" in out
    )
    assert "no card for sm_121\n" in hgemm(capsys, "explain", "--arch", "121")[1]
    status, out, _ = hgemm(capsys, "explain", "--arch", "89", "--tile", "256x256x64", "--stages", "4", "--json")
    assert status == 2 and json.loads(out)[0]["model"] is None


# ==== Predictions =====================================================================================================

SYNC = {
    **{
        "arch": "sm_90",
        "layout": "tn",
        "dtype_a": "f16",
        "dtype_b": "f16",
        "acc": "f32",
        "dtype_d": "f16",
        "beta": True,
    },
    **{"cta_tile": "128x128x32", "warp_tile": "64x64", "mma": "m16n8k16", "copy": "cp_async", "stages": 4},
    **{"align_a": 8, "align_b": 8, "schedule": "one_tile", "ctas_per_sm": 2, "cluster": "1x1"},
}
TMA = {
    **{**SYNC, "arch": "sm_90a", "cta_tile": "128x128x64", "warp_tile": "64x128", "mma": "m64n128k16", "copy": "tma"},
    **{"stages": 6, "schedule": "persistent", "ctas_per_sm": 1, "consumers": 2, "cooperation": "cooperative"},
}
CHANGES = [
    *({}, {"cooperation": "pingpong"}, {"cluster": "2x1"}, {"schedule": "split_k_cluster:4"}, {"swap_ab": True}),
    {"cta_tile": "64x256x64", "mma": "m64n256k16", "stages": 5},
]
SPECS = [{**TMA, **changes} for changes in CHANGES] + [SYNC, {**SYNC, "schedule": "split_k:4"}]
H200 = card("h200")
extents = st.integers(1, 2**14)


def time_us(spec: dict, size: Size, powered: bool = True) -> float:
    return predict(spec, spec["ctas_per_sm"], size, H200, fit_of(spec).constants, powered).time_us


# ---- Laws -------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(SPECS), extents, extents, extents, st.integers(1, 3))
def test_prediction_lies_between_its_largest_term_and_their_sum(spec, m, n, k, batch) -> None:
    found = predict(spec, spec["ctas_per_sm"], problem_of(spec, m, n, k, batch), H200, fit_of(spec).constants)
    longer = found.start_us + max(found.sm_us, found.memory_us)
    assert longer <= found.time_us * (1 + 1e-12) and found.time_us <= found.start_us + found.sm_us + found.memory_us
    assert 0 < found.clock_mhz <= H200["sm_mhz"]


@given(st.sampled_from(SPECS), extents, extents, extents)
def test_more_work_is_never_predicted_faster(spec, m, n, k) -> None:
    base = time_us(spec, Size(m, n, k), powered=False)
    for more in (
        Size(2 * m, n, k),
        Size(m, 2 * n, k),
        Size(m, n, 2 * k),
        Size(m, n, k, 2),
        Size(m, n, k, straddling=0.5),
    ):
        assert time_us(spec, more, powered=False) >= base * (1 - 1e-12)


def test_power_limit_lowers_the_clock_of_dense_products() -> None:
    """4096^3 keeps an H200 at its power limit, one row does not. Source: benchmarks/data/dispatched_h200.json."""
    large, row = (predict(TMA, 1, Size(m, 4096, 4096), H200, fit_of(TMA).constants) for m in (4096, 1))
    assert large.clock_mhz < 1500 and row.clock_mhz == H200["sm_mhz"]
    assert (
        predict(TMA, 1, Size(4096, 4096, 4096), H200, fit_of(TMA).constants, powered=False).clock_mhz == H200["sm_mhz"]
    )


def test_rows_off_l2_sectors_cost_time_for_each_operand() -> None:
    assert [
        problem_of({**TMA, "layout": layout}, 4104, 4112, 4096).straddling for layout in ("tn", "nn", "nt", "tt")
    ] == [*(0.0, 0.5, 0.5, 0.0)]
    assert problem_of(TMA, 4096, 4096, 4104).straddling == 1 and problem_of(TMA, 4096, 4096, 4112).straddling == 0
    assert time_us(TMA, problem_of(TMA, 4096, 4096, 4104)) > 1.1 * time_us(TMA, problem_of(TMA, 4096, 4096, 4096))


def test_clusters_of_four_leave_idle_sms_on_an_h200() -> None:
    assert [H200.sms_in_clusters(ctas) for ctas in (1, 2, 4, 6, 8)] == [132, 132, 120, 102, 120]
    assert H200.with_sms(100).sms_in_clusters(4) == 100 and card("h100").sms_in_clusters(4) == 132
    in_one, in_two = Size(128, 64 * 30, 65536), Size(128, 64 * 31, 65536)
    split = {**TMA, "cta_tile": "128x64x64", "mma": "m64n64k16", "schedule": "split_k_cluster:4"}
    assert time_us(split, in_two, powered=False) > 1.25 * time_us(split, in_one, powered=False)


def test_array_predictions_equal_scalar_predictions() -> None:
    data = cost_model.Data.read(cost_model.DRAWN, H200)
    together = data.predicted_us(fits()["wgmma"].constants, H200)
    for at, place in ((0, 0), (7, 31), (47, 94)):
        record = data.records[place]
        size = problem_of(record["spec"], *data.problems[at])
        found = predict(record["spec"], record["resources"]["ctas_per_sm"], size, H200, fits()["wgmma"].constants)
        assert together[at, place] == pytest.approx(found.time_us, rel=1e-12)


@pytest.mark.parametrize("number", sorted(USUAL))
def test_every_shipped_kernel_has_a_prediction(number: int) -> None:
    """Those without measurements too, by the public tables alone."""
    its, found = usual_card(number), []
    for record in catalog_records():
        if record["arch"].strip("sm_a") == str(number):
            spec = record["spec"]
            size = problem_of(spec, 1000, 3000, 500)
            found.append(predict(spec, 1, size, its, fit_of(spec).constants, powered=False).time_us)
    assert found and all(math.isfinite(one) and one > 0 for one in found) and len(set(found)) > 1


# ---- Data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d["families"].pop("wgmma"), "families.wgmma is missing"),
        (lambda d: d["families"]["wgmma"]["constants"].pop("start_us"), "constants.start_us is missing or unknown"),
        (lambda d: d["families"]["wgmma"]["constants"].update(other=1.0), "constants.other is missing or unknown"),
        (lambda d: d["families"]["mma_sync"]["constants"].update(start_us="1"), "must be a number"),
        (lambda d: d["families"]["mma_sync"].update(date="today"), "must be a date"),
        (lambda d: d.update(schema=2), "schema"),
    ],
    ids=["family", "constant", "unknown", "text", "date", "schema"],
)
def test_malformed_constants_are_rejected(damage, message: str) -> None:
    document = json.loads(PATH.read_text())
    assert parse_fits(copy.deepcopy(document)) == fits()
    damage(document)
    with pytest.raises(Mismatch, match=message):
        parse_fits(document)


@pytest.mark.parametrize("family", list(cost_model.SETS))
def test_stored_errors_match_constants_and_measurements(family: str) -> None:
    kept = json.loads((cost_model.FOLDER / "model_h200.json").read_text())[family]
    sets = [cost_model.Data.read(name, H200) for name in cost_model.SETS[family]]
    constants = fits()[family].constants
    assert kept["constants"] == asdict(constants)
    for data in sets:
        found = cost_model.judged(data.times_us, data.predicted_us(constants, H200))
        assert found["top1"] == pytest.approx(
            kept["fitted"][data.name]["top1"], abs=3e-3
        )  # constants are kept to 4 digits
    assert cost_model.errors(sets, constants, H200) == pytest.approx(
        {name: kept[name] for name in ("median_error", "p90_error")}, abs=1e-3
    )


def test_fit_recovers_known_constants() -> None:
    """The fit finds what made the data, from where it usually begins; a problem that is held out is judged without it."""
    pytest.importorskip("scipy")
    data = cost_model.Data.read(cost_model.DRAWN_SYNC, H200)
    made = replace(fits()["mma_sync"].constants, start_us=2.0, store_bytes_per_cycle=15.0)
    exact = replace(data, times_us=data.predicted_us(made, H200))
    rows = [np.arange(len(data.problems))]
    found = cost_model.fitted("mma_sync", [exact], rows, H200)
    assert cost_model.errors([exact], found, H200)["p90_error"] < 0.01
    assert found.start_us == pytest.approx(2.0, rel=0.1)


def test_fit_ignores_held_out_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cost_model.Data.read(cost_model.DRAWN_SYNC, H200)
    seen: list[np.ndarray] = []
    constants = fits()["mma_sync"].constants
    monkeypatch.setattr(cost_model, "fitted", lambda family, sets, rows, its: seen.append(rows[0]) or constants)
    cost_model.in_folds("mma_sync", [data], H200, seed=1)
    assert len(seen) == cost_model.FOLDS and sorted(len(data.problems) - len(rows) for rows in seen)[0] >= 2
    out = [set(range(len(data.problems))) - set(rows.tolist()) for rows in seen]
    assert set.union(*out) == set(range(len(data.problems))) and sum(map(len, out)) == len(data.problems)


def test_terms_count_ctas_and_the_busiest_sm() -> None:
    shape = cost_model.KernelShape.of(TMA, H200, 1)
    constants = fit_of(TMA).constants
    cycles = cycles_of(shape, True, 0, constants, H200["sm_mhz"])
    found = terms(shape, cycles, Size(1280, 1280, 640, batch=2), 132, constants, H200)
    assert (found.ctas, found.busiest) == (200, 2)


# ---- Explanations -----------------------------------------------------------------------------------------------------


def test_explain_prints_the_predicted_time_with_its_terms(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", "--arch", "sm_90a", "--tile", "128x256x64", "--m", "4096"]
    assert main(hgemm_command, arguments) == 0
    out = capsys.readouterr().out
    assert all(f"    {name} " in out for name in ("predicted_us", "start_us", "sm_us", "memory_us", "clock_mhz"))
    assert "NVIDIA H200" in out and "median error" in out
    assert main(hgemm_command, ["explain", "--arch", "89", "--tile", "128x128x32", "--m", "4096", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    problem = found["model"]["problem"]
    assert problem["predicted_us"] > problem["lower_bound_us"] and problem["clock_mhz"] == usual_card(89)["sm_mhz"]
    assert "is unknown" in problem["fitted"]
