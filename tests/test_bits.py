"""The bits of a product, predicted from the order of accumulation, and data that reveal another order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import executable_of, hgemm

from generator import device_bits
from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.device_bits import (
    KINDS,
    BitsCheck,
    BitsOutcome,
    bits_line,
    case_of,
    classes_of,
    compare,
    digest_of,
    operands,
    products,
)
from generator.errors import ProofError
from generator.proof.bits import (
    Adder,
    OrderTrial,
    SumOrder,
    adder,
    bits_of,
    order_cases,
    predicted,
    require_order,
    revealing,
    sums_of,
)
from generator.proof.executor import Adversary, HostToolchain
from generator.proof.machine import EmulatedKernel, HostMemory
from generator.sweep import sweep
from hgemm.cases import Case, Shape
from hgemm.launch_traits import LaunchTraits
from hgemm.reference import OperandValues
from hgemm.verification import CheckOptions

IN_ORDER = "f16 mma k16, f32 sum; k in order"
DIRECT = (
    "f16 mma k16, f32 sum; 2 sums, of 64 k in turn; of 32 k, those with k mod 8 below 4 first; these sums in order, then an f32 "
    "sum of the last k mod 8 products, one by one"
)


@pytest.fixture(scope="module")
def add(host_toolchain: HostToolchain) -> Adder:
    return adder(host_toolchain.ordered_sum())


def order(text: str, arch: int = 90) -> SumOrder:
    found = SumOrder.parse(text, arch)
    assert found
    return found


def covered(one: SumOrder, k: int) -> list[int]:
    """Return every k that is added, in order."""
    return [int(at) for part in one.chains(k) for chain in part for at in chain if at >= 0]


# ---- Orders ----------------------------------------------------------------------------------------------------------


def test_order_text_gives_the_k_of_each_step():
    assert (
        order(IN_ORDER).step == 16 and order(IN_ORDER, 80).step == 8 and order(IN_ORDER.replace("k16", "k8")).step == 8
    )
    assert order("tf32 mma k8, f32 sum; k in order", 80).step == 4
    assert covered(order(IN_ORDER), 45) == [*range(45)]
    last_first = order("f16 mma k16, f16 sum; last k-tile of 32 first, then k in order")
    assert last_first.to_f16 and covered(last_first, 70) == [*range(64, 70), *range(64)]
    parts = [
        [*chain]
        for (chain,) in order(f"{IN_ORDER}; 2 parts of whole k-tiles of 32, added in f32 in order of k").chains(70)
    ]
    assert [len(part) for part in parts] == [64, 16]
    promoted = order("f16 mma k16, f16 sum of each k-tile of 32, added in f32; k in order")
    assert [len(chain) for part in promoted.chains(70) for chain in part] == [32, 32, 16]


@pytest.mark.parametrize("k", [8, 100, 300, 513])
def test_warps_that_share_k_take_every_whole_vector_once(k: int):
    whole = k // 8 * 8
    found = covered(order(DIRECT), k)
    assert sorted(found) == [*range(whole)]
    assert found[:4] == [0, 1, 8, 9] if whole > 8 else found == [0, 1, 2, 3, 4, 5, 6, 7]


def test_grid_orders_are_not_predicted_and_unknown_orders_are_errors():
    assert require_order({}, 90) is None
    assert require_order({"accumulation_order": {"text": f"{IN_ORDER}; parts of hgemm_x"}}, 90) is None
    with pytest.raises(ProofError, match="unknown"):
        require_order({"accumulation_order": {"text": f"{IN_ORDER}, upside down"}}, 90)


# ---- Sums ------------------------------------------------------------------------------------------------------------


def test_products_without_rounding_have_exact_sums(add: Adder):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((21, 70), (70, 300)))
    parts = f"{IN_ORDER}; 3 parts of whole k-tiles of 32, added in f32 in order of k"
    for text in (IN_ORDER, parts, IN_ORDER.replace("f32", "f16"), DIRECT):
        assert np.array_equal(sums_of(order(text), a, b, add), a @ b), text


def test_another_order_changes_almost_every_element(add: Adder):
    (plan,) = sweep([{"arch": "sm_90", "tile": "64x64x32"}]).plans
    traits = LaunchTraits.of(planned_sections(emit(plan, templates_folder())))
    case = Case(Shape(40, 50, 123))
    a, b = (one[0].astype(np.float32) for one in revealing(traits, case, np.random.default_rng(0)))
    bits = [bits_of(sums_of(order(text), a, b, add).astype(np.float16)) for text in (IN_ORDER, IN_ORDER, DIRECT)]
    last_first = bits_of(
        sums_of(order(IN_ORDER.replace("k in", "last k-tile of 32 first, then k in")), a, b, add).astype(np.float16)
    )
    assert np.array_equal(bits[0], bits[1])
    assert np.mean(bits[0] != bits[2]) > 0.8 and np.mean(bits[0] != last_first) > 0.8


def test_prediction_includes_bias_activation_and_nan(add: Adder):
    (plan,) = sweep([{"arch": "sm_80", "tile": "64x64x32", "bias": "row", "activation": "relu", "out": "bf16"}]).plans
    traits = LaunchTraits.of(planned_sections(emit(plan, templates_folder())))
    a, b = np.ones((1, 2, 8)), np.ones((1, 8, 3))
    a[0, 1, 0] = np.nan
    found = predicted(order(IN_ORDER, 80), traits, OperandValues(a, b, None, np.array([[[1.0, -9.0, 0.0]]])), add)
    assert [hex(word) for word in found.bits.ravel()] == ["0x4110", "0x0", "0x4100", *["0x7fff"] * 3]
    gelu = predicted(order(IN_ORDER, 80), replace(traits, activation="gelu"), OperandValues(a, b), add)
    assert not gelu.known.any()


def test_a_kernel_with_another_order_than_its_record_fails(host_toolchain: HostToolchain, add: Adder):
    (plan,) = sweep([{"arch": "sm_80", "tile": "32x32x32"}]).plans
    made = emit(plan, templates_folder())
    record = planned_sections(made)
    traits = LaunchTraits.of(record)
    executable = executable_of(made, host_toolchain)
    case = order_cases(traits)[0]
    right = require_order(record, 80)
    assert right
    for stated, fails in ((right, False), (replace(right, last_first_k=32), True)):
        kernel = EmulatedKernel(traits, executable, (Adversary("late", "ahead_low", 1),))
        trial = OrderTrial(kernel, case, HostMemory(), CheckOptions())
        try:
            failure, elements = trial.failure(stated, add)
        finally:
            trial.free()
        assert bool(failure) == fails and bool(elements) != fails
        assert not fails or "do not have the order of the record" in failure


# ---- Bits on a GPU, with the executor as a stand-in --------------------------------------------------------------------


class StandIn(HostMemory):
    capability = (9, 0)


@pytest.fixture(scope="module")
def check(host_toolchain: HostToolchain, add: Adder) -> BitsCheck:
    """A check of kernels whose results come from the executor. `bent` states an order that it does not have."""
    texts = {"arch": "sm_90", "mma": "m16n8k16", "copy": "cp_async", "tile": "32x32x32"}
    made = {
        symbol: emit(sweep([{**texts, **more}]).plans[0], templates_folder())
        for symbol, more in (("right", {}), ("gated", {"epilogue": "silu(gate) * up"}))
    }
    built = {symbol: (planned_sections(one), executable_of(one, host_toolchain)) for symbol, one in made.items()}

    def opened(_: object, symbol: str, code: str) -> EmulatedKernel:
        record, executable = built.get(symbol, built["right"])
        kernel = EmulatedKernel(LaunchTraits.of(record), executable, (Adversary("late", "ahead_low", 1),))
        order = dict(record["accumulation_order"])
        if symbol == "bent":
            order["text"] = order["text"].replace("k in order", "last k-tile of 32 first, then k in order")
        kernel.record, kernel.prepare = {**record, "accumulation_order": order}, lambda ordinal: None
        return kernel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_bits, "open_kernel", opened)
        patch.setattr(device_bits, "COMMON", Shape(17, 40, 72))
        patch.setattr(device_bits, "_LARGEST", Shape(20, 40, 100))
        patch.setattr(device_bits, "is_plain", lambda traits: False)
        yield BitsCheck(None, StandIn(), add)


def test_the_bits_of_each_kernel_are_compared_with_its_order(check: BitsCheck):
    found, summary = compare(check, ["right", "also right", "bent"])
    right, again, bent = found
    assert right.passed and again.passed and right.digests == again.digests and right.elements > 1000
    assert bits_line(right).endswith(right.order)
    assert not bent.passed and "differ from the prediction" in bits_line(bent)
    assert "2 kernels, equal bits" in summary([right, again, bent]) and "2 kernels passed, 1 failed" in summary(
        [right, again, bent]
    )


def test_gated_pairs_are_compared_with_gated_pairs_only(check: BitsCheck):
    (right, gated), _ = compare(check, ["right", "gated"])
    assert gated.passed and gated.elements > 100, gated.reason
    assert (
        "17x48x72 revealing" in gated.digests and "17x40x72 revealing" in right.digests and right.order == gated.order
    )
    assert len(classes_of([right, gated])) == 2


def test_different_bits_within_one_order_are_reported(check: BitsCheck):
    one, other = (
        BitsOutcome(
            "k", ({"case": "", "passed": True},), types="f16", order="order_0", elements=1, digests={"x": digest}
        )
        for digest in "ab"
    )
    _, summary = compare(check, [])
    assert "f16: order_0: 2 kernels, 2 results" in summary([one, other])
    summary.keywords["cublaslt"]["f16"] = ["a", "a", "c"]
    assert "cuBLASLt, 3 proposals" in summary([one, other]) and "2 have order_0, 1 has no order here" in summary(
        [one, other]
    )


def test_kernels_of_a_type_get_the_same_products():
    (plan,) = sweep([{"arch": "sm_80", "tile": "64x64x32", "dtype": "bf16"}]).plans
    traits = LaunchTraits.of(planned_sections(emit(plan, templates_folder())))
    drawn = products(len(KINDS), 3)
    assert drawn == products(len(KINDS), 3) and {product.kind for product in drawn} == {*KINDS}
    for product in drawn:
        first, second = (operands(one, product, 3) for one in (traits, replace(traits, tile_m=128, layout="nt")))
        assert all(digest_of(bits_of(a)) == digest_of(bits_of(b)) for a, b in zip(first, second)), product
    infinite = next(product for product in drawn if product.kind == "infinite")
    assert np.isinf(operands(traits, replace(infinite, shape=Shape(99, 99, 99)), 3)[0]).any()


def test_products_include_splits_if_the_launch_decides_them():
    texts = {"arch": "sm_90a", "mma": "wgmma", "tile": "64x64x64", "schedule": "launch", "serial_parts": "on"}
    (plan,) = sweep([texts]).plans
    traits = LaunchTraits.of(planned_sections(emit(plan, templates_folder())))
    options = [case_of(traits, product).options for product in products(len(KINDS), 0)]
    assert options[0].splits == 1 and {one.splits for one in options} == {1, 2, 3, 4}
    assert {(one.splits, one.whole_tiles > 0) for one in options} >= {(2, True), (3, False), (4, True)}
    assert all(case_of(replace(traits, serial_parts=False), one).options.whole_tiles == 0 for one in products(7, 0))


def test_bits_need_a_device(capsys: pytest.CaptureFixture[str]):
    wrong = {
        ("--emulate", "--bits"): "--bits is for --device",
        ("--device", "--bits", "--shapes", "8x8x8"): "omit --shapes",
    }
    for flags, message in wrong.items():
        status, _, errors = hgemm(capsys, "verify", *flags)
        assert status == 2 and message in errors
