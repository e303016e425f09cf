"""Suites of problems: those that the package has by name, and files in two JSON forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hgemm.bench.work import Work, checked
from hgemm.errors import RequestError

FOLDER = Path(__file__).resolve().parents[1] / "suites"
_TYPES = {"f16": "f16", "fp16": "f16", "half": "f16", "bf16": "bf16", "f32": "f32", "fp32": "f32", "float": "f32"}


def names() -> list[str]:
    """Return the suites that have names."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_suite(name: str, groups: str = "") -> list[Work]:
    """Return the problems of a suite, by its name or its file, in some groups (beginnings of their names) or in all.

    Raises: RequestError where there is none, it is malformed, or no group is so named.
    """
    path = FOLDER / f"{name}.json" if name in names() else Path(name)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise RequestError(
                f"suite {name} is no list of problems or groups: write them as in {FOLDER / 'public.json'}"
            )
        works = [checked(work) for entry in entries for work in _works(entry)]
    except FileNotFoundError:
        raise RequestError(f"no suite {name!a}: name a file, or one of {', '.join(names())}") from None
    except OSError as error:
        raise RequestError(f"suite {name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"suite {name} cannot be read ({type(error).__name__}: {error})") from None
    return _of_groups(works, groups) if groups else works


def _of_groups(works: list[Work], groups: str) -> list[Work]:
    wanted = tuple(word.strip() for word in groups.split(",") if word.strip())
    known = list(dict.fromkeys(work.group for work in works))
    for word in wanted:
        if not any(word in name for name in known):
            raise RequestError(f"no group {word!a} in the suite: it has {', '.join(known)}")
    return [work for work in works if any(word in work.group for word in wanted)]


def _works(entry: Mapping[str, Any]) -> list[Work]:
    return _group(entry) if "shapes" in entry else [_problem(entry)]


def _group(entry: Mapping[str, Any]) -> list[Work]:
    """Read a group: its name, layout and types, and shapes of (m, n, k) or (m, n, k, batch)."""
    common = {
        "layout": entry.get("layout", "tn"),
        "dtype_a": entry.get("in", "f16"),
        "dtype_b": entry.get("in", "f16"),
        "acc": entry.get("acc", "f32"),
        "dtype_d": entry.get("out", "f16"),
        "group": str(entry["name"]),
    }
    return [Work(*shape, **common) for shape in entry["shapes"]]


def _problem(entry: Mapping[str, Any]) -> Work:
    """Read one problem as CUTLASS's tools write it: a layout of two letters, or of three with D's.

    A column-major D, as in tnn, is the transposed product.
    """
    layout = str(entry.get("layout", "tnt")).lower()

    def dtype(*keys: str, default: str) -> str:
        return next((_TYPES.get(str(entry[key]).lower(), str(entry[key])) for key in keys if key in entry), default)

    a = dtype("dtype_a", "dtype_A", default="f16")
    work = Work(
        *(int(entry[name]) for name in "mnk"),
        batch=int(entry.get("batch_count", 1)),
        layout=layout[:2],
        dtype_a=a,
        dtype_b=dtype("dtype_b", "dtype_B", default=a),
        acc=dtype("dtype_acc", default="f32"),
        dtype_d=dtype("dtype_d", "dtype_D", "dtype_c", "dtype_C", default=a),
        group=str(entry.get("name", "problems")),
    )
    return work.transposed if layout[2:] == "n" else work
