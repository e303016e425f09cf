"""The benchmark on a driver and a cuBLASLt without a GPU: screening, checks, rounds, resuming and statistics."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simulated
from fake_bench import BenchDriver, FakeCublasLt, build
from fake_driver import installed
from records import make_record

import hgemm.bench.operands
import hgemm.device
from hgemm import Kernel, LibraryError, RequestError
from hgemm.bench import baselines
from hgemm.bench import measure as race
from hgemm.bench.device import Telemetry, parse_smi, summarise
from hgemm.bench.protocol import (
    Protocol,
    Ratio,
    Tolerance,
    block_launches,
    fastest,
    figures,
    forth_and_back,
    geometric_mean,
    round_times,
)
from hgemm.bench.runner import BenchPlan, run
from hgemm.bench.work import Work, checked
from hgemm.device import open_device
from hgemm.epilogue_language import epilogue_of

QUICK = Protocol(
    seconds=0.0, block_ms=0.05, block_ms_min=0.05, screen_ms=0.05, warm_up_s=0.0, rewarm_s=0.0, cool_down_s=0.0
)
WORK = Work(40, 56, 24)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("lt"))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[BenchDriver]:
    fake = BenchDriver()
    monkeypatch.setattr(hgemm.bench.operands, "POOL_ELEMENTS", 8 * 127)
    monkeypatch.setattr("hgemm.bench.operands.COPIED_BYTES", 4096)
    with installed(fake, monkeypatch):
        yield fake
    assert not fake.memory and not fake.alive and not fake.contexts


@pytest.fixture
def lt(driver: BenchDriver, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublasLt]:
    monkeypatch.setattr(baselines, "find_library", lambda: str(library))
    fake = FakeCublasLt(library, driver, [12.0, 10.0, 11.0, 40.0])
    yield fake
    assert fake.alive == 0


def kernel(symbol: str, **spec) -> Kernel:
    return Kernel({**simulated.record(beta=False, **spec), "symbol": symbol}, b"cubin")


@pytest.fixture
def kernels(driver: BenchDriver) -> list[Kernel]:
    costs = {"slow": 20.0, "fast": 8.0, "middle": 9.0, "third": 9.5, "last": 11.0}
    return [driver.serve(kernel(f"hgemm_{name}"), cost) for name, cost in costs.items()]


def measured(plan: BenchPlan) -> dict:
    return run(plan, open_device(), lambda text: None)


def first(plan: BenchPlan) -> dict:
    return measured(plan)["results"][0]


# ---- Choice and ratios ----------------------------------------------------------------------------------------------


def test_fastest_kernels_of_both_sides_are_paired(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    document = measured(BenchPlan([WORK], kernels, protocol=QUICK))
    result = document["results"][0]
    assert (result["ours"], result["first"], result["best"]) == ("hgemm_fast", "cublaslt#0", "cublaslt#1")
    assert result["screening_winner"] == "hgemm_fast" and not result["refused"]
    assert result["ratio_first"]["median"] == 1.5 and result["ratio_best"]["median"] == 1.25
    assert result["ratio_best"]["wins"] and result["figures"]["hgemm_fast"]["rounds"] == 15
    assert result["figures"]["hgemm_fast"]["time_us"] == pytest.approx(8.0)
    finalists = {"hgemm_fast", "hgemm_middle", "hgemm_third", "cublaslt#0", "cublaslt#1", "cublaslt#2"}
    assert set(result["figures"]) == finalists
    assert set(result["screened_us"]) == {k.traits.symbol for k in kernels} | {f"cublaslt#{at}" for at in range(4)}
    assert (
        document["baseline"] == "cuBLASLt 13.1.0"
        and document["device"] == "Fake GPU"
        and document["driver_cuda"] == "13.0"
    )


def test_kernel_that_slows_down_after_screening_is_not_chosen(
    driver: BenchDriver, lt: FakeCublasLt, kernels: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = race.Race.prepare

    def slower(self, *arguments) -> None:
        driver.cost_us["hgemm_fast"] = 30.0
        prepare(self, *arguments)

    monkeypatch.setattr(race.Race, "prepare", slower)
    result = first(BenchPlan([WORK], kernels, protocol=QUICK))
    assert result["screening_winner"] == "hgemm_fast" and result["ours"] == "hgemm_middle"


def test_a_contender_whose_first_launches_are_slow_is_still_screened(
    driver: BenchDriver, lt: FakeCublasLt, kernels: list
) -> None:
    launches = itertools.count()  # two when it is added, then one each time it is timed again
    driver.slower = lambda symbol, _: 10.0 if symbol == "hgemm_fast" and next(launches) < 4 else 1.0
    result = first(BenchPlan([WORK], kernels, protocol=QUICK))
    assert result["screened_us"]["hgemm_fast"] == pytest.approx(8.0) and result["ours"] == "hgemm_fast"


def test_rounds_alternate_directions(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    protocol = replace(QUICK, finalists=1, block_ms=1e-6, block_ms_min=1e-6, rounds=3, rounds_max=3)
    measured(BenchPlan([WORK], kernels, protocol=protocol))
    ran = [name for name in driver.log if name not in ("fill", "copy")]
    order = ["hgemm_fast", "cublaslt#0", "cublaslt#1"]
    assert ran[-19:-1] == 3 * (order + order[::-1])  # then the check


def test_blocks_rotate_the_operand_sets(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    """Blocks of less than a turn begin where the block before them ended."""
    protocol = replace(QUICK, finalists=1, block_ms=1e-6, block_ms_min=1e-6, rounds=3, rounds_max=3)
    result = first(BenchPlan([WORK], kernels, protocol=protocol))
    assert result["sets"] == 3 and result["rotated_bytes"] >= 3 * 4096 // 2
    used = [p.pointer_d for p in lt.products if p.algorithm == 1]
    assert len(set(used)) == 3


def test_burst_pauses_before_each_block(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    result = first(BenchPlan([WORK], kernels, states=("burst",), protocol=QUICK))
    assert result["state"] == "burst" and result["figures"]["hgemm_fast"]["rounds"] == 5
    assert result["ratio_best"]["median"] == 1.25


def test_solo_measures_each_clock(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    result = first(BenchPlan([WORK], kernels, states=("solo",), protocol=replace(QUICK, solo_s=0.0)))
    assert set(result["alone"]) == set(result["figures"]) == {"hgemm_fast", "cublaslt#0", "cublaslt#1"}
    assert result["figures"]["hgemm_fast"]["rounds"] == 4 and result["ratio_best"]["median"] == 1.25


def test_second_half_of_a_turn_counts(
    driver: BenchDriver, lt: FakeCublasLt, kernels: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two blocks of each turn take twice the time of the last two, as on a card whose clock settles."""
    fresh = race.Race.block
    enqueued = Counter()

    def block(self, name: str):
        wait, place = fresh(self, name), enqueued[name] % 4
        enqueued[name] += 1
        return lambda: wait() * (2 if place < 2 else 1)

    plan = replace(QUICK, finalists=1, turn_blocks=4)
    plain = first(BenchPlan([WORK], kernels, protocol=replace(QUICK, finalists=1)))
    monkeypatch.setattr(race.Race, "block", block)
    monkeypatch.setattr(race.Race, "load", lambda self, names, seconds: None)
    result = first(BenchPlan([WORK], kernels, protocol=plan))
    assert result["figures"]["hgemm_fast"]["time_us"] == plain["figures"]["hgemm_fast"]["time_us"]
    halves = [result["turns_us"]["hgemm_fast"][at] / plain["figures"]["hgemm_fast"]["time_us"] for at in range(4)]
    assert halves == pytest.approx([2, 2, 1, 1]) and set(result["alone"]) == set(result["figures"])
    assert "alone" not in plain and "turns_us" not in plain


def test_without_a_baseline_only_our_time_is_reported(driver: BenchDriver, kernels: list) -> None:
    result = first(BenchPlan([WORK], kernels, protocol=QUICK, baseline=None))
    assert result["ours"] == "hgemm_fast" and result["first"] is None and "ratio_first" not in result


def test_few_rows_are_compared_with_a_copy(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    result = first(BenchPlan([Work(8, 56, 24)], kernels, protocol=QUICK))
    rate = 56 * 24 * 2 / 8e-6 * 1e-9  # a copy takes a nanosecond a byte, and moves two
    assert result["memory"] == {"weights_gb_per_s": round(rate, 1), "copy_gb_per_s": 2.0, "of_copy": round(rate / 2, 4)}


def test_a_kernel_is_measured_with_several_launch_options(driver: BenchDriver, kernels: list) -> None:
    record, _ = make_record(
        "hgemm_open",
        **{"arch": "sm_90", "cta_tile": "32x48x16", "schedule": "launch", "raster": "launch"},
        **{name: simulated.record(rule="launch")[name] for name in ("launch", "traits")},
    )
    record["traits"]["exact_tiles_only"] = False
    kernels.append(driver.serve(Kernel(record, b"cubin"), 8.0))
    driver.slower = lambda symbol, problem: 0.5 if problem.options and problem.options.splits == 3 else 1.0
    work = Work(40, 56, 400)
    result = first(BenchPlan([work], kernels, protocol=QUICK, baseline=None, options=4))
    tried = {name: one for name, one in result["options"].items()}
    assert len(tried) == 4 and {1, 3} < {one["splits"] for one in tried.values()}
    assert all(name.startswith("hgemm_open splits=") for name in tried)
    assert result["options"][result["ours"]]["splits"] == 3
    one = first(BenchPlan([work], kernels, protocol=QUICK, baseline=None))
    assert len(one["options"]) == 1


def test_a_workspace_is_zeroed_once(driver: BenchDriver) -> None:
    """Like launches of a library: each leaves its counters zero."""
    split = driver.serve(kernel("hgemm_split", rule="split_k", splits=2), 5.0)
    once = replace(QUICK, rounds=3, rounds_max=3)
    first(BenchPlan([WORK], [split], protocol=once, baseline=None))
    launches, fills = driver.log.count("hgemm_split"), driver.log.count("fill")
    assert fills < 10 < launches


# ---- What is right --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
@pytest.mark.parametrize(
    "types",
    [
        {},
        {"dtype_a": "bf16", "dtype_b": "bf16", "dtype_d": "f32"},
        {"acc": "f16"},
        {"dtype_a": "tf32", "dtype_b": "tf32", "dtype_d": "f32"},
    ],
    ids=["f16", "bf16 to f32", "f16 accumulators", "tf32"],
)
def test_every_layout_and_type_is_described_to_the_baseline(
    driver: BenchDriver, lt: FakeCublasLt, layout: str, types: dict
) -> None:
    """Nothing is refused: the baseline's numbers are those of the same operands as ours."""
    ours = driver.serve(kernel("hgemm_one", layout=layout, **types), 5.0)
    work = Work(40, 56, 24, batch=3, layout=layout, **types)
    result = first(BenchPlan([work], [ours], protocol=QUICK))
    assert result["ours"] == "hgemm_one" and result["best"] == "cublaslt#1" and not result["refused"]
    product, half = lt.products[-1], types.get("acc") == "f16"
    compute = 64 if half else 77 if types.get("dtype_a") == "tf32" else 68
    assert (product.compute, product.scale) == (compute, 2 if half else 0)
    assert (product.alpha, product.beta) == (0x3C00 if half else 0x3F800000, 0)
    assert product.workspace_bytes == 64 << 20 and product.stream == 77 and product.pointer_c == product.pointer_d


@pytest.mark.parametrize(
    "bias, activation, epilogue", [("row", "none", 4), ("none", "relu", 2), ("row", "gelu", 36), ("row", "relu", 6)]
)
def test_the_baseline_has_the_bias_and_the_activation(
    driver: BenchDriver, lt: FakeCublasLt, bias: str, activation: str, epilogue: int
) -> None:
    ours = driver.serve(kernel("hgemm_one", bias="launch" if bias == "row" else "none", activation=activation), 5.0)
    result = first(BenchPlan([Work(40, 56, 24, bias=bias, activation=activation)], [ours], protocol=QUICK))
    assert (result["ours"], result["best"]) == ("hgemm_one", "cublaslt#1") and not result["refused"]
    assert lt.products[-1].epilogue == epilogue and (lt.products[-1].bias > 0) == (bias == "row")


EXPRESSIONS = {
    "inputs": "scale: Column; residual: Matrix['f32']; gain: Scalar; relu(acc * scale + bias) * gain + residual",
    "addmm": "c: Matrix; alpha * acc + beta * c",
    "pair": "silu(gate) * up",
    "results": "y = acc + bias; (y, f32(y), row_sum_squares(y))",
    "without a bound": "log(acc)",
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", EXPRESSIONS)
def test_kernels_of_an_expression_are_measured_and_checked(driver: BenchDriver, case: str, batch: int) -> None:
    text = epilogue_of(EXPRESSIONS[case]).text
    fused = [
        driver.serve(kernel(name, epilogue=text, warp_tile="32x16"), us)
        for name, us in (("hgemm_a", 5.0), ("hgemm_b", 4.0))
    ]
    plain = driver.serve(kernel("hgemm_plain"), 1.0)
    work = Work(40, 64, 24, batch=batch, expression=text)
    result = first(BenchPlan([work], [plain, *fused], protocol=QUICK, baseline=None))
    assert result["ours"] == "hgemm_b" and not result["refused"] and Work(**result["work"]) == work
    if case == "without a bound":
        return
    driver.faults["hgemm_b"] = frozenset({"leaves an element" if case == "results" else "negates D"})
    result = first(BenchPlan([work], fused, protocol=QUICK, baseline=None))
    assert result["ours"] == "hgemm_a"
    assert re.search("exceed the bound of the epilogue|not written", result["refused"]["hgemm_b"])


def test_baselines_do_not_compute_expressions(driver: BenchDriver, lt: FakeCublasLt) -> None:
    text = epilogue_of("relu(acc) + bias").text
    ours = driver.serve(kernel("hgemm_one", epilogue=text), 5.0)
    result = first(BenchPlan([Work(40, 56, 24, expression=text)], [ours], protocol=QUICK))
    assert result["ours"] == "hgemm_one" and result["best"] is None
    assert "cuBLASLt does not compute relu(acc) + bias" in str(result["refused"])


def test_an_expression_excludes_a_bias_and_needs_whole_pairs() -> None:
    text = epilogue_of("silu(gate) * up").text
    with pytest.raises(RequestError, match="excludes bias row"):
        checked(Work(40, 64, 24, bias="row", expression=text))
    with pytest.raises(RequestError, match="use a multiple of 16"):
        checked(Work(40, 56, 24, expression=text))


@pytest.mark.parametrize("bias, activation", [("column", "none"), ("row", "silu")])
def test_missing_epilogue_of_the_baseline_is_noted_once(
    driver: BenchDriver, lt: FakeCublasLt, bias: str, activation: str
) -> None:
    ours = driver.serve(kernel("hgemm_one", bias=bias, activation=activation), 5.0)
    works, messages = [Work(m, 56, 24, bias=bias, activation=activation) for m in (40, 48)], []
    document = run(BenchPlan(works, [ours], protocol=QUICK), open_device(), messages.append)
    assert all(one["ours"] == "hgemm_one" and one["first"] is None for one in document["results"])
    assert [text for text in messages if text.startswith("note")] == [
        f"note: cuBLASLt has no epilogue for{works[0].epilogue}: its time is not measured"
    ]


def test_wrong_results_are_rejected_on_both_sides(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    driver.faults["hgemm_fast"] = frozenset({"drops an element of k"})
    driver.faults["hgemm_middle"] = frozenset({"leaves an element"})
    lt.wrong.add(1)
    result = first(BenchPlan([WORK], kernels, protocol=QUICK))
    assert (result["ours"], result["best"]) == ("hgemm_third", "cublaslt#2")
    assert "sampled elements exceed" in result["refused"]["hgemm_fast"]
    assert set(result["refused"]) == {"hgemm_fast", "hgemm_middle", "cublaslt#1"}


def test_a_large_d_is_sampled_by_rows(driver: BenchDriver, kernels: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgemm.bench.measure.WHOLE_BYTES", 100)
    driver.faults["hgemm_fast"] = frozenset({"leaves an element"})  # the last one, which is always sampled
    result = first(BenchPlan([WORK], kernels, protocol=QUICK, baseline=None))
    assert result["ours"] == "hgemm_middle" and "1 elements of D were not written" in result["refused"]["hgemm_fast"]


def test_unsupported_problems_are_reported(driver: BenchDriver, lt: FakeCublasLt, kernels: list) -> None:
    lt.statuses = {0: 15, 3: 13}
    result = first(BenchPlan([WORK], kernels, protocol=QUICK))
    assert result["first"] == "cublaslt#1" and result["refused"]["cublaslt#3"] == "cublasLtMatmul returned status 13"
    result = first(BenchPlan([Work(40, 56, 23)], kernels, protocol=QUICK))
    assert "ours" not in result and "leading dimension 23 is not a multiple of 8" in result["refused"]["hgemm_fast"]


def test_problem_without_a_baseline_still_measures_ours(
    driver: BenchDriver, lt: FakeCublasLt, kernels: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(baselines._DATA, "f16", 99)  # a type that it does not know
    lt.library.fake_refuse(99)
    result = first(BenchPlan([WORK], kernels, protocol=QUICK))
    assert result["ours"] == "hgemm_fast" and result["best"] is None
    assert result["refused"] == {"cuBLASLt 13.1.0": "cublasLtMatrixLayoutCreate returned status 7"}
    lt.library.fake_refuse(-1)


def test_a_lost_device_ends_the_run_with_its_cause(driver: BenchDriver, kernels: list, tmp_path: Path) -> None:
    launch = driver.cuLaunchKernelEx

    def fault(config, function, parameters, extra):
        if function == "hgemm_third" and config.gridDimX == 4:  # the second problem's
            driver.status = BenchDriver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return launch(config, function, parameters, extra)

    driver.cuLaunchKernelEx = fault
    works = [replace(WORK, m=8), WORK, replace(WORK, m=16)]
    document = measured(BenchPlan(works, kernels, protocol=QUICK, baseline=None, keep=tmp_path / "out.json"))
    assert [result["work"]["m"] for result in document["results"]] == [8]
    assert document["lost"].startswith("hgemm_third on 40x56x24 tn f16 f16 f32 f16 lost the device: ")
    assert "ILLEGAL_ADDRESS" in document["lost"]
    assert json.loads((tmp_path / "out.json").read_text())["results"] == document["results"]


# ---- Whole runs -----------------------------------------------------------------------------------------------------


def test_run_is_saved_and_resumed(driver: BenchDriver, lt: FakeCublasLt, kernels: list, tmp_path: Path) -> None:
    works = [replace(WORK, m=8 * at) for at in range(1, 5)]
    plan = BenchPlan(works, kernels, protocol=QUICK, keep=tmp_path / "out.json", resume=True)
    cut_short = replace(plan, budget_s=1e-9)
    messages: list[str] = []
    document = run(cut_short, open_device(), messages.append)
    assert len(document["results"]) == 1 and len(document["not_measured"]) == 3
    assert messages[-1] == "budget of 1e-09 s: 3 of 4 problems are not measured" and messages[0].startswith(
        "[1/4] 8x56x24 tn"
    )
    kept = json.loads((tmp_path / "out.json").read_text())
    document = run(plan, open_device(), messages.append)
    assert document["results"][0] == kept["results"][0] and "not_measured" not in document
    assert [result["work"]["m"] for result in document["results"]] == [8, 16, 24, 32]
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["results"] == document["results"] and messages[2].startswith("[2/4] 16x56x24")
    assert not list(tmp_path.glob(".out*"))


def test_hanging_launch_ends_the_process_and_is_skipped_later(
    driver: BenchDriver, lt: FakeCublasLt, kernels: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    class Ended(BaseException):
        pass

    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    launch = driver.cuLaunchKernelEx

    def hang(config, function, parameters, extra):
        if function != "hgemm_third":
            return launch(config, function, parameters, extra)
        until = time.monotonic() + 10
        while not ended and time.monotonic() < until:
            time.sleep(0.01)
        raise Ended

    monkeypatch.setattr(driver, "cuLaunchKernelEx", hang)
    plan = BenchPlan([WORK], kernels, protocol=QUICK, keep=tmp_path / "out.json", resume=True, limit_s=0.3)
    with pytest.raises(Ended):
        measured(plan)
    assert "hgemm_third has not returned for 0.3 s: run again with --resume" in capfd.readouterr().err
    (tmp_path / "out.json.running").write_text("hgemm_third")  # as it lies there when the process has ended
    document = measured(plan)
    assert document["hung"] == ["hgemm_third"] and "hgemm_third" not in document["results"][0]["screened_us"]
    assert not (tmp_path / "out.json.running").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("{}", "is no benchmark results file"),
        ('{"schema": 1, "device": "B"}', "measured on B"),
    ],
)
def test_mismatched_results_are_not_resumed(driver: BenchDriver, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "out.json").write_text(content)
    with pytest.raises(LibraryError, match=message):
        measured(BenchPlan([WORK], [], keep=tmp_path / "out.json", resume=True))


def test_out_of_memory_affects_one_problem(
    driver: BenchDriver, lt: FakeCublasLt, kernels: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate: Callable = driver.cuMemAlloc

    def scarce(size: int) -> tuple:
        none_left = 2 * 10**6 < size < 10**7
        return (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None) if none_left else allocate(size)

    monkeypatch.setattr(driver, "cuMemAlloc", scarce)
    results = measured(BenchPlan([Work(1024, 512, 24), WORK], kernels, protocol=QUICK))["results"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in results[0]["refused"]["all"] and results[1]["ours"] == "hgemm_fast"


def test_operand_sets_are_random_and_distinct(driver: BenchDriver, kernels: list) -> None:
    seen: list[np.ndarray] = []
    compute = simulated.launch

    def look(traits, problem, faults) -> None:
        seen.append(simulated.elements(simulated.matrices(problem, traits)["A"], "f16").astype(np.float64))
        compute(traits, problem, faults)

    simulated.launch = look
    try:
        first(BenchPlan([WORK], kernels[:1], protocol=QUICK, baseline=None, seed=3))
    finally:
        simulated.launch = compute
    assert abs(seen[0].mean()) < 0.2 and 0.8 < seen[0].std() < 1.2
    assert len({one.tobytes() for one in seen}) == 3


# ==== Arithmetic of the protocol ======================================================================================


def test_a_linear_drift_cancels_in_a_round() -> None:
    drift, blocks = 0.0, []
    for name in forth_and_back(["a", "b", "c"]):
        blocks.append((name, 1.0 + drift))
        drift += 0.1
    times = round_times([blocks])
    assert [times[name][0] for name in "abc"] == pytest.approx([1.25] * 3)


def test_ratios_are_paired_by_round() -> None:
    ratio = Ratio.of(base=[1.1, 2.2, 3.3], own=[1.0, 2.0, 3.0])  # both slow down together
    assert (ratio.median, ratio.p10, ratio.p90, ratio.spread) == (1.1, 1.1, 1.1, 0.0) and ratio.wins
    ratio = Ratio.of(base=[2.0, 1.0, 2.2], own=[1.0, 1.0, 1.0])
    assert ratio.median == 2.0 and ratio.p10 == pytest.approx(1.2) and ratio.p90 == pytest.approx(2.16)
    assert not Ratio.of(base=[1.0, 0.9], own=[1.0, 1.0]).wins


def test_results_have_rate_and_spread() -> None:
    found = figures([1.0, 1.1, 0.9], Work(1000, 1000, 1000))
    assert found == {"time_us": 1000.0, "spread_us": 80.0, "tflops": 2.0, "rounds": 3}
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert fastest({"a": [3.0, 1.0, 2.0], "b": [2.5]}, ["a", "b", "c"]) == "a" and fastest({}, ["a"]) is None


@pytest.mark.parametrize(
    ("launch_ms", "seconds", "sets", "expected"),
    [
        (0.01, 1.5, 25, 700),  # the longest block
        (0.01, 0.15, 25, 100),  # the shortest
        (13.0, 1.5, 3, 1),
        (3.0, 1.5, 3, 2),  # less than a turn of the sets
        (2.3, 1.5, 3, 3),  # a whole one
    ],
)
def test_blocks_divide_into_turns(launch_ms: float, seconds: float, sets: int, expected: int) -> None:
    protocol = Protocol(seconds=seconds, block_ms=7.0)
    assert block_launches(launch_ms, protocol, contenders=5, sets=sets, rounds=15) == expected


def test_tolerance_detects_a_missing_k_tile() -> None:
    for k in (2048, 4096, 8192):
        missing = (32 / k) ** 0.5  # relative norm of 32 of k terms
        assert Tolerance.of(k, "f32").norm < missing / 10
        assert Tolerance.of(k, "f16").norm < missing / 1.5
        assert Tolerance.of(k, "f32", "f32").norm < Tolerance.of(k, "f32", "bf16").norm < missing / 5


def test_telemetry_averages_an_interval() -> None:
    one = parse_smi("1740, 655.31, 61, 0x0000000000000004", 1.0)
    two = parse_smi("1980, 455.31, 59, 0x0000000000000000", 2.0)
    seen = summarise([one, two])
    assert seen["sm_mhz"] == 1860 and seen["power_w_max"] == 655.3 and seen["limited_by"] == ["sw_power_cap"]
    assert summarise([]) is None


def test_known_device_state_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        def driver(self):
            return "580.1"

        def limits(self):
            return 700.0, 1980.0

        def sample(self):
            return parse_smi("1740, 655.31, 61, 0x0", 1.0)

    monkeypatch.setattr(Telemetry, "_open", staticmethod(lambda bus_id: Source()))
    state = {"driver": "580.1", "power_limit_w": 700.0, "sm_mhz_max": 1980.0, "temperature_c": 61.0, "power_w": 655.3}
    assert Telemetry("0").state() == state
    monkeypatch.setattr(Source, "limits", lambda self: 1 / 0)
    assert Telemetry("0").state() == {"driver": "580.1"}
    monkeypatch.setattr(Telemetry, "_open", staticmethod(lambda bus_id: None))
    assert Telemetry("0").state() == {}
