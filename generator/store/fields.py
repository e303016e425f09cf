"""The fields that filters, columns and sorting may name, whatever a library holds."""

from __future__ import annotations

from generator.spec import PARSERS
from generator.store.library import Library
from hgemm.record import PROVED, flatten

_COUNT = 0
_DOCUMENT = {
    **dict.fromkeys(("symbol", "alias", "key", "arch", "spilled"), _COUNT),
    "resources": dict.fromkeys(
        ("registers", "spill_bytes", "stack_bytes", "smem_bytes", "ctas_per_sm", "warps_per_sm", "occupancy"), _COUNT
    ),
    "spec": dict.fromkeys(PARSERS, _COUNT),
    "launch": {"threads": _COUNT, "smem_bytes": _COUNT, "cluster": [], "grid": {"rule": _COUNT, "splits": _COUNT}},
    "traits": {
        **dict.fromkeys(("deterministic", "graph_safe", "exact_tiles_only"), _COUNT),
        "min_align": dict.fromkeys("abd", _COUNT),
        "workspace": dict.fromkeys(
            ("counter_bytes_per_tile", "partial_bytes_per_tile", "partial_bytes_per_cta"), _COUNT
        ),
    },
    "sass": {},
    "files": {f"kernel.{suffix}": {"bytes": _COUNT} for suffix in ("cu", "py", "cubin", "ptx")},
    "seconds": dict.fromkeys(("emit", "compile", "inspect"), _COUNT),
    "toolchain": dict.fromkeys(("nvrtc", "nvjitlink", "cutlass", "cudart", "cutlass_dsl", "generator"), ""),
    "proof": dict.fromkeys((*PROVED, "unproved"), _COUNT),
}
FIELDS = frozenset(flatten(_DOCUMENT)) - {"proof_shapes", "proof_timings"}
"""The short names of all that a record may say in one word or number, but for its instructions."""


def known_fields(library: Library) -> set[str]:
    """Return the fields that may be named: those of any record, and what else the library's have, where there is one."""
    return FIELDS | (library.field_names() if library.folder.is_dir() else set())
