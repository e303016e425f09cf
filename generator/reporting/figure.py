"""A picture by matplotlib: as SVG that takes the colours of the page it stands in, or of its own, and as PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INK, FAINT, GROUND = "#1b1f24", "#d5d9de", "#fefefe"
"""Of words and axes, of grid lines, and behind both: in a page they become its variables --ink, --faint and --ground."""
OURS, THEIRS, QUIET = "#2f7de1", "#e08a2e", "#8a939d"
SERIES = ("#2f7de1", "#e08a2e", "#2a9d78", "#b3589a", "#8a939d", "#c44e52", "#7a68c9", "#9a8c3c")
"""Told apart by people who see few colours too, on white and on black."""

_STYLE = {
    "svg.fonttype": "none",
    "axes.facecolor": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "legend.labelcolor"), INK
    ),
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_FONT = re.compile(r"'DejaVu Sans'(, sans-serif)?")
_ID = re.compile(r'(\bid="|\bxlink:href="#(?!variant=)|url\(#)')
_REM_AN_INCH, _LEAST_REM = 6.4, 28
"""A picture's width in a page: its own, less where the window is narrower, and scrolled where that would be too small to read."""
_SIZE = re.compile(r'\s(?:width|height)="[^"]*"')


@dataclass(frozen=True)
class Figure:
    """A picture that is drawn when asked for.

    Fields: `name` is its file's, `title` what stands above it, `words` what it says to who does not see it; `draw` is given
        an empty figure of matplotlib's. Units: `inches` wide and high.
    """

    name: str
    title: str
    words: str
    inches: tuple[float, float]
    draw: Callable[[Any], None]

    @property
    def width(self) -> str:
        """The width in a page where there is room for it, as CSS says it."""
        return f"{self.inches[0] * _REM_AN_INCH:.3g}rem"

    def png(self) -> bytes:
        """Return the picture on a white ground."""
        return self._saved("png", dpi=144, facecolor="white", metadata={"Software": None})

    def svg(self) -> str:
        """Return the picture as a document of its own, on a white ground; the same for the same data."""
        return self._svg(facecolor="white")

    def inline(self) -> str:
        """Return the picture as an element of a page, whose colours it takes, with names of its own for its parts."""
        text = self._svg(facecolor="none")
        text = text[text.index("<svg") :]
        for colour, variable in ((INK, "ink"), (FAINT, "faint"), (GROUND, "ground")):
            text = text.replace(colour, f"var(--{variable})")
        text = _ID.sub(lambda match: f"{match[1]}{self.name}-", text)
        head, end, rest = text.partition(">")
        fits = f"min-width:min({self.width},{_LEAST_REM}rem)"
        head = _SIZE.sub("", head).replace(
            "<svg", f'<svg role="img" aria-labelledby="{self.name}-words" style="{fits}"'
        )
        return head + end + rest

    def _svg(self, facecolor: str) -> str:
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        text = self._saved("svg", facecolor=facecolor, metadata=metadata).decode()
        return _FONT.sub("Helvetica, Arial, sans-serif", text)

    def _saved(self, form: str, **options: Any) -> bytes:
        import matplotlib  # 0.5 s, and an extra
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas

        with matplotlib.rc_context({**_STYLE, "svg.hashsalt": self.name}):
            canvas = Canvas(figsize=self.inches, layout="constrained")
            FigureCanvasAgg(canvas)
            self.draw(canvas)
            out = io.BytesIO()
            canvas.savefig(out, format=form, **options)
        return out.getvalue()
