"""What variants are predicted to take: laws of the terms, constants as data, and figures of the fit, worked out again."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import catalog_records

from benchmarks import cost_model
from generator.cli.main import hgemm_command, main
from hgemm.model.cards import USUAL, card, usual_card
from hgemm.model.kernel import Size
from hgemm.model.predict import PATH, cycles_of, fit_of, fits, parse_fits, predict, problem_of, terms
from hgemm.record import Mismatch

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
def test_a_prediction_is_no_less_than_any_of_its_terms_and_little_more_than_all(spec, m, n, k, batch) -> None:
    found = predict(spec, spec["ctas_per_sm"], problem_of(spec, m, n, k, batch), H200, fit_of(spec).constants)
    longer = found.start_us + max(found.sm_us, found.memory_us)
    assert longer <= found.time_us * (1 + 1e-12) and found.time_us <= found.start_us + found.sm_us + found.memory_us
    assert 0 < found.clock_mhz <= H200["sm_mhz"]


@given(st.sampled_from(SPECS), extents, extents, extents)
def test_more_to_do_takes_no_less_at_one_clock(spec, m, n, k) -> None:
    base = time_us(spec, Size(m, n, k), powered=False)
    for more in (
        Size(2 * m, n, k),
        Size(m, 2 * n, k),
        Size(m, n, 2 * k),
        Size(m, n, k, 2),
        Size(m, n, k, straddling=0.5),
    ):
        assert time_us(spec, more, powered=False) >= base * (1 - 1e-12)


def test_power_takes_clock_from_what_multiplies_most() -> None:
    """4096^3 keeps an H200 at its power limit, one row does not. Source: benchmarks/data/dispatched_h200.json."""
    large, row = (predict(TMA, 1, Size(m, 4096, 4096), H200, fit_of(TMA).constants) for m in (4096, 1))
    assert large.clock_mhz < 1500 and row.clock_mhz == H200["sm_mhz"]
    assert (
        predict(TMA, 1, Size(4096, 4096, 4096), H200, fit_of(TMA).constants, powered=False).clock_mhz == H200["sm_mhz"]
    )


def test_rows_that_begin_off_sectors_of_l2_count_for_each_operand() -> None:
    assert [
        problem_of({**TMA, "layout": layout}, 4104, 4112, 4096).straddling for layout in ("tn", "nn", "nt", "tt")
    ] == [*(0.0, 0.5, 0.5, 0.0)]
    assert problem_of(TMA, 4096, 4096, 4104).straddling == 1 and problem_of(TMA, 4096, 4096, 4112).straddling == 0
    assert time_us(TMA, problem_of(TMA, 4096, 4096, 4104)) > 1.1 * time_us(TMA, problem_of(TMA, 4096, 4096, 4096))


def test_clusters_of_four_leave_sms_of_an_h200_over() -> None:
    assert [H200.sms_in_clusters(ctas) for ctas in (1, 2, 4, 8)] == [132, 132, 120, 120]
    assert H200.with_sms(100).sms_in_clusters(4) == 100 and card("h100").sms_in_clusters(4) == 132
    in_one, in_two = Size(128, 64 * 30, 65536), Size(128, 64 * 31, 65536)
    split = {**TMA, "cta_tile": "128x64x64", "mma": "m64n64k16", "schedule": "split_k_cluster:4"}
    assert time_us(split, in_two, powered=False) > 1.25 * time_us(split, in_one, powered=False)


def test_arrays_are_predicted_as_their_elements_are() -> None:
    data = cost_model.Data.read(cost_model.DRAWN, H200)
    together = data.predicted_us(fits()["wgmma"].constants, H200)
    for at, place in ((0, 0), (7, 31), (47, 94)):
        record = data.records[place]
        size = problem_of(record["spec"], *data.problems[at])
        found = predict(record["spec"], record["resources"]["ctas_per_sm"], size, H200, fits()["wgmma"].constants)
        assert together[at, place] == pytest.approx(found.time_us, rel=1e-12)


@pytest.mark.parametrize("number", sorted(USUAL))
def test_every_shipped_kernel_is_predicted_on_the_card_of_its_architecture(number: int) -> None:
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
    ("damage", "told"),
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
def test_a_file_of_constants_that_is_not_as_it_should_be_is_refused(damage, told: str) -> None:
    document = json.loads(PATH.read_text())
    assert parse_fits(copy.deepcopy(document)) == fits()
    damage(document)
    with pytest.raises(Mismatch, match=told):
        parse_fits(document)


@pytest.mark.parametrize("family", list(cost_model.SETS))
def test_the_figures_that_are_kept_are_those_of_the_constants_and_the_measurements(family: str) -> None:
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


def test_constants_come_back_out_of_times_that_they_made() -> None:
    """The fit finds what made the data, from where it usually begins; a problem that is held out is judged without it."""
    pytest.importorskip("scipy")
    data = cost_model.Data.read(cost_model.DRAWN_SYNC, H200)
    made = replace(fits()["mma_sync"].constants, start_us=2.0, store_bytes_per_cycle=15.0)
    exact = replace(data, times_us=data.predicted_us(made, H200))
    rows = [np.arange(len(data.problems))]
    found = cost_model.fitted("mma_sync", [exact], rows, H200)
    assert cost_model.errors([exact], found, H200)["p90_error"] < 0.01
    assert found.start_us == pytest.approx(2.0, rel=0.1)


def test_held_out_problems_have_no_part_in_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cost_model.Data.read(cost_model.DRAWN_SYNC, H200)
    seen: list[np.ndarray] = []
    constants = fits()["mma_sync"].constants
    monkeypatch.setattr(cost_model, "fitted", lambda family, sets, rows, its: seen.append(rows[0]) or constants)
    cost_model.in_folds("mma_sync", [data], H200, seed=1)
    assert len(seen) == cost_model.FOLDS and sorted(len(data.problems) - len(rows) for rows in seen)[0] >= 2
    out = [set(range(len(data.problems))) - set(rows.tolist()) for rows in seen]
    assert set.union(*out) == set(range(len(data.problems))) and sum(map(len, out)) == len(data.problems)


def test_terms_count_ctas_and_the_busiest_sm() -> None:
    shape = cost_model.Shape.of(TMA, H200, 1)
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
    assert problem["predicted_us"] > problem["least_us"] and problem["clock_mhz"] == usual_card(89)["sm_mhz"]
    assert "is not known" in problem["fitted"]
