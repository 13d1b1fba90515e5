"""Recordings, replay, comparison and reports."""

from tt_bench.errors import BenchError
from tt_bench.oracle import OracleScheduler, OracleSearcher
from tt_bench.recording import Pace, Recorded, Recording
from tt_bench.replay import Replay

__all__ = ["BenchError", "OracleScheduler", "OracleSearcher", "Pace", "Recorded", "Recording", "Replay"]
