"""What travels in a commit's metadata comes back as it was, and always fits."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.core.ledger import MAX_SPAN, MAX_UNFINISHED
from agentic.core.metadata import MAX_LENGTH, Progress, decode, encode, shared

#: A bitmap of this span always fits, however many are unfinished.
ALWAYS_FITS_SPAN = 24_000
TIMES = st.none() | st.integers(0, 2**53)


@st.composite
def progresses(draw: st.DrawFn) -> tuple[int, Progress]:
    base = draw(st.integers(0, 2**40))
    span = draw(st.integers(0, 400))
    unfinished = draw(st.sets(st.integers(base, base + span - 1), max_size=60)) if span else set()
    return base, Progress(draw(TIMES), tuple(sorted(unfinished)), base + span)


@given(progresses())
def test_encoded_progress_is_decoded_as_it_was(case: tuple[int, Progress]) -> None:
    base, progress = case
    assert decode(base, encode(base, progress)) == progress


def finished(progress: Progress, base: int, end: int) -> set[int]:
    return set(range(base, min(progress.known_to, end))) - set(progress.unfinished)


@st.composite
def several(draw: st.DrawFn) -> tuple[int, dict[str, Progress]]:
    base = draw(st.integers(0, 2**40))
    found = {}
    for name in draw(st.lists(st.text(max_size=5), min_size=2, max_size=5, unique=True)):
        # The last one that is known is a finished one, as with a ledger.
        span = draw(st.integers(0, 30))
        unfinished = draw(st.sets(st.integers(base, base + span - 2))) if span > 1 else set()
        found[name] = Progress(draw(st.integers(0, 2**53)), tuple(sorted(unfinished)), base + span)
    return base, found


@given(several())
def test_each_of_several_readers_gets_its_own_progress_and_a_stranger_what_all_have_finished(
    case: tuple[int, dict[str, Progress]],
) -> None:
    base, readers = case
    text = encode(base, shared(readers.values()), readers)
    for name, progress in readers.items():
        read = decode(base, text, name)
        assert finished(read, base, base + 40) == finished(progress, base, base + 40)
        assert read.stream_time == progress.stream_time
    stranger = decode(base, text, "a stranger")
    all_have = [finished(progress, base, base + 40) for progress in readers.values()]
    assert finished(stranger, base, base + 40) == set.intersection(*all_have)
    assert stranger.stream_time == min(progress.stream_time or 0 for progress in readers.values())


@given(progresses(), st.text())
def test_what_a_single_reader_wrote_holds_for_every_name(case: tuple[int, Progress], name: str) -> None:
    base, progress = case
    assert decode(base, encode(base, progress), name) == progress


@given(several(), st.data())
def test_truncated_metadata_of_several_readers_says_nothing_of_any_or_all_of_some(
    case: tuple[int, dict[str, Progress]], data: st.DataObject
) -> None:
    base, readers = case
    raw = base64.b64decode(encode(base, shared(readers.values()), readers))
    cut = base64.b64encode(raw[: data.draw(st.integers(0, len(raw) - 1))]).decode()
    for name, progress in readers.items():
        assert finished(decode(base, cut, name), base, base + 40) <= finished(progress, base, base + 40)


def test_many_unfinished_before_a_finished_one_are_read_back() -> None:
    progress = Progress(None, tuple(range(100_000)), 100_001)
    assert decode(0, encode(0, progress)) == progress


def test_a_damaged_string_claims_no_more_than_memory_holds() -> None:
    huge = b"\xa6\x01" + b"\x02\x0a" + b"\xff" * 8 + b"\x7f\x01"
    assert decode(7, base64.b64encode(huge).decode()) == Progress(None, (), 7)


FOREIGN = st.text(max_size=60).filter(lambda text: not text.startswith("pgE")) | st.binary(max_size=60).filter(
    lambda data: not data.startswith(b"\xa6\x01")
).map(lambda data: base64.b64encode(data).decode())


@given(FOREIGN)
def test_foreign_metadata_says_nothing_of_offsets(text: str) -> None:
    progress = decode(7, text)
    assert (progress.unfinished, progress.known_to) == ((), 7)


@given(progresses(), st.data())
def test_truncated_metadata_never_claims_what_was_not_written(case: tuple[int, Progress], data: st.DataObject) -> None:
    base, progress = case
    raw = base64.b64decode(encode(base, progress))
    cut = base64.b64encode(raw[: data.draw(st.integers(0, max(0, len(raw) - 1)))]).decode()
    read = decode(base, cut)
    assert read.known_to in (base, progress.known_to)
    assert read.unfinished == (progress.unfinished if read.known_to != base else ())


def test_kafka_streams_metadata_gives_its_partition_time_and_no_ledger() -> None:
    text = base64.b64encode(b"\x02" + (1234).to_bytes(8, "big") + b"\x00\x00\x00\x00").decode()
    assert decode(5, text) == Progress(1234, (), 5)


def test_kafka_streams_metadata_without_a_time_gives_none() -> None:
    text = base64.b64encode(b"\x01" + (-1).to_bytes(8, "big", signed=True)).decode()
    assert decode(5, text) == Progress(None, (), 5)


@pytest.mark.parametrize("seed", range(20))
def test_five_hundred_unfinished_fit_wherever_they_lie(seed: int) -> None:
    draw = random.Random(seed)
    base = draw.randrange(2**40)
    span = draw.choice([1_000, ALWAYS_FITS_SPAN, 100_000, MAX_SPAN])
    unfinished = tuple(sorted({base, *(base + draw.randrange(span) for _ in range(MAX_UNFINISHED - 1))}))
    text = encode(base, Progress(2**53, unfinished, base + span))
    assert len(text) <= MAX_LENGTH
    assert decode(base, text).unfinished == unfinished


def test_every_second_offset_unfinished_fits_within_the_span_of_a_bitmap() -> None:
    unfinished = tuple(range(0, ALWAYS_FITS_SPAN, 2))
    assert len(encode(0, Progress(2**53, unfinished, ALWAYS_FITS_SPAN))) <= MAX_LENGTH


def test_more_than_fits_is_an_error_and_never_cut() -> None:
    with pytest.raises(ValueError, match="a broker takes 4095"):
        encode(0, Progress(None, tuple(range(0, 60_000, 2)), 60_000))


def test_nothing_to_say_is_the_empty_string() -> None:
    assert encode(9, Progress(None, (), 9)) == ""
