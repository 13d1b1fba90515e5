"""The command `tt`: `app` holds the commands, `history` those of `tt history`, `tables` and `progress` what they print.

Imports every other room; nothing imports it.
"""
