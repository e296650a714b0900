"""A worker at work: the only place where declarations, semantics and brokers meet."""

from agentic.runtime.runner import run_bounded, run_worker, session
from agentic.runtime.worker import Worker

__all__ = ["Worker", "run_bounded", "run_worker", "session"]
