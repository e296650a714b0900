"""The semantics, pure: no I/O, no asyncio, no wall clock, no broker."""
