"""What a target, a model and TVM's workers are to a run that `tt_spec.assembly` puts together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tt_spec import Task
from tt_spec.past import Past
from tt_spec.recipe import Recipe
from tt_spec.roles import MeasurerOptions, Service
from tt_spec.serial import JsonObject

from tt_core.compiler.peak import peak_flops
from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import device_fingerprint, runnable
from tt_core.compiler.target import resolve as resolve_target
from tt_core.errors import TargetError
from tt_core.prepared import Prepared, prepare
from tt_core.request import Request
from tt_core.stages import Stages

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["BACKEND", "check_target", "peak_of", "place_of", "prepared", "workers"]

BACKEND = "tt_core.compiler.lean:worker_backend"


def check_target(target: str | JsonObject | Target) -> Target:
    """The TVM target, if this machine can run it."""
    with quiet():
        resolved = resolve_target(target)
    if (why := runnable(resolved)) is not None:
        raise TargetError(f"{why}: tune on a machine that has it; tt tasks --target shows what there is to tune")
    return resolved


def place_of(
    request: Request, service: Service | None, stages: Stages, halt: Callable[[], str | None]
) -> tuple[Target, str | None]:
    """The target, and the device of the service's agents where they alone can run it, or are asked for by name; None
    where this machine measures, or could. Waiting for such an agent does not count among the minutes."""
    if service is None or request.agent:
        try:
            return check_target(request.target), None
        except TargetError as e:
            if service is None:
                raise
            raise TargetError(f"{e}; --no-agent leaves measuring to the server's agents") from e
    with quiet():
        target = resolve_target(request.target)
    here = request.device is None and runnable(target) is None
    with stages.waiting():
        device = service.place(str(target), device_fingerprint(target) if here else None, halt, stages.say)
    return target, None if here else device


def peak_of(target: Target) -> Callable[[], float] | None:
    """A measurement of the target's peak, FLOP/s; None where it is no CPU."""
    return partial(peak_flops, target) if target.kind.name == "llvm" else None


def prepared(request: Request, recipe: Recipe, target: Target, past: Past, service: Service | None = None) -> Prepared:
    """The request's model, lowered for the target, with the tasks that it chooses; `past` is what is known of them, and
    `service` the one that is to search: its history, too, may know another operator by a key."""

    def recall(key: str) -> list[Task]:
        here = past.recall(key)
        return [*([here] if here is not None else []), *(service.recall(key) if service is not None else ())]

    return prepare(
        request.model,
        target=target,
        shapes=request.shapes,
        fix=request.fix,
        precision=request.precision,
        tasks=request.tasks,
        skip=request.skip,
        only_heavy=request.only_heavy,
        best=past.best_s,
        recall=recall,
        space=recipe.space,
        plugins=recipe.plugins,
        untrusted=request.untrusted,
    )


def workers(recipe: Recipe, threads: int) -> MeasurerOptions:
    """The options of a recipe's measurer here: workers that hold TVM, for programs of so many threads."""
    return MeasurerOptions(BACKEND, threads, recipe.build("evaluator"))
