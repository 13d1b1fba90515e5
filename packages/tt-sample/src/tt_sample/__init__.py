"""Samplers: pieces that pick which proposed configurations to measure."""

from tt_sample.adaptive import Adaptive
from tt_sample.diverse import Diverse
from tt_sample.kmeans import KMeans
from tt_sample.per_second import PerSecond
from tt_sample.synthesis import synthesise

__all__ = ["Adaptive", "Diverse", "KMeans", "PerSecond", "synthesise"]
