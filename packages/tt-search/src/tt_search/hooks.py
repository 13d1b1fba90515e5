"""tt-search's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_searchers() -> list[Entry]:
    return [
        Entry("anneal", "tt_search.anneal:Anneal", "parallel simulated annealing", "AutoTVM, Chen 2018"),
        Entry(
            "contextual-anneal",
            "tt_search.contextual:ContextualAnneal",
            "simulated annealing that explores as much as the model doubts",
            "AdaTune, Li 2020",
        ),
        Entry(
            "descent",
            "tt_search.descent:Descent",
            "another searcher, and coordinate descent from its best row where it stalls",
            "Droplet, Canesche 2024",
        ),
        Entry("evolve", "tt_search.evolve:Evolve", "evolutionary search from the best measured", "Ansor, Zheng 2020"),
        Entry(
            "ppo",
            "tt_search.ppo:PPO",
            "an agent learns which way to turn the knobs",
            "Chameleon, Ahn 2020",
            requires="tt-search[torch]",
        ),
    ]
