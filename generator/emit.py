"""A plan to the text of its kernel: one include, one Policy of constants, the assertions, one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from generator.arch import MMA_SYNC, WGMMA_SM90
from generator.families.mma_sync import emit as mma_sync
from generator.families.sm90 import emit as sm90
from generator.naming import alias_of, symbol_of
from generator.plan import Plan

_FAMILIES = {MMA_SYNC: mma_sync, WGMMA_SM90: sm90}
ENTRY_HEADERS = (mma_sync.ENTRY_HEADER, mma_sync.STAGED_ENTRY_HEADER, sm90.ENTRY_HEADER)
"""The headers that emitted texts include, one each."""


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, byte for byte the same for the same spec, and its names."""

    plan: Plan
    symbol: str
    alias: str
    source: str

    @property
    def entry_header(self) -> str:
        """The one header that the text includes."""
        return _FAMILIES[self.plan.spec.family].entry_header(self.plan)


def emit(plan: Plan, templates: Path) -> Kernel:
    """Write the kernel of a validated plan, from its family's template in the folder `templates`."""
    symbol, family = symbol_of(plan.spec), _FAMILIES[plan.spec.family]
    source = _template(templates, family.TEMPLATE).render(family.values(plan, symbol))
    return Kernel(plan, symbol, alias_of(plan.spec), source)


@cache
def _template(folder: Path, name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return environment.get_template(name)
