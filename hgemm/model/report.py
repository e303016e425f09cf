"""All results of the model for a kernel on a GPU, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hgemm.errors import RequestError
from hgemm.model.cards import Card, card_named, usual_card
from hgemm.model.kernel import KTile, LaunchEstimate, Size, by_wgmma, k_tile, launch
from hgemm.model.predict import Fit, Prediction, fit_of, predict, problem_of


def report(
    spec: Mapping[str, Any], resources: Mapping[str, Any], card: Card, size: Size | None = None
) -> dict[str, Any]:
    """Return the cycles of a k-tile, its bound, the occupancy, and the work and predicted time of a problem.

    Shapes: `spec` and `resources` are those of a record. Of `resources`, `ctas_per_sm`, `warps_per_sm` and `occupancy`
        are read.
    Units: cycles of an SM, truncated to integers. Efficiency and occupancy are fractions of 1.
    Raises: RequestError if the GPU's table lacks a required figure.
    """
    part = k_tile(spec, card)
    found = None if size is None else launch(spec, part, card, size, resources["ctas_per_sm"])
    return {
        "card": card.name,
        "sms": card.sms,
        "figures": card.describe_sources(part.figures),
        **_cycles(part),
        "bound": part.bound,
        "flop_per_byte": round(part.flop_per_byte, 2),
        **{name: resources[name] for name in ("ctas_per_sm", "warps_per_sm", "occupancy")},
        "problem": None
        if found is None
        else {**_extents(size), **_numbers(found), **_predicted(spec, resources, card, size)},
    }


def prediction(spec: Mapping[str, Any], ctas_per_sm: int, card: Card, size: Size) -> tuple[Prediction, Fit]:
    """Return the predicted time of a variant on a dense problem, and the fit. Raises RequestError as `report` does."""
    fit = fit_of(spec)
    dense = problem_of(spec, size.m, size.n, size.k, size.batch)
    return predict(spec, ctas_per_sm, dense, card, fit.constants, powered=card.key == fit.card), fit


def _extents(size: Size) -> dict[str, int]:
    return {"m": size.m, "n": size.n, "k": size.k, "batch": size.batch}


def _predicted(spec: Mapping[str, Any], resources: Mapping[str, Any], card: Card, size: Size) -> dict[str, Any]:
    found, fit = prediction(spec, resources["ctas_per_sm"], card, size)
    error = f"median error {100 * fit.median_error:.0f} %"
    where = error if card.key == fit.card else "accuracy on this GPU is unknown"
    if _is_unmeasured_kind(spec):
        where = "accuracy for this kind of kernel is unknown"
    return {
        "predicted_us": round(found.time_us, 2),
        "start_us": round(found.start_us, 2),
        "sm_us": round(found.sm_us, 2),
        "memory_us": round(found.memory_us, 2),
        "clock_mhz": round(found.clock_mhz),
        "fitted": f"to {fit.problems} problems on {fit.device}, {fit.date}: {where}",
    }


def _is_unmeasured_kind(spec: Mapping[str, Any]) -> bool:
    """Return whether the fit includes no kernel of this kind."""
    usual_copy = ("tma",) if by_wgmma(spec) else ("cp_async", "ldg_sts", "ldg_sts_scalar")
    return spec["schedule"] == "stream_k" or spec.get("copy", usual_copy[0]) not in usual_copy


def _cycles(part: KTile) -> dict[str, int | None]:
    return {
        "tensor_cycles": int(part.tensor),
        "copy_cycles": int(part.copy),
        "fragment_cycles": int(part.fragments),
        "memory_cycles": int(part.memory),
        "l2_cycles": None if part.l2 is None else int(part.l2),
        "k_tile_cycles": int(part.cycles),
    }


def _numbers(found: LaunchEstimate) -> dict[str, Any]:
    return {
        **vars(found),
        "tail_efficiency": round(found.tail_efficiency, 4),
        "sm_cycles": int(found.sm_cycles),
        "dram_cycles": int(found.dram_cycles),
        "least_us": round(found.least_us, 2),
    }


def card_for(arch: str, device: str = "", sms: int = 0) -> Card | None:
    """Return the named GPU, or the default one of an architecture such as sm_89. `sms` overrides its number of SMs.

    None if no GPU is named and the architecture has no default.
    Raises: RequestError if the GPU is unknown or does not run kernels of the architecture.
    """
    number, exact = int("".join(filter(str.isdigit, arch))), arch[-1:].isalpha()
    card = card_named(device) if device else usual_card(number)
    if card is None and sms:
        raise RequestError(f"--sms {sms} needs a GPU, and no table is for {arch}: name one with --device")
    if card is not None and (card.number != number if exact else card.number < number):
        raise RequestError(f"kernels for {arch} do not run on {card.name} (sm_{card.number}): name another device")
    return card.with_sms(sms) if card is not None and sms else card
