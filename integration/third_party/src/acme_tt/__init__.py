"""Pieces for tt: a hill climber, a nearest-neighbour cost model, a CSV log."""
