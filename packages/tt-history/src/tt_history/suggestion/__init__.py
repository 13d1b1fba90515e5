"""Suggestions: which recipe past runs and replays speak for, and whether held-out tasks agree."""
