"""What the pools and the windows of a worker say of themselves in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agentic.core.clock import NEVER
from agentic.core.stations import Station
from agentic.metrics import Metrics
from agentic.runtime.crew import Brakes
from agentic.runtime.operators import Operator
from agentic.runtime.pool import Pool
from agentic.runtime.task import Task
from agentic.runtime.window_numbers import LABELS
from agentic.settings import Settings

#: What the gauge ``breaker`` says of a circuit.
CIRCUIT = {"closed": 0.0, "half-open": 0.5, "open": 1.0}


def report_pools(metrics: Metrics, tasks: Iterable[Task], brakes: Mapping[str, Brakes]) -> None:
    """Bring the numbers of agents that work on many events at once up to date."""
    stations: Counter[tuple[object, ...]] = Counter()
    limits: Counter[tuple[object, ...]] = Counter()
    parked: Counter[tuple[object, ...]] = Counter()
    times: dict[tuple[object, ...], float] = {}
    holds: dict[tuple[object, ...], float] = {}
    for task in tasks:
        pools = [crew for crew in task.crews if isinstance(crew, Pool)]
        for pool in pools:
            agent = pool.agent.name
            for state, number in pool.stations.counts().items():
                stations[agent, state] += number
            limits[agent,] += pool.limit
            if pool.deferrals is not None:
                parked[agent, task.partition] += pool.deferrals.parked
        if pools and task.clock.now != NEVER:
            times[task.name,] = task.clock.now
        if (oldest := task.clock.oldest) is not None:
            holds[task.name, _holder(task, oldest.owner)] = oldest.at
    circuits: dict[tuple[object, ...], float] = {
        (agent,): CIRCUIT[each.circuit.state] for agent, each in brakes.items() if each.circuit is not None
    }
    metrics.keep("stations", ("agent", "state"), stations)
    metrics.keep("concurrency", ("agent",), limits)
    metrics.keep("parked", ("agent", "partition"), parked)
    metrics.keep("breaker", ("agent",), circuits)
    metrics.keep("stream_time", ("task",), times)
    metrics.keep("oldest_hold", ("task", "holder"), holds)


def report_windows(metrics: Metrics, tasks: Iterable[Task], settings: Settings) -> None:
    """Bring the numbers of windowed tables up to date."""
    windows: dict[tuple[object, ...], float] = {}
    ends: dict[tuple[object, ...], float] = {}
    left: dict[tuple[object, ...], float] = {}
    greatest: dict[tuple[object, ...], float] = {}
    mean: dict[tuple[object, ...], float] = {}
    rates: dict[tuple[object, ...], float] = {}
    for task in tasks:
        for table, operator in task.operators.items():
            place, numbers = (task.name, table.name), operator.numbers
            windows[place] = operator.ends.open_windows()
            if (end := operator.ends.next_due()) is not None and (behind := operator.behind()) is not None:
                ends[place] = end
                left[(*place, _awaited(task, operator, settings))] = behind
            if operator.finals:
                rates[numbers.labels] = numbers.rate.value()
            if (latency := numbers.latency()) is not None:
                greatest[numbers.labels], mean[numbers.labels] = latency
    metrics.keep("windows_open", ("task", "table"), windows)
    metrics.keep("oldest_window_end", ("task", "table"), ends)
    metrics.keep("oldest_window_left", ("task", "table", "holder"), left)
    metrics.keep("emit_final_latency_max", LABELS, greatest)
    metrics.keep("emit_final_latency_avg", LABELS, mean)
    metrics.keep("emit_final_records_rate", LABELS, rates)


def _awaited(task: Task, operator: Operator, settings: Settings) -> str:
    """Return what has to happen for the oldest open window of a table to be closed."""
    clock = operator.clock
    if clock is not None and clock.oldest is not None and clock.now < operator.time:
        return _holder(task, clock.oldest.owner)
    if any(source.buffer or not source.caught_up or source.ledger.unfinished for source in task.sources.values()):
        return "events that are still to be done"
    idle_after = settings.idle_after if operator.table.idle_after is None else operator.table.idle_after
    return "an event after it" if idle_after is None else "an event after it, or idle_after"


def _holder(task: Task, owner: object) -> str:
    """Return the name of what holds a task's clock."""
    for crew in task.crews:
        if not isinstance(crew, Pool):
            continue
        if owner is crew.deferrals:
            return f"an event that agent {crew.agent.name!r} has put off"
        if isinstance(owner, Station) and owner in crew.stations.live:
            event = owner.event
            where = f"{event.topic}-{event.partition}@{event.offset} key {event.key!r}"
            return f"{where}, agent {crew.agent.name!r}, {owner.state.value}"
    return str(owner)
