"""PROJECT: which flights out of New York left late, which so late that someone should know, and how all of it goes.

    departures ──(15 min or more, with the airline's name)──▶ late ──(2 h or more)──▶ alerts
        ├──(by carrier)──▶ carriers, a table: departures and mean delay of each
        └──(by airport and hour)──▶ hours, a table with windows ──(each hour once, when it is closed)──▶ hourly
                                      └──(departures that came when their hour was closed)──▶ missed

The log is embedded and lies in .agentic/. Outputs, tables and positions are committed together
(exactly_once): however often the worker is killed, each late flight is in ``late`` once, each
departure counts once in ``carriers``, and each hour of an airport is in ``hourly`` once.
"""

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from agentic import App

DATA = Path(__file__).parent / "data"

#: Minutes from which a flight counts as late, and from which someone should know.
LATE, LONG = 15, 120

#: A departure is reported when the flight has landed, hours later: for so long after its end an hour waits for more.
#: When no report has come for `QUIET`, time goes on by itself, and the last hours are closed, too.
GRACE, QUIET = timedelta(hours=5), timedelta(minutes=1)


class Flight(msgspec.Struct, frozen=True):
    """A departure as it is reported. Fields that we don't ask for are skipped while it is parsed."""

    carrier: str
    flight: int
    origin: str
    dest: str
    dep_delay: int


class Late(msgspec.Struct, frozen=True):
    """A late departure, with the airline by name."""

    airline: str
    flight: str
    route: str
    minutes: int


class Punctuality(msgspec.Struct, frozen=True):
    """What some departures come to. The mean is in minutes; early departures count below zero."""

    departures: int = 0
    minutes: int = 0
    mean_delay: float = 0.0


class Hour(msgspec.Struct, frozen=True):
    """An hour at an airport."""

    hour: str
    departures: int
    mean_delay: float


class Missed(msgspec.Struct, frozen=True):
    """A departure that was reported when its hour was closed, and by how many minutes too late."""

    flight: str
    hour: str
    too_late: int


def with_one_more(so_far: Punctuality, flight: Flight) -> Punctuality:
    """Count a departure."""
    departures, minutes = so_far.departures + 1, so_far.minutes + flight.dep_delay
    return Punctuality(departures, minutes, round(minutes / departures, 2))


def hour(start: int) -> str:
    """Say which hour begins at a time in ms."""
    return f"{datetime.fromtimestamp(start / 1000, UTC):%a %d %b %H:00}"


#: On Kafka a topic keeps its records for a week by their timestamps: flights of 2013 would be gone at once.
KEEP = {"retention.ms": "-1"}

app = App("PROJECT", delivery="exactly_once")
departures = app.topic("departures", key=str, value=Flight, config=KEEP)
late = app.topic("late", key=str, value=Late, config=KEEP)
alerts = app.topic("alerts", key=str, value=str, config=KEEP)
hourly = app.topic("hourly", key=str, value=Hour, config=KEEP)
missed = app.topic("missed", key=str, value=Missed, config=KEEP)
carriers = app.table("carriers", key=str, value=Punctuality, default=Punctuality)
hours = (
    app.table("hours", key=str, value=Punctuality)
    .tumbling(timedelta(hours=1), grace=GRACE, idle_after=QUIET)
    .aggregate(Punctuality, with_one_more)
)

airlines: dict[str, str] = {}


@app.lifespan
async def load_airlines():
    """Read the names of the airlines before the first flight comes."""
    with gzip.open(DATA / "airlines.jsonl.gz") as lines:
        for line in lines:
            row = msgspec.json.decode(line)
            airlines[row["key"]] = row["value"]["name"]
    yield


@app.agent(departures.filter(lambda flight: flight.dep_delay >= LATE), to=late)
async def enrich(stream):
    """Keep the late ones, and call the airline by its name."""
    async for flight in stream:
        yield Late(
            airline=airlines.get(flight.carrier, flight.carrier),
            flight=f"{flight.carrier}{flight.flight}",
            route=f"{flight.origin}-{flight.dest}",
            minutes=flight.dep_delay,
        )


@app.agent(late.filter(lambda flight: flight.minutes >= LONG), to=alerts)
async def alert(stream):
    """Say it of the long delays."""
    async for flight in stream:
        hours, minutes = divmod(flight.minutes, 60)
        yield f"{flight.airline} {flight.flight} {flight.route} left {hours} h {minutes:02} min late"


def carrier(flight: Flight) -> str:
    """Say whose flight it is: departures are keyed by the airport, and the table is by the carrier."""
    return flight.carrier


@app.agent(departures.group_by(carrier, key=str))
async def count(stream):
    """Keep each carrier's figures up to date."""
    async for flight in stream:
        carriers[flight.carrier] = with_one_more(carriers[flight.carrier], flight)


@app.agent(departures)
async def by_hour(stream):
    """Put each departure into the hour of its airport that it belongs to, by the time at which it left."""
    async for flight in stream:
        hours.add(stream.event.key, flight)


@app.agent(hours.emit_final(), to=hourly)
async def report(windows):
    """Say what an hour came to: once, when it is closed."""
    async for window in windows:
        yield Hour(hour(window.start), window.value.departures, window.value.mean_delay)


@app.agent(hours.late, to=missed)
async def tell_missed(refused):
    """Say which departures are in no hour's figures."""
    async for one in refused:
        yield Missed(f"{one.value.carrier}{one.value.flight}", hour(one.start), one.by // 60_000)
