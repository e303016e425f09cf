"""The scripts of benchmarks/ that build and time baselines, without a GPU."""

import json
import sys

import pytest

from benchmarks import compile_time, cutlass
from hgemm.bench.work import Work
from hgemm.problem import Problem


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
    assert report["commands"]["batch"]["variants"] == 1
    assert sys.executable not in out.read_text()
    assert "ours" in capsys.readouterr().out


def test_compile_time_reports_a_failing_command(capsys):
    assert compile_time.main(["--ours", "{python} -c 'raise SystemExit(3)'", "--batch", "", "--runs", "1"]) == 1
    assert "exit 3" in capsys.readouterr().err


def test_the_line_of_a_baseline_is_read():
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
