"""What `tt agent` measures with: this machine, by the doors that tt opens to commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tt_spec import Plugins
from tt_spec.errors import OptionError
from tt_spec.roles import Host, Measurer

__all__ = ["HostBench"]


class HostBench:
    """This machine.

    Args:
        host: The value of `typer.Context.obj`.
        target: What programs are built for; it must run here.
        measurer: Name of the measurer.
    """

    def __init__(self, host: Host, target: str = "native", measurer: str = "local") -> None:
        place = host.place(target)
        self.device, self.versions, self.threads = place.device, dict(place.versions), place.threads
        self.targets: Sequence[str] = (place.target,)
        self._plugins, self._host, self._name = Plugins(), host, measurer
        self.evaluators: Sequence[str] = tuple(self._plugins.names("evaluator"))
        if measurer not in self._plugins.names("measurer"):
            known = ", ".join(self._plugins.names("measurer"))
            raise OptionError(f"no measurer is called {measurer!r} (known: {known})")
        self._made: tuple[Any, Measurer] | None = None

    def measurer(self, evaluator: str, options: dict[str, Any]) -> Measurer:
        """The measurer with this evaluator; another one ends the one before."""
        asked = evaluator, options
        if self._made is None or self._made[0] != asked:
            self.close()
            piece = self._plugins.build("evaluator", evaluator, **options)
            if self._name == "local":
                made = self._host.measurer(piece, self.threads)
            else:
                made = self._plugins.build("measurer", self._name, evaluator=piece, threads=self.threads)
            self._made = asked, made
        return self._made[1]

    def close(self) -> None:
        """End the measurer."""
        if self._made is not None:
            self._made[1].close()
            self._made = None
