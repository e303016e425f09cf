"""Tensor maps, clusters and their grids, on a driver that has no GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
import simulated
from fake_driver import FakeDriver

import hgemm.device
from hgemm import Kernel, LibraryError, Problem, ProblemError
from hgemm.cases import Case, Shape
from hgemm.device import open_device
from hgemm.launch import _encode, counter_bytes, ctas, grid_x, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.verify import verify

PROBLEM = Problem(100, 200, 72, a=0x10000, b=0x20000, d=0x80000, lda=80, ldb=96, ldd=208)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    fake.takes_maps = True
    for place in ("hgemm.device.driver", "hgemm.launch.driver"):
        monkeypatch.setattr(place, lambda: fake)
    hgemm.device._open.cache_clear()
    _encode.cache_clear()
    yield fake
    hgemm.device._open.cache_clear()
    _encode.cache_clear()


def record(shape: tuple[int, int] = (2, 1), operands: str = "abd", rule: str = "one_tile", **spec) -> dict:
    """Return the record of a variant that loads by TMA, CTA tile 32x48x16, clusters of `shape` tiles."""
    made = simulated.record(rule, splits=3 if rule == "split_k" else 1, arch="sm_90a", **spec)
    boxes = {"a": (16, 32, 1), "b": (16, 48, 1), "d": (16, 32, 1)}
    swizzles = {"a": 32, "b": 64, "d": 0}
    maps = [
        {
            "operand": name,
            "box": list(boxes[name]),
            "swizzle_bytes": swizzles[name],
            "element": "f16",
            "contiguous": "k",
        }
        for name in operands
    ]
    size = shape[0] * shape[1]
    changed = {"cluster": [size, 1, 1], "cluster_shape": list(shape), "tensor_maps": maps}
    return {**made, "launch": {**made["launch"], **changed}}


def read(maps: bytes, place: int) -> tuple[list[int], str]:
    """Return what the fake driver was asked to encode in one of the three maps."""
    one = maps[128 * place : 128 * (place + 1)]
    return list(struct.unpack("<10Q", one[:80])), one[80:].decode().strip()


# ---- Clusters -------------------------------------------------------------------------------------------------------


def test_clusters_take_work_together() -> None:
    along_m, along_n = LaunchTraits.of(record((4, 1))), LaunchTraits.of(record((1, 2)))
    assert ctas(along_m, 32 * 5, 48 * 3, 2) == 2 * 3 * 4 * 2  # 5 tiles of m are two clusters
    assert ctas(along_n, 32 * 5, 48 * 3, 2) == 5 * 2 * 2 * 2
    split = LaunchTraits.of(record((2, 1), rule="split_k"))
    assert grid_x(split, 33, 48, 1, 100) == 2 * 3
    assert counter_bytes(split, 32, 48 * 33) == 512 and workspace_bytes(split, 32, 48) == 256 + 2 * 3 * 32 * 48 * 4


def test_a_persistent_grid_is_whole_clusters(driver: FakeDriver) -> None:
    persistent = LaunchTraits.of(record((2, 1), rule="persistent"))
    assert [grid_x(persistent, 32 * m, 48, 1, 6) for m in (1, 2, 5, 6, 7, 99)] == [2, 2, 6, 6, 6, 6]
    assert grid_x(persistent, 3200, 48, 1, 0) == 2
    driver.resident_clusters = 5
    assert Kernel(record((2, 1)), b"cubin").prepare().resident_ctas == 10
    driver.resident_clusters = 0
    assert Kernel(record((2, 1)), b"cubin").prepare().resident_ctas == 2  # 3 SMs hold one
    assert Kernel(record((1, 1)), b"cubin").prepare().resident_ctas == 6  # 3 SMs of 2 CTAs


def test_a_cluster_that_is_not_its_shape_is_refused() -> None:
    wrong = record((2, 1))
    wrong["launch"]["cluster"] = [1, 2, 1]
    with pytest.raises(LibraryError, match=r"cluster \(1, 2, 1\) .* \(2, 1\)"):
        LaunchTraits.of(wrong)


# ---- Maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("tn", [72, 100, 1, 160, 160], [72, 200, 1, 192, 192]),
        ("nn", [100, 72, 1, 208, 208], [72, 200, 1, 192, 192]),
        ("nt", [100, 72, 1, 208, 208], [200, 72, 1, 416, 416]),
        ("tt", [72, 100, 1, 160, 160], [200, 72, 1, 416, 416]),
    ],
)
def test_maps_hold_extents_and_strides_of_each_layout(driver: FakeDriver, layout: str, a: list, b: list) -> None:
    problem = replace(PROBLEM, lda=a[3] // 2, ldb=b[3] // 2)
    Kernel(record(layout=layout), b"cubin").launch(problem)
    assert read(driver.maps[0], 0) == ([0x10000, *a, 16, 32, 1, 1], "FLOAT16")
    assert read(driver.maps[0], 1) == ([0x20000, *b, 16, 48, 1, 2], "FLOAT16")
    assert read(driver.maps[0], 2) == ([0x80000, 200, 100, 1, 416, 416, 16, 32, 1, 0], "FLOAT16")
    assert driver.launches == [(2 * 2 * 5, 64, 4096, 0)]


def test_a_batch_is_the_third_axis_and_one_matrix_for_all_has_one_layer(driver: FakeDriver) -> None:
    problem = replace(PROBLEM, batch=3, batch_stride_a=0, batch_stride_b=96 * 200 + 8, batch_stride_d=208 * 100)
    Kernel(record(), b"cubin").launch(problem)
    assert read(driver.maps[0], 0)[0][3:6] == [1, 160, 160]
    assert read(driver.maps[0], 1)[0][3:6] == [3, 192, 2 * (96 * 200 + 8)]
    assert read(driver.maps[0], 2)[0][3:6] == [3, 416, 2 * 208 * 100]


def test_a_map_that_the_variant_does_not_use_is_zeros(driver: FakeDriver) -> None:
    Kernel(record(operands="ab"), b"cubin").launch(PROBLEM)
    assert driver.maps[0][256:] == bytes(128) and driver.maps[0][128:256] != bytes(128)


def test_maps_are_encoded_once_a_place(driver: FakeDriver) -> None:
    kernel = Kernel(record(), b"cubin")
    for _ in range(3):
        kernel.launch(PROBLEM)
    assert driver.encoded == 3 and driver.maps[0] == driver.maps[2]
    kernel.launch(replace(PROBLEM, a=0x50000))
    assert driver.encoded == 4


def test_a_bound_launch_owns_its_maps(driver: FakeDriver) -> None:
    launch = Kernel(record(), b"cubin").bind(PROBLEM)
    _encode.cache_clear()
    launch()
    launch()
    assert driver.maps[0] == driver.maps[1] and read(driver.maps[0], 0)[0][0] == 0x10000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": 0x10008}, "A begins at an address that is not a multiple of 16 B"),
        ({"lda": 84}, "A's leading dimension is 168 B, not a multiple of 16 B, as TMA requires"),
        (
            {"batch": 2, "batch_stride_b": 96 * 200 + 4, "batch_stride_d": 20800},
            "B's batch stride is 38408 B, not a mult",
        ),
        ({"lda": 82, "d": 0}, "A's leading dimension 82 is not a multiple of 4: use 84.*; D has no pointer"),
        ({"ldd": 2**39}, f"D's leading dimension is {2**40} B: TMA supports less than {2**40} B"),
    ],
)
def test_what_tma_does_not_address_is_refused_with_the_way_out(driver: FakeDriver, changed: dict, message: str) -> None:
    loose = record()
    loose["traits"] = {**loose["traits"], "min_align": {"a": 4, "b": 4, "d": 8}}
    with pytest.raises(ProblemError, match=message) as caught:
        Kernel(loose, b"cubin").launch(replace(PROBLEM, **changed))
    assert str(caught.value).endswith("use a variant without TMA (arch sm_90 or sm_80)")
    assert not driver.encoded and not driver.launches


def test_such_variants_are_verified_like_all_others(driver: FakeDriver) -> None:
    kernel = Kernel(record((2, 1)), b"cubin")
    driver.kernel = lambda problem: simulated.launch(kernel.traits, problem)
    for case in (Case(Shape(33, 49, 17, 2), loose=True), Case(Shape(40, 17, 24, 3), broadcast="a")):
        assert verify(kernel, case, open_device()).passed
    assert len(driver.maps) == 2 * 2 * 2
