"""Explains a request: its plan, its limits by the cost model, and every violated rule; as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from generator import epilogue
from generator.arch import ARCHS
from generator.build.inspect import occupancy
from generator.errors import RequestError
from generator.families import alias_of
from generator.families.base import Plan
from generator.spec import differing, symbol_of
from generator.sweep import Candidate
from generator.tables import cell, counted, fitted
from hgemm.epilogue import NONE
from hgemm.launch import PARTIAL_TILES_PER_CTA
from hgemm.model.cards import card_keys, card_named
from hgemm.model.kernel import Size
from hgemm.model.predict import card_for, report
from hgemm.packed import pack_command
from hgemm.problem import LAUNCH, REQUEST_WORDS, Kind
from hgemm.selection_query import SelectionQuery

_WIDTH = 26
"""Of the names of fields. Units: characters."""


@dataclass(frozen=True)
class Question:
    """A question to the cost model: a card (by name and SMs, or the usual one) and a problem, if any."""

    device: str = ""
    sms: int = 0
    size: Size | None = None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Question:
        """Read the options of `model_options`. Raises: RequestError if --m is missing."""
        m, n, k, batch = (options[name] for name in ("m", "n", "k", "batch"))
        if m is None and (n or k or batch):
            raise RequestError("--n, --k and --batch need --m: add --m (--n and --k default to --m)")
        size = None if m is None else Size(m, n or m, k or m, batch or 1)
        device = options["device"]
        if not device and options["arch"]:
            with suppress(RequestError):  # --arch names an architecture, or a card without a table
                device = card_named(options["arch"]).key
        return cls(device, options["sms"] or 0, size)


# ==== As JSON ====


def explain(candidate: Candidate, question: Question) -> dict[str, Any]:
    """Return the explanation of one combination as JSON. A legal one has `model`, the answer to `question`."""
    plan = candidate.plan
    spec = plan.spec.to_dict()
    return {
        "symbol": symbol_of(plan.spec),
        "alias": alias_of(plan.spec),
        "spec": spec,
        "planned": [name for name in spec if name not in candidate.request],
        "plan": plan.numbers() | ({} if candidate.broken else _layout_numbers(plan)),
        "model": None if candidate.broken else model_of(plan, question),
        "legal": not candidate.broken,
        "broken": [asdict(violation) for violation in candidate.broken],
    }


def _layout_numbers(plan: Plan) -> dict[str, Any]:
    """Return the numbers that only a legal plan has."""
    partial_bytes, splits = plan.traits()["workspace"]["partial_bytes"], plan.spec.schedule.splits
    per_cta = PARTIAL_TILES_PER_CTA * partial_bytes if plan.streams else 0
    order = plan.accumulation_order.to_dict()
    return {
        **plan.placements(),
        "bank_conflicts": plan.bank_conflicts,
        "accumulation_order": order["id"],
        "order_text": order["text"],
        "fixed_order": order["fixed"],
        "workspace_bytes_per_tile": splits * partial_bytes if plan.spec.schedule.kind == "split_k" else 0,
        **({"workspace_bytes_beside": per_cta * plan.max_ctas} if per_cta else {}),
    }


def _other_cards(arch: str) -> str:
    """Return which known cards of other architectures run kernels for this one, as the end of a sentence."""
    found = []
    for key in card_keys():
        with suppress(RequestError):
            if card_for(arch, key):
                found.append(key)
    return f"; these cards run its kernels, too: --device {', '.join(found)}" if found else ""


def model_of(plan: Plan, question: Question) -> dict[str, Any]:
    """Return the predictions of the cost model for a plan. If the model lacks a number, `missing` names it.

    Raises: RequestError if the named device is unknown, or does not run the kernel.
    """
    card = card_for(plan.spec.arch, question.device, question.sms)
    if card is None:
        return {"missing": f"no times: the cost model has no card for {plan.spec.arch}{_other_cards(plan.spec.arch)}"}
    try:
        return report(plan.spec.to_dict(), expected_resources(plan), card, question.size)
    except RequestError as error:
        return {"missing": str(error)}


def expected_resources(plan: Plan) -> dict[str, Any]:
    """Return the occupancy of a kernel before compilation, from its estimated registers."""
    limits = ARCHS[plan.spec.arch].limits
    found = occupancy(limits, plan.threads, plan.launch_registers, plan.smem_bytes)
    return {"ctas_per_sm": found.ctas_per_sm, "warps_per_sm": found.warps_per_sm, "occupancy": round(found.fraction, 4)}


# ==== As text ====

_COMPARED = ("predicted_us", "ctas_per_sm", "needed_registers", "smem_bytes", "bound", "k_tile_cycles")
"""Numbers of a plan, its model and its problem that a table of several explanations has."""

_SPEC_LABELS = {"ctas_per_sm": "spec_ctas_per_sm"}
"""Names of fields of a spec as in `hgemm list`, where the model has a number of the same name."""


def explanations_text(explanations: Sequence[dict[str, Any]], width: int) -> tuple[str, str]:
    """Return one explanation in full, or a table of several, and a note about the table.

    The table has a row for each combination, with the fields in which they differ. Violated rules follow below. The note names the
    GPUs of the predictions, and the columns that do not fit `width` characters.
    """
    if len(explanations) == 1:
        return explanation_text(explanations[0]), ""
    names = differing({name: {one["spec"][name] for one in explanations} for name in explanations[0]["spec"]})
    rows = [_compared(one) for one in explanations]
    known = [name for name in _COMPARED if any(row[name] is not None for row in rows)]
    computed = [name for name in names if name == "epilogue"]
    columns = [*computed, *known[:1], *names, *known[1:]]  # a narrow table keeps what tells its rows apart
    table = fitted(rows, ["legal", *epilogue.required_columns(names)], columns, width)
    broken = "".join(
        f"{one['symbol']} is illegal:\n" + "".join(f"{line}\n" for line in _broken_lines(one))
        for one in explanations
        if not one["legal"]
    )
    models = (one["model"] for one in explanations)
    cards = dict.fromkeys(_card_text(model) for model in models if model and model.get("problem"))
    notes = [
        f"predictions are for {', '.join(cards)}" if cards else "",
        table.note(names, "--json prints all columns. One combination is explained in full"),
    ]
    return table.text + broken, "; ".join(filter(None, notes))


def _card_text(model: dict[str, Any]) -> str:
    return f"{model['card']} with {model['sms']} SMs"


def _compared(explanation: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a combination."""
    model = explanation["model"] or {}
    numbers = {**explanation["plan"], **model, **(model.get("problem") or {})}
    found = {name: numbers.get(name) for name in _COMPARED}
    return {**_shown(explanation["spec"]), **found, "legal": explanation["legal"], "symbol": explanation["symbol"]}


def _shown(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec with the formula of its epilogue, and the hash of the expression, if any, at the end."""
    return {**spec, **epilogue.shown(spec["epilogue"])}


def _broken_lines(explanation: dict[str, Any]) -> list[str]:
    return [f"    {broken['rule']}: {broken['message']}. {broken['fix']}" for broken in explanation["broken"]]


def explanation_text(explanation: dict[str, Any]) -> str:
    """Return an explanation as text. Planned fields are marked with a star."""
    planned = {*explanation["planned"]}
    lines = [explanation["symbol"], f"  alias {explanation['alias']}", "  spec, * is planned" if planned else "  spec"]
    lines += [
        f"  {'*' if name in planned else ' '} {_SPEC_LABELS.get(name, name):<{_WIDTH}}{_on_off(value)}"
        for name, value in _shown(explanation["spec"]).items()
    ]
    lines += ["  plan", *(f"    {name:<{_WIDTH}}{cell(value)}" for name, value in explanation["plan"].items())]
    if explanation["legal"]:
        lines += model_lines(explanation["model"], _WIDTH)
        return "\n".join([*lines, "  legal", *_problem_notes(explanation)]) + "\n"
    lines += [f"  illegal, violates {counted(len(explanation['broken']), 'rule')}:"]
    lines += _broken_lines(explanation)
    return "\n".join(lines) + "\n"


def _problem_notes(explanation: dict[str, Any]) -> Iterator[str]:
    """Yield what a prediction leaves out: rows that the kernel cannot read, splits, and the choice of a tile."""
    problem, spec = explanation["model"].get("problem"), explanation["spec"]
    if not problem:
        return
    m, n, k, batch = (problem[name] for name in ("m", "n", "k", "batch"))
    kind = Kind(
        **{name: spec[name] for name in REQUEST_WORDS} | {"bias": "none" if spec["bias"] == LAUNCH else spec["bias"]}
    )
    dense = SelectionQuery.dense(kind, (m, n, k, batch))
    aligned = {name: getattr(dense, f"align_{name}") for name in "abd"}
    loose = [name for name, align in aligned.items() if align < spec[f"align_{name}"]]
    if loose and not spec["pointer_arrays"]:
        options = " ".join(f"--align-{name} {aligned[name]}" for name in loose)
        other = f"add {options}" if explanation["planned"] else "select another kernel with `hgemm select`"
        names = " and ".join(name.upper() for name in loose)
        yield f"  the kernel does not support dense {names} of this problem: pad the rows, or {other}"
    if spec["schedule"] == "launch":
        yield "  the prediction is for whole tiles. A launch may split k: `hgemm select` estimates the fastest splits"
    if batch == 1 and "cta_tile" in explanation["planned"] and spec["epilogue"] == NONE:
        if command := pack_command(kind, m, n, k, spec["arch"]):
            yield "  the planned tile does not depend on the problem. To choose tiles for a size:"
            yield f"    {command} --explain"


def model_lines(model: dict[str, Any], width: int) -> list[str]:
    """Return the lines of the model's section."""
    if "missing" in model:
        return ["  model", f"    {model['missing']}"]
    values = {name: value for name, value in model.items() if name not in ("card", "sms", "figures", "problem")}
    card = _card_text(model)
    lines = [f"  model of {card}, {model['figures']}"]
    lines += [f"    {name:<{width}}{_known(value)}" for name, value in values.items()]
    if model["problem"]:
        m, n, k, batch = (model["problem"][name] for name in ("m", "n", "k", "batch"))
        lines += [f"  problem {m}x{n}x{k}{f', batch {batch}' if batch > 1 else ''} on {card}"]
        numbers = {name: value for name, value in model["problem"].items() if name not in ("m", "n", "k", "batch")}
        lines += [f"    {name:<{width}}{_known(value)}" for name, value in numbers.items()]
    return lines


def _known(value: Any) -> str:
    return "not known" if value is None else cell(value)


def _on_off(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else cell(value)
