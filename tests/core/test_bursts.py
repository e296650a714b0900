"""Names in order, a burst at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core import bursts
from agentic.core.bursts import Order, in_order


def backwards(name: bytes) -> bytes:
    return name[::-1]


@settings(deadline=None)
@given(
    names=st.sets(st.binary(max_size=3), max_size=120).flatmap(lambda names: st.permutations(sorted(names))),
    piece=st.integers(4, 40),
    burst=st.integers(1, 20),
    order=st.sampled_from([None, backwards]),
)
def test_names_come_in_order_and_no_burst_is_larger_than_it_may_be(
    names: list[bytes], piece: int, burst: int, order: Order
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bursts, "PIECE", piece)
        patch.setattr(bursts, "CUTS", 4)
        patch.setattr(bursts, "BURST", burst)
        found = list(in_order(list(names), order))
    assert [name for some in found if some for name in some] == sorted(names, key=order)
    assert all(1 <= len(some) <= burst for some in found if some is not None)


@pytest.mark.parametrize("shuffled", [False, True])
def test_what_is_put_in_order_at_once_is_not_much_more_than_a_piece(shuffled: bool) -> None:
    many = 400_000
    names = [b"%06d" % (n * 7_919 % many if shuffled else n) for n in range(many)]
    at_once = [0]
    for some in in_order(names, None):
        if some is None:
            at_once.append(0)
        else:
            at_once[-1] += len(some)
    assert sum(at_once) == many
    assert max(at_once) <= 2 * bursts.PIECE
