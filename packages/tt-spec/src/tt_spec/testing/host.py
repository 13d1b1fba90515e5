"""The contract of what `tt` offers to commands."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tt_spec.roles import Measurer

__all__ = ["HostContract"]


class HostContract:
    """Subclass it and override `piece`. Lowers and measures one small operator, so it needs the compiler."""

    model = "op:matmul:16,16,16"

    @pytest.fixture
    def piece(self) -> Any:
        """A host."""
        raise NotImplementedError("override the fixture `piece`")

    def test_crosses_process_borders(self, piece: Any) -> None:
        assert type(pickle.loads(pickle.dumps(piece))) is type(piece), "a command's worker processes get it too"

    def test_prepares_a_model(self, piece: Any) -> None:
        ready = piece.prepare(self.model)
        assert ready.tasks and ready.model.name and piece.device(ready.target), "model, target and tasks"

    def test_resolves_and_assembles_a_recipe(self, piece: Any) -> None:
        recipe = piece.recipe("random", ["batch=8"])
        assert recipe.batch == 8 and recipe.describe()["name"] == "random"
        tasks = piece.prepare(self.model).tasks
        made = piece.assemble(recipe, tasks, None, trials=4, target=tasks[0].target)
        assert piece.assemble(recipe, tasks, None, trials=4, target=None).pipelines, "tt bench replays without a target"
        assert [p.task.key for p in made.pipelines] == [t.key for t in tasks], "a pipeline per task"
        assert made.scheduler is not None and made.stoppers, "a scheduler and the budget's stoppers"

    def test_gives_a_measurer(self, piece: Any) -> None:
        measurer = piece.measurer()
        assert isinstance(measurer, Measurer)
        measurer.close()

    def test_says_what_measurements_depend_on(self, piece: Any) -> None:
        assert piece.cores() >= 1
        assert {"python", "tvm"} <= set(piece.versions()), "versions of all that takes part"

    def test_is_interruptible(self, piece: Any) -> None:
        with piece.interruptible() as halt:
            assert halt() is None, "nobody pressed Ctrl-C"
