"""Where a group's partitions are, and where they go when members die."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentic.core.placement import heirs, owner, ranked

MEMBERS = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)
PARTITIONS = st.integers(1, 12)


def shares(partitions: int, members: list[str]) -> dict[str, list[int]]:
    """What each member gets, counted out one run after the other."""
    found: dict[str, list[int]] = {}
    left = list(range(partitions))
    for i, member in enumerate(members):
        size = -(-len(left) // (len(members) - i))
        found[member], left = left[:size], left[size:]
    return found


@given(MEMBERS, PARTITIONS)
def test_members_own_contiguous_runs_the_first_ones_the_longer(members: list[str], partitions: int) -> None:
    expected = shares(partitions, members)
    assert all(owner(n, partitions, members) == member for member in members for n in expected[member])


@given(MEMBERS, PARTITIONS, st.integers(0, 3))
def test_an_heir_is_who_owns_the_partition_when_those_before_it_are_gone(
    members: list[str], partitions: int, number: int
) -> None:
    for partition in range(partitions):
        found = heirs(partition, partitions, members, number)
        assert len(found) == min(number, len(members) - 1)
        left = list(members)
        for heir in found:
            left.remove(owner(partition, partitions, left))
            assert heir == owner(partition, partitions, left)


@given(MEMBERS, PARTITIONS)
def test_ranks_show_in_what_is_owned(members: list[str], partitions: int) -> None:
    owned = shares(partitions, members)
    idle = [member for member in members if not owned[member]]
    by_name = {member: owned[member] for member in sorted(members) if owned[member]}
    assert ranked({**by_name, **{member: [] for member in idle}}) == members
