"""tt-search's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl
from tt_spec.ranges import Choice, Float, Integer, Range

_HANDED = {"choice": Float(1.0, 8.0, log=True), "random_share": Float(0.0, 0.3)}
_CHAINS: dict[str, Range] = {
    "chains": Integer(16, 512, log=True),
    "steps": Integer(20, 500, log=True),
    "temperature": Float(0.03, 3.0, log=True),
    "patience": Integer(5, 100, log=True),
}


@hookimpl
def tt_searchers() -> list[Entry]:
    return [
        Entry(
            "anneal",
            "tt_search.anneal:Anneal",
            "parallel simulated annealing",
            "AutoTVM, Chen 2018",
            ranges={**_CHAINS, **_HANDED},
        ),
        Entry(
            "contextual-anneal",
            "tt_search.contextual:ContextualAnneal",
            "simulated annealing that explores as much as the model doubts",
            "AdaTune, Li 2020",
            ranges={**_CHAINS, "probe": Integer(5, 100, log=True), "choice": _HANDED["choice"]},
        ),
        Entry(
            "descent",
            "tt_search.descent:Descent",
            "another searcher, and coordinate descent from its best row where it stalls",
            "Droplet, Canesche 2024",
            ranges={
                "first": Choice(("anneal", "evolve", "random")),
                "stall": Integer(8, 256, log=True),
                "p": Float(0.005, 0.2, log=True),
                "random_share": _HANDED["random_share"],
            },
        ),
        Entry(
            "evolve",
            "tt_search.evolve:Evolve",
            "evolutionary search from the best measured",
            "Ansor, Zheng 2020",
            ranges={
                "population": Integer(64, 2048, log=True),
                "generations": Integer(1, 10),
                "mutation": Float(0.3, 1.0),
                "measured_share": Float(0.0, 0.8),
                "small_steps": Float(0.0, 1.0),
                "selection": Choice(("proportional", "rank")),
                **_HANDED,
            },
        ),
        Entry(
            "ppo",
            "tt_search.ppo:PPO",
            "an agent learns which way to turn the knobs",
            "Chameleon, Ahn 2020",
            requires="tt-search[torch]",
            ranges={
                "episodes": Integer(16, 256, log=True),
                "step_size": Float(1e-4, 1e-2, log=True),
                "entropy": Float(0.01, 0.3, log=True),
                "clip": Float(0.1, 0.5),
                "elite": Float(0.0, 1.0),
                **_HANDED,
            },
        ),
    ]
