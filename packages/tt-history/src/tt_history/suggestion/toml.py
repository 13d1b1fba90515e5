"""Recipes as TOML files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["written"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(content: Mapping[str, Any], remark: str = "") -> str:
    """The text of a recipe file. Raises ValueError on what no recipe holds."""
    lines = [f"# {' '.join(line.split())}" for line in remark.splitlines()]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in content.items() if not isinstance(v, Mapping) and v is not None]
    tables = [((role,), about) for role, about in content.items() if role != "kind" and isinstance(about, Mapping)]
    kinds = content.get("kind", {})
    tables += [(("kind", op, role), about) for op, own in kinds.items() for role, about in own.items()]
    for where, about in tables:
        lines += ["", f"[{'.'.join(map(_key, where))}]"]
        lines += [f"{_key(k)} = {_value(v)}" for k, v in about.items() if v is not None]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{inner}}}"
    raise ValueError(f"a recipe holds numbers, texts, lists and tables, got {type(value).__name__}")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
