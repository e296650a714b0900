"""The embedded log, ``local://DIR``: durable, shared by the processes of one machine, kept in LMDB."""

from agentic.brokers.local.broker import LocalBroker

__all__ = ["LocalBroker"]
