"""Formats of tables, for people's own programs: one row per record, tasks and runs in files beside."""
