"""Who owns which partition, and who would if its owner died: Kafka's `range` assignment, as values.

A group gives each of its members, in the order of their ranks, a contiguous run of a topic's
partitions. Whoever knows the ranks knows where a partition goes when its owner dies, and can
have a copy of what the next owner needs there in advance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def ranked(owned: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a group's members in the order of their ranks.

    Args:
        owned: the partitions of one topic that each member has, while none is on its way from one to
            another; of those without any in the order of the mapping.
    """
    return sorted(owned, key=lambda member: (not owned[member], min(owned[member], default=0)))


def owner(partition: int, partitions: int, members: Sequence[str]) -> str:
    """Return who owns one of a topic's `partitions` in a group with these members, in the order of their ranks."""
    each, over = divmod(partitions, len(members))
    if partition < over * (each + 1):
        return members[partition // (each + 1)]
    return members[over + (partition - over * (each + 1)) // each]


def heirs(partition: int, partitions: int, members: Sequence[str], number: int) -> list[str]:
    """Return who would own a partition if its owner died, then if that one died too, and so on.

    Args:
        members: in the order of their ranks.
        number: how many heirs are wanted; there are fewer where the group has no more members.
    """
    left = list(members)
    found: list[str] = []
    while left:
        found.append(owner(partition, partitions, left))
        if len(found) > number:
            break
        left.remove(found[-1])
    return found[1:]
