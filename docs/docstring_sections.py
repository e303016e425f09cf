"""Sets the sections of docstrings (Shapes, Units, Fields, Raises, Source) as paragraphs of their own in the Python reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"(?:^[ \t]*|(?<=\.) )(Shapes|Units|Fields|Returns|Raises|Source): ", re.MULTILINE)


class Sections(griffe.Extension):
    """Rewrites `Raises: X` at the start of a line or sentence to a paragraph that begins with the bold word."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub(r"\n\n**\1:** ", obj.docstring.value)
