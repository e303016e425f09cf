"""All that the model says of a kernel on a card, as JSON values: the one function that tools call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hgemm.errors import RequestError
from hgemm.model.cards import Card, card_named, usual_card
from hgemm.model.kernel import KTile, Launch, Size, by_wgmma, k_tile, launch
from hgemm.model.predict import Fit, Prediction, fit_of, predict, problem_of


def report(
    spec: Mapping[str, Any], resources: Mapping[str, Any], card: Card, size: Size | None = None
) -> dict[str, Any]:
    """Return the cycles of a k-tile, what bounds it, the occupancy, and what a problem comes to and is thought to take.

    Shapes: `spec` and `resources` are those of a record; of resources, `ctas_per_sm`, `warps_per_sm` and `occupancy` are read.
    Units: cycles are truncated to whole ones of an SM; efficiency and occupancy are parts of 1.
    Raises: RequestError where the card's table lacks a figure that the spec needs.
    """
    part = k_tile(spec, card)
    found = None if size is None else launch(spec, part, card, size, resources["ctas_per_sm"])
    return {
        "card": card.name,
        "sms": card.sms,
        "figures": card.told_sources(part.figures),
        **_cycles(part),
        "bound": part.bound,
        "flop_per_byte": round(part.flop_per_byte, 2),
        **{name: resources[name] for name in ("ctas_per_sm", "warps_per_sm", "occupancy")},
        "problem": None
        if found is None
        else {**_extents(size), **_numbers(found), **_predicted(spec, resources, card, size)},
    }


def prediction(spec: Mapping[str, Any], ctas_per_sm: int, card: Card, size: Size) -> tuple[Prediction, Fit]:
    """Return what a variant is thought to take on a dense problem, and the fit by which. Raises RequestError as `report` does."""
    fit = fit_of(spec)
    dense = problem_of(spec, size.m, size.n, size.k, size.batch)
    return predict(spec, ctas_per_sm, dense, card, fit.constants, powered=card.key == fit.card), fit


def _extents(size: Size) -> dict[str, int]:
    return {"m": size.m, "n": size.n, "k": size.k, "batch": size.batch}


def _predicted(spec: Mapping[str, Any], resources: Mapping[str, Any], card: Card, size: Size) -> dict[str, Any]:
    found, fit = prediction(spec, resources["ctas_per_sm"], card, size)
    error = f"median error {100 * fit.median_error:.0f} %"
    where = error if card.key == fit.card else "how well they suit this card is not known"
    if _is_new(spec):
        where = "how well they suit this kind of kernel is not known"
    return {
        "predicted_us": round(found.time_us, 2),
        "start_us": round(found.start_us, 2),
        "sm_us": round(found.sm_us, 2),
        "memory_us": round(found.memory_us, 2),
        "clock_mhz": round(found.clock_mhz),
        "fitted": f"to {fit.problems} problems on {fit.device}, {fit.date}: {where}",
    }


def _is_new(spec: Mapping[str, Any]) -> bool:
    """Say whether no kernel of the kind was among those that the constants are fitted to."""
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


def _numbers(found: Launch) -> dict[str, Any]:
    return {
        **vars(found),
        "tail_efficiency": round(found.tail_efficiency, 4),
        "sm_cycles": int(found.sm_cycles),
        "dram_cycles": int(found.dram_cycles),
        "least_us": round(found.least_us, 2),
    }


def card_for(arch: str, device: str = "", sms: int = 0) -> Card | None:
    """Return the card that is named, else the usual one of an architecture such as sm_89, with so many SMs if any are named.

    None where the architecture has no card with a table, and none was named.
    Raises: RequestError where the card is unknown or does not run kernels of the architecture.
    """
    number, exact = int("".join(filter(str.isdigit, arch))), arch[-1:].isalpha()
    card = card_named(device) if device else usual_card(number)
    if card is None and sms:
        raise RequestError(f"no card of {arch} has a table, of which --sms could say another number: name a --device")
    if card is not None and (card.number != number if exact else card.number < number):
        raise RequestError(
            f"kernels for {arch} do not run on {card.name}, which is sm_{card.number}: name another device"
        )
    return card.with_sms(sms) if card is not None and sms else card
