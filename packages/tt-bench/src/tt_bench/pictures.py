"""Figures by matplotlib, as SVG that stands in a page and as PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "PARTS", "colours", "figure", "grid", "literal", "log_axis", "svg"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8c6d31")
"""Okabe and Ito (2008): told apart by colour-blind people too."""

PARTS = {"search": "#56B4E9", "model": "#0072B2", "programs": "#999999", "build": "#E69F00", "run": "#009E73"}
PARTS |= {"think": "#56B4E9", "start": "#CC79A7", "finish": "#D55E00", "lock": "#bbbbbb"}


def figure(width: float, height: float) -> Figure:
    """An empty figure in inches, without any window system."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    return made


def grid(n: int, width: float = 4.4, height: float = 3.0, columns: int = 3) -> tuple[Figure, list[Any]]:
    """A figure with `n` axes in rows of at most `columns`."""
    across = max(1, min(columns, n))
    down = -(-n // across)
    made = figure(width * across, height * down)
    axes = made.subplots(down, across, squeeze=False).ravel().tolist()
    for spare in axes[n:]:
        spare.set_visible(False)
    for ax in axes:
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return made, axes[:n]


def svg(made: Figure, name: str) -> str:
    """The figure as an `<svg>` element; the same figure gives the same text, and no two names share ids."""
    import matplotlib

    text = io.StringIO()
    style: Any = {"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}
    with literal(made), matplotlib.rc_context(style):
        made.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)


@contextmanager
def literal(made: Figure) -> Iterator[None]:
    """Draw every text as it is: in names and remarks, dollar signs are no formulas."""
    import matplotlib
    from matplotlib.text import Text

    for text in made.findobj(Text):
        text.set_parse_math(False)  # type: ignore[attr-defined]
    with matplotlib.rc_context({"text.parse_math": False}):
        yield


def log_axis(ax: Any) -> None:
    """A logarithmic time axis with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())


def colours(n: int) -> list[str]:
    """The first `n` of `COLOURS`, which begin again after the last."""
    return [COLOURS[i % len(COLOURS)] for i in range(n)]
