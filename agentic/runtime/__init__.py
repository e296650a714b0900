"""A worker at work: the only place where declarations, semantics and brokers meet."""

from agentic.runtime.runner import client, run_bounded, run_worker, session
from agentic.runtime.worker import Worker

__all__ = ["Worker", "client", "run_bounded", "run_worker", "session"]
