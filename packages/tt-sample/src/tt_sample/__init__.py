"""Samplers: pieces that pick which proposed configurations to measure."""

from tt_sample.diverse import Diverse

__all__ = ["Diverse"]
