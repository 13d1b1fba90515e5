"""A design space without tt-space, and the plug-ins that bring it and what tt-core has itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tt_core.hooks
import tvm
from tt_spec import Entry, Knob, Plugins, Space, hookimpl

__all__ = ["CORE", "FakePrograms", "with_space"]

CORE = Plugins(installed=False, extra=[("tt-core", tt_core.hooks)])


class FakePrograms:
    """A space of one knob whose programs are all the unscheduled one."""

    space = Space((Knob("variant", "choice", (0, 1)),), name="fake")

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod

    def apply(self, row: np.ndarray) -> tvm.s_tir.Schedule:
        return tvm.s_tir.Schedule(self.mod)

    def repack(self, row: np.ndarray) -> None:
        """None: the programs take the workload's constants as they are."""


def with_space(programs: Callable[[tvm.IRModule], FakePrograms] = FakePrograms) -> Plugins:
    """tt-core's own pieces, and these programs as the space "fake"."""

    class FakeSpace:
        def legalizers(self, target: object) -> dict[str, object]:
            return {}

        def open(self, mod: tvm.IRModule, target: object) -> FakePrograms:
            return programs(mod)

    class Hooks:
        @hookimpl
        def tt_spaces(self) -> list[Entry]:
            return [Entry("fake", FakeSpace)]

    return Plugins(installed=False, extra=[("tt-core", tt_core.hooks), ("fake", Hooks())])
