"""Tuning as a service: a server that thinks, agents that measure, and the commands of both."""
