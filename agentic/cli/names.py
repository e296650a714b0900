"""The names of our commands: none of them is left for an app's own."""

from __future__ import annotations

#: Our commands with the first line of their help, so that ``agentic --help`` imports none of them.
COMMANDS = {
    "worker": "Run the app until a signal stops it.",
    "run": "Run the app until its input is used up.",
    "new": "Start a project from a template.",
    "send": "Send one record, or the lines of a file.",
    "tail": "Show a topic's records.",
    "topics": "List, describe, create and delete topics.",
    "tables": "Look into tables; dump and load them.",
    "why": "Say what the open windows of TABLE wait for, task by task.",
    "dead-letters": "Look into dead letter topics; send records back.",
    "deferred": "Show the events that agents have put off.",
    "groups": "List, describe, set and delete consumer groups.",
    "reset": "Delete all that the app remembers.",
    "doctor": "Check settings, versions, broker and topics.",
}


def module_of(name: str) -> str:
    """Return how the module of a command is called, and the command in it."""
    return name.replace("-", "_")
