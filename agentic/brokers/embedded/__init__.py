"""What ``memory://`` and ``local://`` share: groups, consumers and producers over a store in reach.

A store gives short, atomic looks (`store.View`) and changes (`store.Change`); everything that
a broker promises beyond them is written here once, so that the test broker and the durable
one can't drift apart.
"""
