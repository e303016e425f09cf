"""The scripts of benchmarks/ and the probes behind the cost model, without a GPU."""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from benchmarks import activation_cost, batch_invariance, compile_time, cost_model, cutlass, models, nvidia_protocol
from benchmarks.cost_model import Configuration, asked, distance, matched
from benchmarks.cpi import Failed, check_code, compile_for, judge, measure, probes
from generator.build.inspect import MachineCode, disassemble, read_cubin
from hgemm.bench.protocol import Ratio, geometric_mean
from hgemm.bench.work import Work
from hgemm.errors import LibraryError
from hgemm.problem import ACTIVATIONS, Problem


def test_ptxas_report():
    frame = "    16 bytes stack frame, 20 bytes spill stores, 12 bytes spill loads"
    log = f"{frame}\nptxas info : Used 255 registers, used 1 barriers"
    assert cutlass.parse_ptxas(log) == cutlass.Resources(255, 16, 20, 12)
    assert cutlass.parse_ptxas(log).spills
    with pytest.raises(cutlass.BuildError):
        cutlass.parse_ptxas("nothing")


def test_baseline_kernels_are_distinct_and_fit_hopper():
    kernels = cutlass.kernels()
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert all(kernel.operand_bytes <= 232448 and kernel.threads in (128, 256) for kernel in kernels)


def fake_tool(tmp_path):
    script = tmp_path / "tool.py"
    script.write_text(
        "import json, sys; print(json.dumps([dict(toolchain='t 1', files={'kernel.cubin': dict(bytes=9)})]))"
    )
    return "{python} " + str(script) + " --stages {stages} --library {library}"


def test_compile_time_measures_a_command(tmp_path, capsys):
    out = tmp_path / "out.json"
    command = fake_tool(tmp_path)
    assert compile_time.main(["--ours", command, "--batch", command, "--runs", "2", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["tools"]["ours"]["cubin_bytes"] == 9 and len(report["tools"]["ours"]["cold_s"]["runs"]) == 2
    assert report["commands"]["batch"]["kernels"] == 1
    assert sys.executable not in out.read_text()
    assert "ours" in capsys.readouterr().out


def test_compile_time_reports_a_failing_command(capsys):
    assert compile_time.main(["--ours", "{python} -c 'raise SystemExit(3)'", "--batch", "", "--runs", "1"]) == 1
    assert "exit 3" in capsys.readouterr().err


def test_output_line_of_a_baseline_is_parsed():
    line = json.dumps(dict(tool="x", version="1", import_s=0.5, compile_s=[0.25], cubin_bytes=[100]))
    assert compile_time.describe("noise\n" + line + "\n") == dict(
        version="1", cubin_bytes=100, import_s=0.5, compile_s=0.25
    )


class FakeCutlass:
    """The library of baselines/cutlass2x_abi.cpp: two kernels, the second fails to run."""

    def __init__(self, path):
        self.ran = []
        self.cutlass2x_count = lambda: 2
        self.cutlass2x_name = lambda index: (b"cutlass2x_a_sw8", b"cutlass2x_b_sw8")[index]
        self.cutlass2x_acc = lambda index: (32, 16)[index]
        self.cutlass2x_init = lambda index: 0
        self.cutlass2x_run = lambda *arguments: self.ran.append(arguments) or arguments[0]


def test_cutlass_kernels_support_their_accumulator_and_layout(monkeypatch, tmp_path):
    monkeypatch.setattr(cutlass.ctypes, "CDLL", FakeCutlass)
    baseline = cutlass.Cutlass(tmp_path / "x.so", "*_sw8")

    class Operands:
        sets = 2

        def problem(self, at):
            return Problem(8, 16, 24, a=1 + at, b=2, d=3, lda=24, ldb=24, ldd=16)

    one, two = (baseline.propose(Work(8, 16, 24, acc=acc), 32).contenders for acc in ("f32", "f16"))
    assert [kernel.name for kernel in one + two] == ["cutlass2x_a_sw8", "cutlass2x_b_sw8"]
    assert not baseline.propose(Work(8, 16, 24, layout="nn"), 32).contenders
    for launch in one[0].bind(Operands(), 77):
        launch()
    assert baseline.library.ran == [(0, 8, 16, 24, at, 2, 3, 24, 24, 16, 77) for at in (1, 2)]
    with pytest.raises(cutlass.CutlassError, match="cutlass2x_run returned cudaError 1"):
        two[0].bind(Operands(), 77)[0]()


# ==== Beside the heuristics ===========================================================================================

ONE = Configuration(128, 256, 64, 2, 1, 4, 1, swap_ab=False)
FAKE = """
import json, sys
asked = json.load(sys.stdin)
json.dump([[[m / n, 128, 64, 64, 2, 1, 4, 1]] for m, n, k in asked["problems"]], sys.stdout)
"""


def test_distance_weighs_tiles_over_clusters_over_stages() -> None:
    assert distance(ONE, ONE) == 0
    changes = [{"stages": 2}, {"swap_ab": True}, {"tile_k": 128}, {"cluster_m": 1}, {"tile_m": 64}]
    apart = [distance(ONE, replace(ONE, **change)) for change in changes]
    assert apart == sorted(apart) and len(set(apart)) == len(apart)
    assert distance(ONE, replace(ONE, tile_n=128, splits=2)) == 2


def test_nearest_kernels_are_distinct_and_ties_go_to_the_fastest() -> None:
    ours = [replace(ONE, stages=2), ONE, ONE, replace(ONE, tile_m=64)]
    times = np.array([1.0, 9.0, 8.0, 7.0])
    assert matched([ONE, ONE, replace(ONE, tile_m=32)], ours, times) == [2, 3]


def test_heuristics_are_queried_for_both_orientations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost_model, "CHILD", FAKE)
    few, many = asked(Path(sys.executable), [(16, 4096, 64), (4096, 16, 64)])
    assert [choice.swap_ab for choice in few] == [False, True] and [choice.swap_ab for choice in many] == [True, False]
    plain, transposed = few
    assert (plain.tile_m, plain.tile_n, plain.cluster_m) == (128, 64, 2)
    assert (transposed.tile_m, transposed.tile_n, transposed.cluster_n) == (64, 128, 2)


def test_missing_heuristics_give_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvMatmulHeuristics.py").write_text("raise ModuleNotFoundError(f\"No module named '{__name__}'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LibraryError, match="does not run nvMatmulHeuristics: .*nvMatmulHeuristics"):
        asked(Path(sys.executable), [(8, 8, 8)])


# ==== Probes of instruction costs =====================================================================================


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_probe_loops_hold_the_counted_instructions(arch: str) -> None:
    assert check_code(arch, compile_for(arch))


def test_changed_probe_loops_are_found() -> None:
    cubin = compile_for("sm_75")
    probe = next(probe for probe in probes(75) if probe.name == "ldsm_x4")
    (listing,) = disassemble([MachineCode("sm_75", read_cubin(cubin, probe.kernel).text)])
    assert judge(probe, listing) == ""
    assert "has 8 LDSM" in judge(dataclasses.replace(probe, per_step=16), listing)
    assert "has 0 LDS" in judge(dataclasses.replace(probe, sass="LDS"), listing)


def test_probes_are_distinct() -> None:
    for number in (75, 80, 89, 90, 120):
        known = [(probe.name, probe.sms, probe.latency) for probe in probes(number)]
        assert len(known) == len({*known})
        assert all(probe.per_step * probe.bytes <= probe.window_bytes for probe in probes(number))


class TimedGpu:
    """A device on which each launch takes 100 clocks a step and, beside it, 10 ms."""

    sms, window_bytes, l2_bytes = 4, 1 << 30, 50 << 20

    def args(self, window_bytes=1, warp_stride=0, step_stride=0, steps=0, sharers=1):
        from benchmarks.cpi import Args

        return Args(0, 0, 0, 0, window_bytes - 1, warp_stride, step_stride, steps, sharers, 0)

    def fill(self):
        pass

    def launch(self, *arguments):
        pass

    def wait(self):
        pass

    def timed(self, name, ctas, threads, smem_bytes, args):
        from benchmarks.cpi import Timed

        return Timed(clocks=100.0 * args.steps, sm_mhz=1000.0, milliseconds=10.0)


def test_cycles_are_per_instruction_and_unit() -> None:
    named = {(probe.name, probe.latency): probe for probe in probes(90)}
    mma = measure(TimedGpu(), named["hmma_m16n8k16_f32", False], 8)
    assert mma["cycles"] == 100 / 16 / 2 and mma["unit"] == "partition"  # two of the eight warps are on each of four
    assert measure(TimedGpu(), named["hmma_m16n8k16_f32", True], 1)["cycles"] == 100
    assert measure(TimedGpu(), named["hgmma_m64n256k16_f32", False], 8)["cycles"] == 100 / 8 / 2
    shared = measure(TimedGpu(), named["lds128", False], 4)
    assert shared["cycles"] == pytest.approx(100 / 8 / 4, rel=1e-4)
    assert shared["bytes_per_clock_per_sm"] == pytest.approx(512 / shared["cycles"], rel=1e-3)
    copied = measure(TimedGpu(), named["dram_copy", False], 32)
    assert copied["gbytes_per_s"] == pytest.approx(2 * (1 << 30) / 10e-3 / 1e9, rel=1e-2)


def test_missing_compiler_output_gives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cpi.source", lambda number: 'extern "C" __global__ void broken( {}')
    with pytest.raises(Failed, match="error"):
        compile_for("sm_75")


def timed_report(number: int) -> dict:
    """Return what cpi.py writes, of that device."""
    rows = [measure(TimedGpu(), probe, warps) for probe in probes(number) for warps in probe.warps]
    steady = [{"name": "hmma_m16n8k16_f32", "tflops": 1.0, "sm_mhz": 1000.0, "power_w": 100.0, "samples": 1}]
    launch = [{"stream_us": 2.0, "graph_us": 1.0, "round_trip_us": 9.0}]
    device = {"device": "a device", "date": "2026-11-21", "sms": 4, "l2_bytes": 50 << 20, "max_sm_mhz": 1000.0}
    return {**device, "command": "a command", "cpi": rows, "steady": steady, "launch": launch}


def test_batch_invariance_reports_each_contender():
    counts = batch_invariance.rows_to_check(random.Random(0))
    assert counts[:300] == [*range(1, 301)] and counts[-1] < batch_invariance.MAX_M and len(counts) > 320
    names = ("ordinary", "torch", *batch_invariance.TILES)
    rows = [
        {"n": 64, "k": 32, "m": m, "us": {"torch": 2.0}, "ratio": dict.fromkeys(names, ratio), "spread": {}}
        for m, ratio in ((1, 0.5), (8, 2.0))
    ]
    found = batch_invariance.summary(rows)
    assert found["torch"] == {"mean": 1.0, "least": 0.5, "least_at": "1x64x32", "problems": 2}
    pair = batch_invariance.columns(rows)
    assert pair["m"] == [1, 8] and pair["ratio"]["ordinary"] == [0.5, 2.0]
    assert json.loads(batch_invariance.text_of({"pairs": [pair], "summary": found}))["pairs"] == [pair]


# ---- Models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "spread", "rounds", "certain"),
    [(1.0, 0.03, 9, False), (1.0, 0.03, 49, True), (1.3, 0.1, 9, True), (0.7, 0.1, 9, True), (1.1, 0.1, 9, False)],
)
def test_rounds_of_a_model_end_when_the_ratio_is_certain(
    ratio: float, spread: float, rounds: int, certain: bool
) -> None:
    found = Ratio(ratio, ratio - spread, ratio + spread)
    assert models.is_certain(found, rounds) == certain


def test_estimates_have_the_measured_time_of_activations() -> None:
    document = json.loads((ROOT / "benchmarks" / "data" / "activation_cost_h200.json").read_text())
    document["problems"] = [one for one in document["problems"] if one["extents"][2] == 1024]
    ratios: dict[str, list[float]] = {}
    for _, _, name, measured, estimated in activation_cost.ratios(document):
        ratios.setdefault(name, []).append(measured / estimated)
    assert {*ratios} == {*ACTIVATIONS} - {"none"}
    assert all(0.97 < geometric_mean(found) < 1.03 for found in ratios.values())


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_help_of_a_script_needs_no_gpu_and_no_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "pynvml", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"benchmarks.{path.stem}", raising=False)  # else nothing is imported here
    main = getattr(importlib.import_module(f"benchmarks.{path.stem}"), "main", None)
    if isinstance(main, click.Command):
        assert CliRunner().invoke(main, ["--help"]).exit_code == 0


def test_squares_are_written_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    import hgemm.torch

    def square(size: int, dtype: str) -> dict[str, object]:
        if size == 4096:
            raise KeyboardInterrupt
        return {"size": size, "difference": 0.0}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(hgemm.torch, "use", lambda library: None)
    monkeypatch.setattr(hgemm, "open", lambda folder: None)
    monkeypatch.setattr(nvidia_protocol, "driver_cuda", lambda: 13000)
    monkeypatch.setattr(nvidia_protocol, "open_device", lambda: SimpleNamespace(name="a GPU"))
    monkeypatch.setattr(nvidia_protocol, "square", square)
    assert CliRunner().invoke(nvidia_protocol.main, ["--json", str(tmp_path / "found.json")]).exit_code == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["size"] for row in found["rows"]] == [1024, 2048]
