"""The benchmark's arithmetic: orders, ratios, tolerances, telemetry."""

from __future__ import annotations

import pytest

from hgemm.bench.device import Telemetry, parse_smi, summarise
from hgemm.bench.protocol import (
    Protocol,
    Ratio,
    Tolerance,
    abba,
    block_launches,
    fastest,
    figures,
    geometric_mean,
    round_times,
)
from hgemm.bench.work import Work


def test_a_linear_drift_cancels_in_a_round() -> None:
    drift, blocks = 0.0, []
    for name in abba(["a", "b", "c"]):
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


def test_figures_have_rate_and_spread() -> None:
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
def test_blocks_have_whole_turns_or_less(launch_ms: float, seconds: float, sets: int, expected: int) -> None:
    protocol = Protocol(seconds=seconds, block_ms=7.0)
    assert block_launches(launch_ms, protocol, contenders=5, sets=sets, rounds=15) == expected


def test_the_tolerance_sees_one_missing_k_tile() -> None:
    for k in (2048, 4096, 8192):
        missing = (32 / k) ** 0.5  # relative norm of 32 of k terms
        assert Tolerance.of(k, "f32").norm < missing / 10
        assert Tolerance.of(k, "f16").norm < missing / 1.5
        assert Tolerance.of(k, "f32", "f32").norm < Tolerance.of(k, "f32", "bf16").norm < missing / 5


def test_telemetry_sums_up_an_interval() -> None:
    one = parse_smi("1740, 655.31, 61, 0x0000000000000004", 1.0)
    two = parse_smi("1980, 455.31, 59, 0x0000000000000000", 2.0)
    seen = summarise([one, two])
    assert seen["sm_mhz"] == 1860 and seen["power_w_max"] == 655.3 and seen["limited_by"] == ["sw_power_cap"]
    assert summarise([]) is None


def test_the_devices_state_is_told_as_far_as_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        def driver(self):
            return "580.1"

        def limits(self):
            return 700.0, 1980.0

        def sample(self):
            return parse_smi("1740, 655.31, 61, 0x0", 1.0)

    monkeypatch.setattr(Telemetry, "_open", staticmethod(lambda bus_id: Source()))
    told = {"driver": "580.1", "power_limit_w": 700.0, "sm_mhz_max": 1980.0, "temperature_c": 61.0, "power_w": 655.3}
    assert Telemetry("0").state() == told
    monkeypatch.setattr(Source, "limits", lambda self: 1 / 0)
    assert Telemetry("0").state() == {"driver": "580.1"}
    monkeypatch.setattr(Telemetry, "_open", staticmethod(lambda bus_id: None))
    assert Telemetry("0").state() == {}
