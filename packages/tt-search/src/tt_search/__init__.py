"""Searchers: pieces that propose configurations by asking the cost model, never the machine."""

from tt_search.anneal import Anneal
from tt_search.contextual import ContextualAnneal
from tt_search.descent import Descent
from tt_search.evolve import Evolve
from tt_search.ppo import PPO

__all__ = ["PPO", "Anneal", "ContextualAnneal", "Descent", "Evolve"]
