"""Tests of the measuring tools' arithmetic; no GPU, no torch."""

import ctypes
import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "baselines")]

import build_cutlass2x  # noqa: E402
import compile_time  # noqa: E402
import cubin_contender  # noqa: E402
import harness  # noqa: E402
import protocol  # noqa: E402
import telemetry  # noqa: E402
from contenders import LaunchError, Problem  # noqa: E402
from cubin_contender import Launch, ProblemStruct  # noqa: E402


def test_problem_reads_cubes_and_boxes():
    assert Problem.parse("4096") == Problem(4096, 4096, 4096)
    assert Problem.parse("4096x7168x16384") == Problem(4096, 7168, 16384)
    for text in ("", "4096x4096", "0", "-1", "axb"):
        with pytest.raises(ValueError):
            Problem.parse(text)


def test_problem_struct_has_the_kernels_layout():
    assert ctypes.sizeof(ProblemStruct) == 144
    offsets = {
        name: getattr(ProblemStruct, name).offset
        for name in ("a", "workspace", "lda", "batch_stride_a", "m", "alpha", "beta")
    }
    assert offsets == {"a": 0, "workspace": 40, "lda": 48, "batch_stride_a": 80, "m": 120, "alpha": 136, "beta": 140}


def test_grid_rules():
    record = dict(threads=128, smem_bytes=98304, cluster=[1, 1, 1], grid=dict(rule="one_tile", tile_m=128, tile_n=256))
    assert Launch.of(record).grid(1000, 1000, 1, sms=132) == (8 * 4, 1, 1)
    split = Launch.of(
        record | {"grid": record["grid"] | {"rule": "split_k", "splits": 4}},
        traits={"workspace": {"counter_bytes_per_tile": 4, "partial_bytes_per_tile": 1000}},
    )
    assert split.grid(1000, 1000, 1, sms=132) == (128, 1, 1)
    assert split.workspace_bytes(1000, 1000, 1) == 256 + 32 * 1000
    persistent = Launch.of(record | {"grid": record["grid"] | {"rule": "persistent"}}, resources={"ctas_per_sm": 2})
    assert persistent.grid(256, 256, 1, sms=132) == (2, 1, 1)
    assert persistent.grid(8192, 8192, 1, sms=132) == (264, 1, 1)
    with pytest.raises(LaunchError, match="stream_k"):
        Launch.of(record | {"grid": record["grid"] | {"rule": "stream_k"}}).grid(1, 1, 1, 132)


@pytest.mark.parametrize(
    "arch, runs", [("sm_90", True), ("sm_90a", True), ("sm_89", False), ("sm_80", False), ("sm_100a", False)]
)
def test_machine_code_runs_on_its_own_major_version(arch, runs):
    assert cubin_contender.cubin_runs(arch, (9, 0)) is runs


def test_abba_cancels_a_linear_drift():
    drift, blocks = 0.0, []
    for name in protocol.abba(["a", "b", "c"]):
        blocks.append((name, 1.0 + drift))
        drift += 0.1
    times = protocol.round_times([blocks])
    assert [times[name][0] for name in "abc"] == pytest.approx([1.25] * 3)


def rows_of(times, accs, pattern="base_*"):
    return {row["name"]: row for row in protocol.summarise(times, accs, Problem(1000, 1000, 1000), pattern)}


def test_summary_takes_the_fastest_baseline_of_the_same_accumulator():
    times = {
        "ours": [1.0, 1.0, 1.0],
        "base_slow": [2.0, 2.0, 2.0],
        "base_fast": [1.5, 1.6, 1.4],
        "base_half": [0.5, 0.5, 0.5],
    }
    accs = {"ours": "f32", "base_slow": "f32", "base_fast": "f32", "base_half": "f16"}
    rows = rows_of(times, accs)
    assert rows["ours"]["baseline"] == "base_fast"
    assert rows["ours"]["ratio"] == 1.5 and rows["ours"]["ratio_p10"] == 1.42 and rows["ours"]["wins"]
    assert rows["base_half"]["ratio"] == 1.0 and not rows["base_half"]["wins"]
    assert rows["ours"]["tflops"] == 2.0  # 2e9 operations in a millisecond
    assert "ratio" not in rows_of({"ours": [1.0]}, {"ours": "f32"})["ours"]


def test_ratios_are_paired_by_round():
    rows = rows_of({"ours": [1.0, 2.0], "base": [1.1, 2.2]}, {"ours": "f32", "base": "f32"}, "base")
    assert rows["ours"]["ratio_p10"] == rows["ours"]["ratio_p90"] == 1.1  # both slowed down together


def test_tolerance_sees_one_missing_k_tile():
    for k in (2048, 4096, 8192):
        missing = (32 / k) ** 0.5  # relative norm of 32 of k terms
        assert protocol.Tolerance.of(k, "f32").norm < missing / 10
        assert protocol.Tolerance.of(k, "f16").norm < missing / 1.5


def test_finalists_keep_baselines_and_torch():
    rows = [dict(name=name, acc="f32") for name in ("torch_mm_f32", "x1", "x2", "base_1", "x3", "base_2", "base_3")]
    assert protocol.finalists(rows, 2, "base_*") == ["x1", "x2", "base_1", "base_2", "torch_mm_f32"]


def test_table_prints_what_a_result_holds():
    rows = protocol.summarise(
        {"ours": [1.0], "base": [1.5]}, {"ours": "f32", "base": "f32"}, Problem(1000, 1000, 1000), "base"
    )
    result = dict(
        problem=dict(m=1000, n=1000, k=1000), state="steady", rows=rows, refused={"odd": "why"}, telemetry=None
    )
    text = harness.table(json.loads(json.dumps(result)))
    assert "1.500" in text and "refused: odd: why" in text and text.splitlines()[-2].endswith("*")


def test_arguments():
    args = harness.parse_arguments(["--shapes", "2048,4096x7168x16384", "--states", "steady,burst"])
    assert args.shapes[1].n == 7168 and args.states == ["steady", "burst"]
    for bad in ([], ["--shapes", "12,x"], ["--shapes", "64", "--states", "warm"]):
        with pytest.raises(SystemExit):
            harness.parse_arguments(bad)


def test_telemetry_summary():
    one = telemetry.parse_smi("1740, 655.31, 61, 0x0000000000000004", 1.0)
    two = telemetry.parse_smi("1980, 455.31, 59, 0x0000000000000000", 2.0)
    seen = telemetry.summarise([one, two])
    assert seen["sm_mhz"] == 1860 and seen["power_w_max"] == 655.3 and seen["limited_by"] == ["sw_power_cap"]
    assert telemetry.summarise([]) is None


def test_ptxas_report():
    frame = "    16 bytes stack frame, 20 bytes spill stores, 12 bytes spill loads"
    log = f"{frame}\nptxas info : Used 255 registers, used 1 barriers"
    assert build_cutlass2x.parse_ptxas(log) == build_cutlass2x.Resources(255, 16, 20, 12)
    assert build_cutlass2x.parse_ptxas(log).spills
    with pytest.raises(build_cutlass2x.BuildError):
        build_cutlass2x.parse_ptxas("nothing")


def test_baseline_kernels_are_distinct_and_fit_hopper():
    kernels = build_cutlass2x.kernels()
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
    assert report["commands"]["batch"]["variants"] == 1
    assert sys.executable not in out.read_text()
    assert "ours" in capsys.readouterr().out


def test_compile_time_reports_a_failing_command(capsys):
    assert compile_time.main(["--ours", "{python} -c 'raise SystemExit(3)'", "--batch", "", "--runs", "1"]) == 1
    assert "exit 3" in capsys.readouterr().err


def test_rival_line_is_read():
    line = json.dumps(dict(tool="x", version="1", import_s=0.5, compile_s=[0.25], cubin_bytes=[100]))
    assert compile_time.describe("noise\n" + line + "\n") == dict(
        version="1", cubin_bytes=100, import_s=0.5, compile_s=0.25
    )
