"""`tt doctor`: whether this machine can tune and how well it can time.

`checks` judges plain facts and gathers those that need no TVM; `probe` is the process of its own that loads it. Imports
the runner and everything below; may be imported by `cli`.
"""
