"""Mutated records, as after disk errors or manual edits, and what each reader reports."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from exports import HOPPER, MORE, WGMMA
from records import make_record, resources_of

from generator.families import family_of
from generator.families.base import Plan
from generator.spec import symbol_of
from generator.sweep import sweep
from hgemm.dispatch_table import row_of
from hgemm.errors import HgemmError, LibraryError
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import unknown_kind_word
from hgemm.record import HASH_FIELD, SPEC_DEFAULTS, Record, dump

FEW_ROWS = {"arch": "sm_80", "tile": "8x8x256", "copy": "ldg"}
FED_BY_TMA = {"arch": "sm_90", "tile": "128x128x64", "copy": "tma"}


def sound_records() -> list[dict[str, Any]]:
    """Return a record of each family, schedule and layout, as its plan has it."""
    texts = [*MORE, *({**WGMMA, **one} for one in HOPPER), FEW_ROWS, FED_BY_TMA]
    return [record_of(plan) for one in texts for plan in sweep([one]).plans]


def record_of(plan: Plan) -> dict[str, Any]:
    """Return the record of a kernel that was planned and not compiled."""
    symbol = symbol_of(plan.spec)
    record, _ = make_record(symbol)
    resources = resources_of(plan, max(1, plan.spec.ctas_per_sm))
    planned = {"launch": plan.launch(), "traits": plan.traits(), "resources": resources}
    return {
        **record,
        "alias": family_of(plan.spec).alias(plan.spec),
        "arch": plan.spec.arch,
        "spec": plan.spec.to_dict(),
        **planned,
    }


# ---- Mutations ------------------------------------------------------------------------------------------------------

_NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 32, 33, 64, 128, 255, 256, 528, 1024, 2**16, 2**31, 2**32, 2**62, 2**63, 2**64)
_OTHERS = (
    None,
    True,
    False,
    0.5,
    -0.0,
    1e308,
    "",
    "1",
    "launch",
    "x" * 5000,
    "\x1b[0m",
    [],
    [1],
    {},
    {"a": {"b": [{}]}},
)
_WORDS = (
    "tn",
    "nt",
    "f16",
    "bf16",
    "f32",
    "tf32",
    "row",
    "relu",
    "tma",
    "ldg",
    "stream_k",
    "split_k:3",
    "2x1",
    "64x64x32",
)


def flipped(document: bytes, rng: random.Random) -> bytes:
    """Return a document with one bit flipped."""
    place = rng.randrange(8 * len(document))
    changed = bytearray(document)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def mutated(data: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy in which one to three values differ, are missing, or are new."""
    changed = copy.deepcopy(dict(data))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, name = rng.choice([*_places(changed)])
        if rng.random() < 0.15:
            del holder[name]
        elif isinstance(holder, dict) and rng.random() < 0.1:
            holder[rng.choice(("extra", "Name", "persistent", "max_ctas", "static_smem_bytes"))] = rng.choice(_NUMBERS)
        else:
            holder[name] = copy.deepcopy(_other_value(holder[name], rng))
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the name or index of each value. Those of a launch come several times as often."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield value, name
        times = 6 if name in ("launch", "traits", "spec") else 1
        for _ in range(times):
            yield from _places(item)


def _other_value(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice(_OTHERS)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            (*_NUMBERS, value + 1, value - 1, value + 32, 2 * value, value // 2, value ^ 1 << rng.randrange(32))
        )
    if isinstance(value, str):
        return rng.choice((*_WORDS, value + "0", value[:-1], value.upper(), value.replace("1", "2", 1)))
    return rng.choice((*_NUMBERS, *_OTHERS))


# ---- Readers --------------------------------------------------------------------------------------------------------


BY_HAND = ("without a hash", "hashed again")
"""Mutations that no hash of the record shows."""


@dataclass
class Tally:
    """Answers of readers: counts by kind of mutation and answer, and examples of wrong ones."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, document: bytes, sound: Mapping[str, Any]) -> None:
        """Let the reader without the generator judge a document. `sound` is the record before the mutation."""
        by_hand = kind in BY_HAND
        try:
            record = Record.parse(document)
            if record.symbol != sound["symbol"]:  # the name of the folder, which every reader compares
                raise LibraryError("the symbol is not the folder's name")
            same = used_by_launch(record.data) == used_by_launch(sound) if by_hand else record.data == sound
            if by_hand and not unknown_kind_word(record.data["spec"]):
                row_of(LaunchTraits.of(record.data), record.data)
        except LibraryError:
            self.counts[kind, "rejected"] += 1
            return
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {error}")
            return
        self.counts[kind, "same" if same else "accepted"] += 1
        if not same:
            self.failures.append(f"{kind}: accepted: {_difference(record.data, sound)}")


def used_by_launch(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a launch reads of a record. The hashes of the files are compared with the files."""
    return LaunchTraits.of(data), data["traits"]["exact_tiles_only"], {**SPEC_DEFAULTS, **data["spec"]}


def _difference(data: Any, sound: Any, path: str = "") -> str:
    if not (isinstance(data, dict) and isinstance(sound, dict)):
        return f"{path}: {sound} -> {data}"
    names = [name for name in {**sound, **data} if data.get(name) != sound.get(name)]
    return "; ".join(_difference(data.get(name), sound.get(name), f"{path}.{name}") for name in names)


def judge(count: int, seed: int = 0) -> Tally:
    """Mutate `count` records in four ways, and return what readers said."""
    rng, tally, sound = random.Random(seed), Tally(), sound_records()
    texts = [dump(record) for record in sound]
    parsed = [Record.parse(text).data for text in texts]
    for at in range(count):
        place = rng.randrange(len(sound))
        kind = ("one bit", "changed", "without a hash", "hashed again")[at % 4]
        if kind == "one bit":
            document = flipped(texts[place].encode(), rng)
        elif kind == "changed":
            changed = mutated(json.loads(texts[place]), rng)
            kind = kind if HASH_FIELD in changed else "without a hash"
            document = json.dumps(changed).encode()
        else:
            document = _by_hand(sound[place], rng, kind == "hashed again")
        tally.add(kind, document, parsed[place])
    return tally


def _by_hand(record: Mapping[str, Any], rng: random.Random, hashed: bool) -> bytes:
    changed = mutated(record, rng)
    changed.pop(HASH_FIELD, None)
    try:
        return dump(changed).encode() if hashed else json.dumps(changed).encode()
    except (HgemmError, ValueError, TypeError):  # what has no canonical form
        return json.dumps(changed).encode()
