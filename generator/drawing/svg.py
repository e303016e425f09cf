"""A few shapes as SVG text, the same bytes for the same picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass
class Svg:
    """A picture that grows as shapes are added. Units: pixels, from the top left corner."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = "none", line: str = "none", bold: float = 1
    ) -> None:
        """Add a rectangle, its frame inside its edges."""
        at = f"x='{_number(x)}' y='{_number(y)}' width='{_number(width)}' height='{_number(height)}'"
        self.parts.append(f"<rect {at} fill='{fill}' stroke='{line}' stroke-width='{_number(bold)}'/>")
        self._cover(x + width, y + height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 13,
        anchor: str = "start",
        fill: str = "#222",
        bold: bool = False,
    ) -> None:
        """Add a line of text whose baseline is at `y`; `anchor` is start, middle or end."""
        weight = " font-weight='bold'" if bold else ""
        at = f"x='{_number(x)}' y='{_number(y)}' font-size='{_number(size)}' text-anchor='{anchor}'"
        self.parts.append(f"<text {at} fill='{fill}'{weight}>{escape(words)}</text>")
        wide = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * 0.56 * size * len(words)
        self._cover(x + wide, y + size / 2)

    def _cover(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def document(self, margin: float = 16) -> str:
        """Return the whole picture on a white ground."""
        width, height = _number(self.width + margin), _number(self.height + margin)
        head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {_FONT}>"
        ground = f"<rect width='{width}' height='{height}' fill='white'/>"
        return "\n".join([head, ground, *self.parts, "</svg>"]) + "\n"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
