"""The laws of the bound: the tensor cores' arithmetic, modelled at its worst, stays under it; faults do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import accumulate, activate, record

from hgemm.dtypes import DTYPES, decode, encode, representable, truncation_error
from hgemm.launch_traits import LaunchTraits
from hgemm.reference import ACTIVATION_FORMULAS, Operands, Reference, apply_epilogue, reference
from hgemm.reference import accumulate as follow
from hgemm.verify import compare

F32 = LaunchTraits.of(record())
BY_ACC = {acc: LaunchTraits.of(record(acc=acc)) for acc in ("f32", "f16", "f16_promoted")}


def operands(seed: int, m: int, n: int, k: int, dtype: str = "f16", whole: bool = False) -> Operands:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-1, 2, size) if whole else rng.standard_normal(size) for size in ((1, m, k), (1, k, n)))
    return Operands(*(decode(encode(x, dtype), dtype) for x in (a, b)))


def ratio(traits: LaunchTraits, given: Operands, computed: np.ndarray) -> float:
    product, bound = follow(traits, given.a, given.b)
    return compare("", computed[None].astype(np.float64), Reference(product, bound), "").max_bound_ratio


@settings(max_examples=60, deadline=None)
@given(
    acc=st.sampled_from(sorted(BY_ACC)),
    group=st.sampled_from([4, 8, 16]),
    to_zero=st.booleans(),
    splits=st.sampled_from([1, 1, 3, 7]),
    k=st.integers(1, 400),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0, 3, 6]),
    ascending=st.booleans(),
)
def test_no_arithmetic_of_tensor_cores_exceeds_the_bound(
    acc, group, to_zero, splits, k, seed, spread, ascending
) -> None:
    traits = replace(BY_ACC[acc], splits=splits)
    drawn = operands(seed, 4, 4, k)
    scale = 2.0 ** np.random.default_rng(seed).integers(-spread, spread + 1, k)  # terms of many sizes, in any order
    a = drawn.a * (np.sort(scale) if ascending else scale)
    b = np.abs(drawn.b) if ascending else drawn.b
    given = Operands(decode(encode(a, "f16"), "f16"), b)
    computed = accumulate(traits, given.a[0], given.b[0], group, to_zero)
    if np.all(np.abs(computed) < 30000):
        assert ratio(traits, given, computed) <= 1.0


@settings(max_examples=60, deadline=None)
@given(
    acc=st.sampled_from(sorted(BY_ACC)),
    group=st.sampled_from([4, 8, 16]),
    k=st.integers(1, 600),
    seed=st.integers(0, 10**6),
    share=st.integers(1, 9),
    offset=st.floats(-2, 2),
)
def test_shares_of_any_k_tiles_stay_under_the_bound_of_stream_k(acc, group, k, seed, share, offset) -> None:
    """Whatever the number of workers: shares begin and end at any k-tiles, and their sums are added in the order of k."""
    whole, traits = BY_ACC[acc], LaunchTraits.of(record("stream_k", acc=acc))
    drawn = operands(seed, 4, 4, k)
    rng = np.random.default_rng(seed)
    a = drawn.a + offset * np.sign(rng.standard_normal())  # sums that grow, and then fall where a share may begin
    a[..., k // 2 :] *= rng.choice([1, -1])
    given = Operands(decode(encode(a, "f16"), "f16"), drawn.b)
    at = [0, *range(traits.tile_k * int(rng.integers(1, share + 1)), k, traits.tile_k * share), k]
    sums = [accumulate(whole, given.a[0][:, i:j], given.b[0][i:j], group) for i, j in zip(at, at[1:])]
    computed = np.zeros((4, 4), np.float32)
    for part in sums:
        computed = computed + part
    if all(np.all(np.abs(part) < 30000) for part in sums):
        assert ratio(traits, given, computed) <= 1.0


def test_the_bound_of_stream_k_is_hardly_wider_than_that_of_one_chain() -> None:
    given = operands(0, 16, 16, 2000)
    one, shared = (follow(traits, given.a, given.b)[1] for traits in (F32, LaunchTraits.of(record("stream_k"))))
    assert np.all(shared >= one) and np.mean(shared) < 1.5 * np.mean(one)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 300), dtype=st.sampled_from(["f16", "bf16"]))
def test_plain_f32_sums_in_any_order_stay_under_the_bound(seed: int, k: int, dtype: str) -> None:
    given = operands(seed, 3, 3, k, dtype)
    computed = np.zeros((3, 3), np.float32)
    for at in range(0, k, 16):
        order = at + np.random.default_rng(seed).permutation(min(16, k - at))
        for i in order:
            computed = computed + (given.a[0][:, i, None] * given.b[0][i]).astype(np.float32)
    assert ratio(F32, given, computed) <= 1.0


@pytest.mark.parametrize("acc", sorted(BY_ACC))
@pytest.mark.parametrize("k", [3, 64, 1000])
def test_integers_are_exact_so_that_a_dropped_element_is_seen(acc: str, k: int) -> None:
    traits, given = BY_ACC[acc], operands(k, 6, 6, k, whole=True)
    exact = given.a[0] @ given.b[0]
    assert np.array_equal(accumulate(traits, given.a[0], given.b[0]), exact) and ratio(traits, given, exact) == 0.0
    dropped = given.a[0].copy()
    dropped[:, k // 2] = 0
    assert ratio(traits, given, dropped @ given.b[0]) > 1.0
    values, bound = follow(traits, given.a, given.b)
    finished = apply_epilogue(traits, values, bound, 1.0, 0.0, None, None)
    assert compare("", (dropped @ given.b[0])[None], finished, "").max_bound_ratio > 1.0


@pytest.mark.parametrize(("acc", "k"), [("f32", 64), ("f32", 1024), ("f32", 4096), ("f16_promoted", 64), ("f16", 64)])
def test_the_bound_is_not_vacuous_for_normal_data(acc: str, k: int) -> None:
    traits, given = BY_ACC[acc], operands(7, 24, 24, k)
    exact = given.a[0] @ given.b[0]
    dropped = given.a[0].copy()
    dropped[:, k // 3] = 0
    shifted = np.roll(given.a[0].reshape(-1), 8).reshape(given.a[0].shape)  # a wrong leading dimension, or a wrong row
    assert ratio(traits, given, dropped @ given.b[0]) > 1.0
    assert ratio(traits, given, shifted @ given.b[0]) > 10.0
    assert ratio(traits, given, exact) < 1e-3
    used = ratio(traits, given, accumulate(traits, given.a[0], given.b[0]))
    assert 0.005 < used <= 1.0


def test_the_bound_grows_with_what_is_added_and_not_with_the_worst_case() -> None:
    given = operands(3, 16, 16, 4096)
    _, bound = follow(F32, given.a, given.b)
    worst = 1.5 * 4096 * 2.0**-23 * np.max(np.abs(given.a) @ np.abs(given.b))
    assert np.max(bound) < worst / 20


# ---- tf32 -----------------------------------------------------------------------------------------------------------

TF32 = LaunchTraits.of(record(dtype_a="tf32", dtype_b="tf32", dtype_d="f32"))


def cut(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 300),
    group=st.sampled_from([4, 8]),
    a_takes=st.sampled_from([cut, lambda values: representable(values, "tf32")]),
    b_takes=st.sampled_from([cut, lambda values: representable(values, "tf32")]),
    one_sign=st.booleans(),
)
def test_tf32_is_cut_off_or_rounded_within_the_bound(seed, k, group, a_takes, b_takes, one_sign) -> None:
    given = operands(seed, 4, 4, k, "tf32")
    if one_sign:  # nothing cancels
        given = Operands(np.abs(given.a), np.abs(given.b))
    computed = accumulate(TF32, a_takes(given.a[0]), b_takes(given.b[0]), group)
    assert ratio(TF32, given, computed) <= 1.0


def test_the_bound_of_tf32_has_no_room_for_digits_that_are_not_there() -> None:
    drawn = operands(11, 24, 24, 512, "tf32")
    given = Operands(representable(drawn.a, "tf32"), representable(drawn.b, "tf32"))
    f16 = operands(11, 24, 24, 512)
    tight, all_digits, of_f16 = (follow(TF32, one.a, one.b)[1].max() for one in (given, drawn, f16))
    assert tight < 1.05 * of_f16 < all_digits / 50
    rounded_as_bf16 = decode(encode(given.a[0], "bf16"), "bf16") @ given.b[0]
    assert ratio(TF32, given, rounded_as_bf16) > 10.0 and ratio(TF32, given, given.a[0] @ given.b[0]) < 1e-3


def test_what_tensor_cores_take_of_tf32_has_11_digits() -> None:
    values = np.concatenate([np.random.default_rng(1).standard_normal(5000), [0.0, 1.0, 1 + 2.0**-10, -(2.0**-120)]])
    taken, lost = representable(values, "tf32"), truncation_error(values, "tf32")
    assert np.array_equal(cut(taken), taken) and not truncation_error(taken, "tf32").any()
    single = values.astype(np.float32).astype(np.float64)
    assert (np.abs(taken - single) <= np.maximum(lost / 2, 0)).all() and (np.abs(cut(values) - single) <= lost).all()
    assert np.array_equal(representable(values, "f32"), single) and not truncation_error(values, "f32").any()


# ---- The epilogue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ACTIVATION_FORMULAS))
@pytest.mark.parametrize("dtype_d", ["f32", "f16", "bf16"])
def test_epilogues_stay_under_the_bound(name: str, dtype_d: str) -> None:
    traits = LaunchTraits.of(record(activation=name, dtype_d=dtype_d, bias="row"))
    rng = np.random.default_rng(5)
    product = np.concatenate([rng.standard_normal(20000) * 4, np.linspace(-120, 120, 20000)]).astype(np.float32)[None]
    c, bias = rng.standard_normal((2, *product.shape)).astype(np.float32)
    alpha, beta = np.float32(1.3), np.float32(-0.7)
    x = alpha * product + beta * c + bias
    computed = decode(encode(activate(name, x), dtype_d), dtype_d)
    expected = apply_epilogue(
        traits, *(v[None].astype(np.float64) for v in (product, 0 * product)), 1.3, -0.7, c[None], bias[None]
    )
    found = compare("", computed[None], expected, "")
    assert 0.05 < found.max_bound_ratio <= 1.0
    wrong = decode(encode(activate(name, x + np.float32(0.05) * np.abs(x)), dtype_d), dtype_d)
    assert not compare("", wrong[None], expected, "").passed


@pytest.mark.parametrize("name", sorted(ACTIVATION_FORMULAS))
def test_activations_are_as_steep_as_said(name: str) -> None:
    x = np.linspace(-12, 12, 200001)
    slope = np.abs(np.diff(ACTIVATION_FORMULAS[name].function(x)) / np.diff(x)).max()
    assert slope <= ACTIVATION_FORMULAS[name].steepest + 1e-9 and slope > ACTIVATION_FORMULAS[name].steepest - 0.01


def test_an_overflow_of_d_is_allowed_and_a_nan_is_not() -> None:
    wide = np.full((1, 1, 2), 7e4)
    expected = apply_epilogue(F32, wide, 0 * wide, 1.0, 0.0, None, None)
    assert compare("", np.array([[[np.inf, 65504.0]]]), expected, "").passed
    assert not compare("", np.array([[[np.nan, 65504.0]]]), expected, "").passed
    small = apply_epilogue(F32, 0 * wide, 0 * wide, 1.0, 0.0, None, None)
    for bad in (np.nan, np.inf, 1e-3):
        assert not compare("", np.array([[[bad, 0.0]]]), small, "").passed


def test_some_rows_are_the_same_as_of_all() -> None:
    given = operands(2, 9, 5, 40)
    given = replace(given, c=np.ones((1, 9, 5)), bias=np.arange(9.0).reshape(1, 9, 1), beta=0.5)
    traits, rows = LaunchTraits.of(record(bias="column")), np.array([0, 3, 8])
    whole, some = reference(traits, given), reference(traits, given, rows)
    assert np.allclose(whole.values[:, rows], some.values, rtol=1e-14) and np.allclose(whole.bound[:, rows], some.bound)


def test_numbers_and_bits_agree() -> None:
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.5, 0.0, 65280.0])
    assert decode(encode(values, "bf16"), "bf16").tolist() == [1.0, 1.0, 1 + 2.0**-6, -3.5, 0.0, 65280.0]
    every = np.arange(2**16, dtype="<u2")
    finite = np.isfinite(decode(every, "bf16"))
    assert np.array_equal(encode(decode(every[finite], "bf16"), "bf16"), every[finite])
    for name, dtype in DTYPES.items():
        grid = decode(encode(1 + np.linspace(0, 1, 5000), name), name)
        assert (
            np.max(np.abs(grid - 1 - np.linspace(0, 1, 5000)) / (1 + np.linspace(0, 1, 5000)))
            <= dtype.roundoff * 1.0001
        )
        assert decode(encode(np.array([dtype.largest]), name), name)[0] == dtype.largest
