"""Bodies that no route should see."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tt_service import bounds, wire
from tt_service.bounds import BoundsError, checked

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
DOCUMENTS = st.recursive(
    PLAIN, lambda x: st.lists(x, max_size=5) | st.dictionaries(st.text("ab", max_size=3), x), max_leaves=20
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DOCUMENTS)
def test_plain_documents_come_back_as_they_were(document):
    assert checked(json.dumps(document).encode()) == document


def refusal(raw: bytes) -> str:
    with pytest.raises(BoundsError) as e:
        checked(raw)
    text = str(e.value)
    assert "\n" not in text and len(text) < 200
    return text


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON: line 1, column 2"),
        (b"\xff\xfe", "not UTF-8: byte 0"),
        (b'{"trials": NaN}', "holds NaN"),
        (b"[-Infinity]", "holds -Infinity"),
        (b"[1e999]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "too many digits"),
        (b"[9223372036854775808]", "more than 64 bits"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b"[" * 25 + b"]" * 25, "nested deeper than 24"),
        (b"[" * 1_000_000, "nested deeper than 24"),
        (b'{"a":' * 100_000, "nested deeper than 24"),
        (b'{"knobs": [' + b"{}," * 512 + b"{}]}", "'knobs' has 513 entries, more than 512"),
        (b'{"a": [{"choices": [' + b"1," * 100_000 + b"1]}]}", "'choices' has 100,001 entries"),
        (b"[" + b"[]," * 1_000_001 + b"[]]", "more than 2,000,000 values"),
        (json.dumps({"x" * 201: 1}).encode(), "more than 200 characters"),
        (json.dumps({"versions": {str(i): i for i in range(1001)}}).encode(), "1,001 fields"),
    ],
)
def test_hostile_bodies_are_one_line(raw, says):
    assert says in refusal(raw)


@pytest.mark.parametrize("name", sorted(bounds.MOST))
def test_lists_may_be_as_long_as_they_may_be(name):
    assert len(checked(json.dumps({name: [0] * bounds.MOST[name]}).encode())[name]) == bounds.MOST[name]
    assert repr(name) in refusal(json.dumps({"deep": [{name: [0] * (bounds.MOST[name] + 1)}]}).encode())


def test_the_deepest_that_may_be_is_read():
    assert checked(b"[" * 24 + b"]" * 24)


def test_of_a_million_wrong_entries_one_is_told():
    """Each would be a record of a kilobyte, five of them for each kind that a choice may be."""
    knob = {"name": "k", "kind": "tile", "choices": [{}] * 50_000}
    space = {"key": "k", "name": "n", "version": "v", "knobs": [knob] * 10}
    task = {"key": "k", "name": "n", "op": "o", "target": "t", "flops": 1.0, "spaces": [space]}
    with pytest.raises(ValidationError) as e:
        wire.JobIn.model_validate({"name": "x", "trials": 1, "tasks": [task] * 10})
    assert e.value.error_count() < 10


def lists(schema: object) -> list[dict[str, object]]:
    """Every list within a model's schema."""
    inner = list(schema.values()) if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else []
    own = [schema] if isinstance(schema, dict) and schema.get("type") in ("list", "tuple") else []
    return own + [found for x in inner for found in lists(x)]


def test_every_list_of_the_protocol_ends_at_its_first_wrong_entry():
    models = [m for m in vars(wire).values() if isinstance(m, type) and issubclass(m, wire.Wire)]
    found = [x for m in models for x in lists(m.__pydantic_core_schema__)]
    assert len(models) > 20 and len(found) > 30 and all(x.get("fail_fast") for x in found)
