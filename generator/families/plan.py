"""What the plans of all families have: a spec, the numbers that the emitted kernel asserts, and the record's launch and traits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from generator.arch import ARCHS
from generator.spec import Spec
from hgemm.selection_query import TYPICAL

OPCODE_SUFFIXES = {"bf16": ".BF16", "tf32": ".TF32"}
"""What tensor instructions say of their inputs in machine code; nothing of f16."""

SHARED_TILES = 2
"""Tiles that a CTA's share of stream-K has in part at most: the one that it ends, and the one that it begins."""


@dataclass(frozen=True)
class Plan(ABC):
    """A spec and what follows from it; `generator.plan.plan_of` makes the one of the spec's family.

    Units: bytes where the name says so; registers are a thread's.
    """

    spec: Spec

    def replace(self, **fields: Any) -> Plan:
        """Return the plan of the same spec with other values in some fields.

        What the family decides follows, where it was as the family decides it.
        """
        changed = type(self)(self.spec.replace(**fields))
        others = {
            name: value
            for name, value in changed.implied.items()
            if value != getattr(changed.spec, name) and name not in fields
        }
        if not others:
            return changed
        before = self.implied
        following = {name: others[name] for name in others.keys() & before if before[name] == getattr(self.spec, name)}
        return type(self)(changed.spec.replace(**following)) if following else changed

    @property
    @abstractmethod
    def instruction(self) -> str:
        """The tensor instruction's name in PTX."""

    # ---- What each family works out ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def implied(self) -> dict[str, Any]:
        """The fields that the family leaves no choice in, with the values that follow from the other fields."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a CTA."""

    @property
    @abstractmethod
    def stage_bytes(self) -> int:
        """Bytes of one stage, A and B together."""

    @property
    @abstractmethod
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""

    @property
    @abstractmethod
    def accumulator_registers(self) -> int:
        """Registers that hold a thread's part of the sums."""

    @property
    @abstractmethod
    def needed_registers(self) -> int:
        """Registers that a thread will need, estimated."""

    @property
    @abstractmethod
    def max_registers(self) -> int:
        """Registers that a thread may have."""

    @property
    def launch_registers(self) -> int:
        """Registers that a thread is launched with, estimated."""
        return min(self.needed_registers, self.max_registers)

    @property
    def registers_change_hands(self) -> bool:
        """Whether threads give registers to others, for which ptxas must see a whole program."""
        return False

    @property
    @abstractmethod
    def mma_per_k_tile(self) -> int:
        """Tensor instructions that one warp issues for a k-tile."""

    @property
    @abstractmethod
    def mma_opcode(self) -> str:
        """The opcode of every tensor instruction."""

    @property
    @abstractmethod
    def bank_conflicts(self) -> int:
        """Bank conflicts of one stage's copies and reads."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return what an explanation shows of any spec, legal or not."""

    @abstractmethod
    def placements(self) -> dict[str, Any]:
        """Return what an explanation shows of where a legal spec's operands lie in shared memory."""

    # ---- What they have in common -----------------------------------------------------------------------------------

    @property
    def max_smem_bytes(self) -> int:
        """Shared memory that a CTA may have for `ctas_per_sm` of them to live on an SM."""
        limits = ARCHS[self.spec.arch].limits
        share = limits.smem_bytes_per_sm // max(1, self.spec.ctas_per_sm) // limits.smem_unit * limits.smem_unit
        return min(limits.smem_bytes_per_cta, share - limits.smem_reserved_bytes_per_cta)

    @property
    def raster_tiles(self) -> int:
        """Tiles that a group (rows of tiles) or a panel (columns of tiles) is wide."""
        if self.spec.raster.kind == "panel":
            return max(1, self.spec.raster.size // max(1, self.spec.cta_tile.n))
        return max(1, self.spec.raster.size)

    @property
    def max_ctas(self) -> int:
        """CTAs that stream-K is launched with at most, whole clusters: as many as a common GPU of the architecture holds."""
        sms, _ = TYPICAL[ARCHS[self.spec.arch].number]
        cluster = self.spec.cluster.ctas
        return max(1, sms * max(1, self.spec.ctas_per_sm) // cluster) * cluster

    def launch(self) -> dict[str, Any]:
        """Return the record's `launch`: what a launcher needs beside the problem."""
        tile = self.spec.cta_tile
        grid = {
            "rule": self.spec.schedule.kind,
            "tile_m": tile.m,
            "tile_n": tile.n,
            "splits": self.spec.schedule.splits,
            **({"max_ctas": self.max_ctas} if self.spec.schedule.kind == "stream_k" else {}),
        }
        cluster = [self.spec.cluster.ctas, 1, 1]
        return {"threads": self.threads, "smem_bytes": self.smem_bytes, "cluster": cluster, "grid": grid}

    def traits(self) -> dict[str, Any]:
        """Return the record's `traits`: what a caller may rely on and must bring."""
        spec = self.spec
        kind, sums_bytes = spec.schedule.kind, spec.cta_tile.m * spec.cta_tile.n * 4
        workspace = {
            "counter_bytes_per_tile": 4 if spec.schedule.in_workspace else 0,
            "partial_bytes_per_tile": spec.schedule.splits * sums_bytes if kind == "split_k" else 0,
            **({"partial_bytes_per_cta": SHARED_TILES * sums_bytes} if kind == "stream_k" else {}),
        }
        return {
            "deterministic": True,
            "workspace": workspace,
            "graph_safe": True,
            "min_align": {"a": spec.align_a, "b": spec.align_b, "d": spec.align_d},
            "exact_tiles_only": False,
        }
