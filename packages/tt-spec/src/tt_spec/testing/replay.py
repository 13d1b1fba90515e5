"""The contract of replays."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tt_spec.errors import UserError
from tt_spec.roles import Played

__all__ = ["ReplayContract"]

_TRIALS = 24


class ReplayContract:
    """Subclass it and override `piece`, and `recordings` to have it play."""

    @pytest.fixture
    def piece(self) -> Any:
        """A replay."""
        raise NotImplementedError("override the fixture `piece`")

    @pytest.fixture
    def recordings(self) -> Sequence[Path]:
        """Files that it reads."""
        return ()

    @pytest.fixture
    def host(self) -> Any:
        """The runner, for a replay that needs one."""
        return None

    def test_playables_are_distinct_and_travel_to_other_processes(self, piece: Any, recordings: Sequence[Path]) -> None:
        pickle.dumps(piece)
        found = piece.playables(list(recordings))
        assert bool(found) == bool(recordings), "recordings hold something to play, and no files nothing"
        assert pickle.loads(pickle.dumps(found)) == found
        assert len({(p.path, p.place) for p in found}) == len(found), "each is listed once"
        for p in found:
            assert p.rows > 1 and p.trial_s > 0 and p.digest, f"{p.name}: rows, their cost and a digest must be known"

    def test_a_play_is_a_curve(self, piece: Any, recordings: Sequence[Path], host: Any) -> None:
        for p in piece.playables(list(recordings))[:1]:
            played = piece.play(host, p, "random", 0, trials=_TRIALS)
            assert isinstance(played, Played) and 0 < len(played.t) == len(played.quality) <= _TRIALS
            assert all(math.isfinite(t) and t >= 0 for t in played.t) and list(played.t) == sorted(played.t)
            assert all(0 <= q <= 1 for q in played.quality), "quality is best known / latency"

    def test_the_same_seed_draws_the_same_rows(self, piece: Any, recordings: Sequence[Path], host: Any) -> None:
        for p in piece.playables(list(recordings))[:1]:
            one, two, other = (piece.play(host, p, "random", s, trials=_TRIALS).quality for s in (3, 3, 4))
            assert one == two, "one seed, one run"
            assert one != other, "another seed, another run"

    def test_a_play_ends_at_its_goal(self, piece: Any, recordings: Sequence[Path], host: Any) -> None:
        for p in piece.playables(list(recordings))[:1]:
            whole = piece.play(host, p, "random", 0, trials=_TRIALS).quality
            goal = whole[_TRIALS // 2 - 1]
            part = piece.play(host, p, "random", 0, trials=_TRIALS, goal=goal).quality
            assert part == whole[: len(part)], "an end in sight changes no row"
            assert part[-1] >= goal, "it may end once the goal is held, not before"

    def test_a_file_that_is_not_there_is_named_in_one_line(self, piece: Any) -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.raises(UserError) as caught:
            piece.playables([Path(folder) / "gone.json"])
        assert "gone.json" in str(caught.value) and "\n" not in str(caught.value)
