"""A plan to the source of its kernel: one include, one Policy of constants, the assertions, one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from generator.families import FAMILIES, alias_of, family_of
from generator.families.base import Form, Plan
from generator.planner import require_implemented
from generator.spec import symbol_of
from hgemm.record import MODULE_NAME, SOURCE_NAME


@dataclass(frozen=True)
class EmittedKernel:
    """A kernel's source and its names. The source is the same byte for byte for the same spec."""

    plan: Plan
    symbol: str
    alias: str
    source: str

    @property
    def entry_header(self) -> str:
        """The header that the source includes; "" for a Python module."""
        return _form_of(self.plan).entry_header

    @property
    def source_name(self) -> str:
        """The name of the source file."""
        return SOURCE_NAME if self.entry_header else MODULE_NAME


def emit(plan: Plan, templates: Path) -> EmittedKernel:
    """Write the kernel of a legal plan, from the template of its family and form in the folder `templates`.

    Raises: RequestError if the family has no such form yet.
    """
    symbol, form = symbol_of(plan.spec), _form_of(plan)
    source = _template(templates, form.template).render(form.values(plan, symbol))
    return EmittedKernel(plan, symbol, alias_of(plan.spec), source)


def entry_headers() -> tuple[str, ...]:
    """Return the headers that emitted sources include, one each."""
    return tuple(form.entry_header for family in FAMILIES for form in family.forms.values() if form.entry_header)


def _form_of(plan: Plan) -> Form:
    require_implemented(plan)
    return family_of(plan.spec).forms[plan.spec.form]


@cache
def _template(folder: Path, name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        finalize=_in_cpp if name.endswith(".cu.j2") else None,
    )
    return environment.get_template(name)


def _in_cpp(value: object) -> object:
    """Return a template value as C++ spells it."""
    return str(value).lower() if isinstance(value, bool) else value
