"""Testing an app without a broker: see `TestDriver`."""

from agentic.testing.driver import Output, TestDriver

__all__ = ["Output", "TestDriver"]
