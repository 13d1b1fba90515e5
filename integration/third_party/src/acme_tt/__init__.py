"""Pieces for tt: a hill climber, a nearest-neighbour cost model, a measurer, a history of JSON lines, a CSV log."""
