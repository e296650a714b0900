"""A plain registry of numbers: counters, gauges and latencies, by name and labels.

Nothing here knows who reads it. The hot path holds on to the objects and adds to them once
a batch; a reader (the worker's summary line, an exporter, a test) takes a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeVar

#: A latency keeps its last so many observations: enough for a steady 99th percentile, 8 KiB.
RECENT = 1_000

Labels = tuple[tuple[str, str], ...]


class Metric:
    """One number with a name and labels."""

    kind: ClassVar[str]
    __slots__ = ("labels", "name")

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.labels = labels


class Counter(Metric):
    """A total that only rises."""

    kind = "counter"
    __slots__ = ("value",)

    def __init__(self, name: str, labels: Labels) -> None:
        super().__init__(name, labels)
        self.value = 0

    def add(self, n: int = 1) -> None:
        """Add `n`, at least 0."""
        self.value += n


class Gauge(Metric):
    """A number as it stands; None while it is not known."""

    kind = "gauge"
    __slots__ = ("value",)

    def __init__(self, name: str, labels: Labels) -> None:
        super().__init__(name, labels)
        self.value: float | None = None

    def set(self, value: float | None) -> None:
        self.value = value


class Latency(Metric):
    """Durations in seconds: how many, their sum, and quantiles of the last `RECENT`."""

    kind = "latency"
    __slots__ = ("_recent", "count", "sum")

    def __init__(self, name: str, labels: Labels) -> None:
        super().__init__(name, labels)
        self.count = 0
        self.sum = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.sum += seconds
        self._recent.append(seconds)

    def quantile(self, q: float) -> float | None:
        """Return the `q` quantile (0 to 1, nearest rank) of the recent durations, None without any."""
        if not self._recent:
            return None
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


M = TypeVar("M", bound=Metric)


def _labels(given: Mapping[str, object]) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in given.items()))


class Metrics:
    """The numbers of one app.

    The names that a worker keeps:

    ========================  =======  ==================================================
    name                      kind     what, and its labels
    ========================  =======  ==================================================
    ``events_in``             counter  events taken from the broker (topic, partition)
    ``events_done``           counter  events completed (agent)
    ``events_out``            counter  records sent (agent, empty outside of agents)
    ``dropped``               counter  events given up by rule (reason)
    ``lag``                   gauge    records between commit position and end (topic, partition)
    ``in_flight``             gauge    events taken from the broker and not completed
    ``commit_seconds``        latency  a whole checkpoint
    ``commits``               counter  checkpoints
    ``rebalances``            counter  times that partitions came or went
    ``table_rows``            gauge    rows as of the last checkpoint (table, partition)
    ``restored``              counter  records read from changelogs, and into global tables (table)
    ``restore_left``          gauge    offsets still to be read until a table is complete, while one
                                       of its partitions is not (table, partition)
    ``restore_total``         gauge    offsets to be read in all, likewise (table, partition)
    ``standby_lag``           gauge    offsets that a standby is behind its changelog (topic, partition)
    ``commit_base``           gauge    the position that a commit would have now (topic, partition)
    ``commit_span``           gauge    offsets from there to where the reading goes on, likewise
    ``commit_bytes``          gauge    length of the metadata of the last commit, likewise
    ``oldest_unfinished``     gauge    seconds for which a position has waited for an event (topic,
                                       partition, and of the event offset, key, agent, state)
    ``skipped_again``         gauge    events that came again and were done before (topic, partition)
    ``stations``              gauge    events in flight of a concurrent agent (agent, state)
    ``concurrency``           gauge    how many may be worked on at once, by now (agent)
    ``retries``               counter  attempts that failed and are made again (agent)
    ``dead_letters``          counter  events sent to a dead letter topic (agent)
    ``deferred``              counter  events that were put off (agent)
    ``parked``                gauge    events that are put off, or wait behind one (agent, partition)
    ``breaker``               gauge    0 closed, 0.5 half-open, 1 open (agent)
    ``stream_time``           gauge    a task's stream time in ms, with concurrent agents (task)
    ``oldest_hold``           gauge    what holds it back, in ms (task, holder)
    ``redone``                counter  events done again since what they read was written meanwhile (agent)
    ``windows_open``          gauge    windows that are not closed yet (task, table)
    ``windows_late``          counter  values that came too late, once for each window (table)
    ``oldest_window_end``     gauge    the least end of an open window, in ms (task, table)
    ``oldest_window_left``    gauge    ms of stream time until it is closed, and what that waits for
                                       (task, table, holder)
    ========================  =======  ==================================================

    And those of KIP-825 of final results; they have the labels worker, task and table:

    ============================  =======  ==============================================
    name                          kind     what
    ============================  =======  ==============================================
    ``emit_final_records_total``  counter  windows given out by ``emit_final()``
    ``emit_final_records_rate``   gauge    the same a second, over the last 30 s
    ``emit_final_latency_max``    gauge    the longest that it took to give out closed windows, in
                                           seconds (Kafka: ms), of the last 1,000 lots of up to 500
    ``emit_final_latency_avg``    gauge    the mean of it
    ============================  =======  ==============================================
    """

    def __init__(self) -> None:
        self._metrics: dict[tuple[str, Labels], Metric] = {}
        #: Called before each reading, so that the running worker brings its numbers up to date.
        self.collector: Callable[[], None] | None = None

    def counter(self, name: str, **labels: object) -> Counter:
        """Return the counter of this name and these labels, the same object each time."""
        return self._get(Counter, name, labels)

    def gauge(self, name: str, **labels: object) -> Gauge:
        """Return the gauge of this name and these labels, the same object each time."""
        return self._get(Gauge, name, labels)

    def latency(self, name: str, **labels: object) -> Latency:
        """Return the latency of this name and these labels, the same object each time."""
        return self._get(Latency, name, labels)

    def _get(self, kind: type[M], name: str, labels: dict[str, object]) -> M:
        key = (name, _labels(labels))
        metric = self._metrics.get(key)
        if metric is None:
            metric = self._metrics[key] = kind(*key)
        if not isinstance(metric, kind):
            raise TypeError(f"metric {name!r} is a {metric.kind}, not a {kind.kind}")
        return metric

    def remove(self, name: str, **labels: object) -> None:
        """Forget a metric: a partition that went to another worker has no lag here."""
        self._metrics.pop((name, _labels(labels)), None)

    def keep(self, name: str, labels: tuple[str, ...], values: Mapping[tuple[object, ...], float]) -> None:
        """Set the gauges of this name, by the values of these labels, and forget those that are not among them."""
        kept = {_labels(dict(zip(labels, key))): value for key, value in values.items()}
        for key in [key for key in self._metrics if key[0] == name and key[1] not in kept]:
            del self._metrics[key]
        for each, value in kept.items():
            self.gauge(name, **dict(each)).set(value)

    def total(self, name: str, *, fresh: bool = True, **labels: object) -> float:
        """Return the sum over all counters and gauges of this name that carry these labels.

        Args:
            fresh: let the worker bring its numbers up to date first; some are right at any time.
        """
        wanted = {(k, str(v)) for k, v in labels.items()}
        return sum(
            metric.value or 0
            for metric in (self if fresh else list(self._metrics.values()))
            if metric.name == name and isinstance(metric, Counter | Gauge) and wanted <= set(metric.labels)
        )

    def __iter__(self) -> Iterator[Metric]:
        if self.collector is not None:
            self.collector()
        return iter(list(self._metrics.values()))
