"""Types of fields, and the form that all objects of the protocol have."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    StrictStr,
)

__all__ = [
    "AnyConfig",
    "Base64",
    "Choice",
    "Config",
    "Key",
    "Kind",
    "Name",
    "Rows",
    "Seconds",
    "Text",
    "Why",
    "Wire",
    "base64_of",
    "bytes_of",
    "floats_of",
    "listed",
    "tupled",
]

Name = Annotated[StrictStr, Field(min_length=1, max_length=200)]
Text = Annotated[StrictStr, Field(max_length=4000)]
Key = Annotated[StrictStr, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
Config = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=512)]
AnyConfig = Annotated[list[Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]], Field(min_length=1, max_length=512)]
Rows = Annotated[list[AnyConfig], Field(max_length=4096)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
Choice = StrictBool | StrictInt | FiniteFloat | StrictStr | list[Any]
Kind = Literal["measure", "expect", "realise", "features", "retime", "race", "check"]
Why = Annotated[StrictStr, Field(max_length=20_000)]
Base64 = Annotated[StrictStr, Field(max_length=48 * 2**20, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


def _fail_fast(schema: Any) -> None:
    """Let every list in a schema, at any depth, end at its first error."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple"):
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for inner in schema:
            _fail_fast(inner)


class Wire(BaseModel):
    """An object of the protocol: it has these fields and no others. Of a list only the first wrong entry is told: all
    of them, of a body of 4 MB, would take gigabytes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        _fail_fast(schema)
        return schema


def listed(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [listed(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def tupled(value: Any) -> Any:
    return tuple(tupled(v) for v in value) if isinstance(value, list) else value


def base64_of(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode()


def bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError(f"not base64: {e}") from e


def floats_of(text: str, columns: int) -> np.ndarray:
    data = bytes_of(text)
    if len(data) % (8 * columns):
        raise ValueError(f"features: rows of {columns} float64")
    return np.frombuffer(data, dtype="<f8").reshape(-1, columns).astype(np.float64)
