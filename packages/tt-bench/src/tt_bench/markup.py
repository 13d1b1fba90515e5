"""The shell of a page that needs no network, its sections and tables."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["document", "section", "table"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem }
p.note { color: #555; margin: .2rem 0 .8rem; max-width: 60rem } svg { max-width: 100%; height: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .86rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap }
th:first-child, td:first-child, td.text, th.text { text-align: left } td.text { white-space: normal }
th { border-bottom: 2px solid #bbb } td.best { font-weight: 600 }
"""


def section(title: str, body: str, note: str = "") -> str:
    """A heading with what stands under it."""
    remark = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{remark}{body}</section>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int] = ()) -> str:
    """An HTML table of escaped cells; columns in `text` hold prose."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=text' if i in text else ''}>{html.escape(str(c))}</{tag}>" for i, c in enumerate(row)
        )

    body = "".join(f"<tr>{cells(r, 'td')}</tr>" for r in rows)
    return f'<div class="wide"><table><thead><tr>{cells(head, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def document(title: str, parts: Sequence[str]) -> str:
    """A whole page with everything in it."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'
