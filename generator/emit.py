"""A plan to the text of its kernel: one include, one Policy of constants, the assertions, one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.families.mma_sync import cute_emit as mma_sync_in_cute
from generator.families.mma_sync import dsl_emit as mma_sync_in_dsl
from generator.families.mma_sync import emit as mma_sync
from generator.families.mma_sync_tma import emit as mma_sync_tma
from generator.families.sm90 import cute_emit as sm90_in_cute
from generator.families.sm90 import emit as sm90
from generator.naming import alias_of, symbol_of
from generator.plan import Plan
from hgemm.record import MODULE_NAME, SOURCE_NAME

_WRITERS = {
    (MMA_SYNC, "atoms"): mma_sync,
    (MMA_SYNC, "cute"): mma_sync_in_cute,
    (MMA_SYNC, "dsl"): mma_sync_in_dsl,
    (MMA_SYNC_TMA, "atoms"): mma_sync_tma,
    (WGMMA_SM90, "atoms"): sm90,
    (WGMMA_SM90, "cute"): sm90_in_cute,
}
"""What writes the kernels of a family in a form."""
ENTRY_HEADERS = (
    mma_sync.ENTRY_HEADER,
    mma_sync_in_cute.ENTRY_HEADER,
    mma_sync_tma.ENTRY_HEADER,
    sm90.ENTRY_HEADER,
    sm90_in_cute.ENTRY_HEADER,
)
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
        """The one header that the text includes; nothing where it is no C++."""
        return _writer(self.plan).entry_header(self.plan)

    @property
    def source_name(self) -> str:
        """The name of the file that holds the text."""
        return MODULE_NAME if self.plan.spec.form == "dsl" else SOURCE_NAME


def emit(plan: Plan, templates: Path) -> Kernel:
    """Write the kernel of a validated plan, from the template of its family and form in the folder `templates`."""
    symbol, writer = symbol_of(plan.spec), _writer(plan)
    source = _template(templates, writer.TEMPLATE).render(writer.values(plan, symbol))
    return Kernel(plan, symbol, alias_of(plan.spec), source)


def _writer(plan: Plan):
    return _WRITERS[plan.spec.family, plan.spec.form]


@cache
def _template(folder: Path, name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    return environment.get_template(name)
