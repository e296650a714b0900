"""The embedded log, ``local://DIR``: durable, shared by the processes of one machine, kept in LMDB.

What a newcomer to it should know: `layout` says what stands in the file, `environment` how it
is opened, grown and synced, `store` how it is read and changed, `housekeeping` what is removed;
groups, consumers and producers are `agentic.brokers.embedded`, shared with ``memory://``.

Limits, by design: one machine and a local file system, as LMDB works through shared memory;
one writer at a time, for about a millisecond each, so a process that is *frozen* (SIGSTOP, a
debugger) in the middle of a write keeps the others from writing until it goes on or is killed.
A process that dies there keeps nobody.
"""

from agentic.brokers.local.broker import LocalBroker

__all__ = ["LocalBroker"]
