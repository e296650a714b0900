"""What the pools of a worker say of themselves in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agentic.core.clock import NEVER
from agentic.metrics import Metrics
from agentic.runtime.crew import Brakes
from agentic.runtime.pool import Pool
from agentic.runtime.task import Task

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
            holds[task.name, str(oldest.owner)] = oldest.at
    circuits: dict[tuple[object, ...], float] = {
        (agent,): CIRCUIT[each.circuit.state] for agent, each in brakes.items() if each.circuit is not None
    }
    metrics.keep("stations", ("agent", "state"), stations)
    metrics.keep("concurrency", ("agent",), limits)
    metrics.keep("parked", ("agent", "partition"), parked)
    metrics.keep("breaker", ("agent",), circuits)
    metrics.keep("stream_time", ("task",), times)
    metrics.keep("oldest_hold", ("task", "holder"), holds)
