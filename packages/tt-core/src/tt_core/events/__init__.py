"""A run's events: written as JSON lines by `log`, read back and told again by `retell`.

Stands beside the other rooms: imports only `tt_core.errors`; may be imported by the runner and by `cli`.
"""
