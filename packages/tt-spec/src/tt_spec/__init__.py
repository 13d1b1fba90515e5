"""The vocabulary of tt: types, roles, hooks, ask/tell pipeline, loop and clock."""

from tt_spec.clock import Clock, VirtualClock, WallClock
from tt_spec.errors import FormatError, PieceError, PieceFailure, PluginError, StoreError, UserError, summary
from tt_spec.exchange import Content, Item, LeftOut
from tt_spec.faults import blame
from tt_spec.guidance import Guidance
from tt_spec.hooks import Entry, hookimpl
from tt_spec.loop import Loop, Outcome, rows_left
from tt_spec.operators import OPERATOR_FEATURES, operator_features
from tt_spec.pipeline import Pipeline
from tt_spec.plugins import Plugins, nearest
from tt_spec.ranges import Choice, Float, Integer, Range
from tt_spec.rng import draw, rng_for
from tt_spec.roles import Listener, Realised, RunInfo, RunState
from tt_spec.serial import from_json, to_json
from tt_spec.space import Knob, Limit, Space, token, tokens
from tt_spec.types import (
    ERRORS,
    IMPORT,
    Bar,
    Batch,
    Context,
    Foreign,
    Group,
    Measurement,
    Noise,
    Prediction,
    Proposal,
    RunRecord,
    Selection,
    Slot,
    Statements,
    Task,
    TaskState,
    Timing,
    Trial,
    concat_statements,
    labels,
)
from tt_spec.windows import Reference, Seen, Windows

__all__ = [
    "ERRORS",
    "IMPORT",
    "OPERATOR_FEATURES",
    "Bar",
    "Batch",
    "Choice",
    "Clock",
    "Content",
    "Context",
    "Entry",
    "Float",
    "Foreign",
    "FormatError",
    "Group",
    "Guidance",
    "Integer",
    "Item",
    "Knob",
    "LeftOut",
    "Limit",
    "Listener",
    "Loop",
    "Measurement",
    "Noise",
    "Outcome",
    "PieceError",
    "PieceFailure",
    "Pipeline",
    "PluginError",
    "Plugins",
    "Prediction",
    "Proposal",
    "Range",
    "Realised",
    "Reference",
    "RunInfo",
    "RunRecord",
    "RunState",
    "Seen",
    "Selection",
    "Slot",
    "Space",
    "Statements",
    "StoreError",
    "Task",
    "TaskState",
    "Timing",
    "Trial",
    "UserError",
    "VirtualClock",
    "WallClock",
    "Windows",
    "blame",
    "concat_statements",
    "draw",
    "from_json",
    "hookimpl",
    "labels",
    "nearest",
    "operator_features",
    "rng_for",
    "rows_left",
    "summary",
    "to_json",
    "token",
    "tokens",
]
