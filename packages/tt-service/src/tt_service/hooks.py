"""tt-service's pieces."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_services() -> list[Entry]:
    return [
        Entry(
            "http",
            "tt_service.client:HttpService",
            "a tt server that thinks while this machine measures",
            "Chen et al. 2024, adaptive workflow, section IV",
        )
    ]


@hookimpl
def tt_commands() -> list[Entry]:
    return [
        Entry("serve", lambda: _command("serve"), "Think for others: serve jobs to agents and clients"),
        Entry("agent", lambda: _command("agent"), "Measure here what a server asks for"),
        Entry("jobs list", lambda: _job("list"), "List your jobs on a server"),
        Entry("jobs show", lambda: _job("show"), "Show a job: its tasks, the best of each, who works on it"),
        Entry("jobs attach", lambda: _job("attach"), "Go on with a job and follow it to its end"),
        Entry("jobs pause", lambda: _job("pause"), "Pause a job; what is being measured still counts"),
        Entry("jobs resume", lambda: _job("resume"), "Let a paused job go on"),
        Entry("jobs cancel", lambda: _job("cancel"), "End a job; its rows stay"),
        Entry("key add", lambda: _key("add"), "Make a key for a server and print it once"),
        Entry("key list", lambda: _key("list"), "List a server's keys, without what is secret"),
        Entry("key revoke", lambda: _key("revoke"), "Revoke a key; it is refused within a second"),
    ]


def _command(name: str) -> Any:
    return getattr(import_module("tt_service.commands"), name)


def _job(name: str) -> Any:
    return import_module("tt_service.commands").JOBS[name]


def _key(name: str) -> Any:
    return import_module("tt_service.key_commands").COMMANDS[name]
