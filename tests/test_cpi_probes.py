"""The microbenchmarks behind the cost model's tables measure what they say: looked at in the machine code, without a GPU."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.cpi import Failed, check_code, compile_for, judge, measure, probes
from generator.build.inspect import Code, disassemble, read_cubin


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_each_loop_holds_the_instructions_that_are_counted_and_no_kernel_spills(arch: str) -> None:
    assert check_code(arch, compile_for(arch))


def test_a_loop_that_was_optimised_away_or_holds_something_else_is_found() -> None:
    cubin = compile_for("sm_75")
    probe = next(probe for probe in probes(75) if probe.name == "ldsm_x4")
    (listing,) = disassemble([Code("sm_75", read_cubin(cubin, probe.kernel).text)])
    assert judge(probe, listing) == ""
    assert "has 8 LDSM" in judge(dataclasses.replace(probe, per_step=16), listing)
    assert "has 0 LDS" in judge(dataclasses.replace(probe, sass="LDS"), listing)


def test_probes_are_told_apart_by_name_machine_and_kind() -> None:
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


def test_cycles_are_those_of_one_instruction_on_a_partition_or_an_sm() -> None:
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


def test_a_missing_compiler_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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
