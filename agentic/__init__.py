"""agentic: stateful stream processing in Python. This is the list of its public names."""

from agentic.app import App
from agentic.core.breaker import Breaker
from agentic.core.retry import Fatal, Poison, Retry, Retryable, RetryLater
from agentic.errors import (
    AgenticError,
    AskFailed,
    AskTimeout,
    BrokerError,
    BrokerUnavailable,
    CodecError,
    ConfigurationError,
    CoPartitionError,
    NoAnswer,
)
from agentic.settings import Settings
from agentic.stream import BlockingStream, Event, Reply, Stream
from agentic.topic import Topic

__version__ = "0.1.0"

__all__ = [
    "AgenticError",
    "App",
    "AskFailed",
    "AskTimeout",
    "BlockingStream",
    "Breaker",
    "BrokerError",
    "BrokerUnavailable",
    "CoPartitionError",
    "CodecError",
    "ConfigurationError",
    "Event",
    "Fatal",
    "NoAnswer",
    "Poison",
    "Reply",
    "Retry",
    "RetryLater",
    "Retryable",
    "Settings",
    "Stream",
    "Topic",
    "__version__",
]
