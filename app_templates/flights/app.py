"""PROJECT: which flights out of New York left late, which so late that someone should know, and how each carrier does.

    departures ──(15 min or more, with the airline's name)──▶ late ──(2 h or more)──▶ alerts
        └──(by carrier)──▶ carriers, a table: departures and mean delay of each

The log is embedded and lies in .agentic/. Outputs, tables and positions are committed together
(exactly_once): however often the worker is killed, each late flight is in ``late`` once, and each
departure counts once in ``carriers``.
"""

import gzip
from pathlib import Path

import msgspec
from agentic import App

DATA = Path(__file__).parent / "data"

#: Minutes from which a flight counts as late, and from which someone should know.
LATE, LONG = 15, 120


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
    """What the departures of a carrier come to. The mean is in minutes; early departures count below zero."""

    departures: int = 0
    minutes: int = 0
    mean_delay: float = 0.0


#: On Kafka a topic keeps its records for a week by their timestamps: flights of 2013 would be gone at once.
KEEP = {"retention.ms": "-1"}

app = App("PROJECT", delivery="exactly_once")
departures = app.topic("departures", key=str, value=Flight, config=KEEP)
late = app.topic("late", key=str, value=Late, config=KEEP)
alerts = app.topic("alerts", key=str, value=str, config=KEEP)
carriers = app.table("carriers", key=str, value=Punctuality, default=Punctuality)

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
        so_far = carriers[flight.carrier]
        departures, minutes = so_far.departures + 1, so_far.minutes + flight.dep_delay
        carriers[flight.carrier] = Punctuality(departures, minutes, round(minutes / departures, 2))
