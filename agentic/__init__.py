"""agentic: stateful stream processing in Python. This is the list of its public names."""

__version__ = "0.1.0"
