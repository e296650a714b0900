"""PROJECT, step by step and without a broker: run it with pytest."""

from datetime import timedelta

import pytest
from agentic.testing import TestDriver

from app import GRACE, QUIET, Flight, Hour, Late, Missed, Punctuality
from app import alerts, app, carriers, departures, hourly, late, missed

HOUR = 3_600_000


@pytest.fixture
def driver():
    with TestDriver(app) as driver:
        yield driver


def flight(minutes: int, carrier: str = "UA") -> Flight:
    return Flight(carrier=carrier, flight=17, origin="JFK", dest="BOS", dep_delay=minutes)


def test_a_late_flight_gets_its_airlines_name_and_keeps_key_and_time(driver):
    driver.send(departures, flight(15), key="JFK", timestamp=1_000)
    (output,) = driver.outputs(late)
    assert output.value == Late(airline="United Air Lines Inc.", flight="UA17", route="JFK-BOS", minutes=15)
    assert (output.key, output.timestamp) == ("JFK", 1_000)


def test_a_punctual_flight_is_left_out_and_counted(driver):
    driver.send(departures, flight(14), key="JFK")
    assert driver.outputs(late) == []
    assert driver.dropped == {"filtered": 1}


def test_a_long_delay_is_alerted(driver):
    driver.send(departures, flight(119), key="JFK")
    assert driver.outputs(alerts) == []
    driver.send(departures, flight(125), key="JFK")
    assert [output.value for output in driver.outputs(alerts)] == [
        "United Air Lines Inc. UA17 JFK-BOS left 2 h 05 min late"
    ]


def test_an_airline_that_is_not_in_the_file_keeps_its_code(driver):
    driver.send(departures, flight(20, carrier="ZZ"), key="JFK")
    assert driver.outputs(late)[0].value.airline == "ZZ"


def test_a_carrier_is_counted_over_all_airports(driver):
    driver.send(departures, flight(40), key="JFK")
    driver.send(departures, flight(-5), key="EWR")
    driver.send(departures, flight(7, carrier="B6"), key="JFK")
    assert driver.table(carriers) == {"B6": Punctuality(1, 7, 7.0), "UA": Punctuality(2, 35, 17.5)}


def test_a_crash_doubles_nothing(driver):
    driver.send(departures, flight(125), key="JFK")
    driver.crash()
    assert len(driver.outputs(late)) == 1
    assert len(driver.outputs(alerts)) == 1
    assert driver.table(carriers)["UA"].departures == 1


def test_an_hour_comes_out_once_when_it_is_closed(driver):
    driver.send(departures, flight(10), key="JFK", timestamp=5 * HOUR)
    driver.send(departures, flight(20), key="JFK", timestamp=6 * HOUR - 1)
    driver.send(departures, flight(0), key="JFK", timestamp=6 * HOUR)
    assert driver.outputs(hourly) == []
    driver.send(departures, flight(0), key="JFK", timestamp=11 * HOUR)
    (output,) = driver.outputs(hourly)
    assert (output.key, output.value) == ("JFK", Hour("Thu 01 Jan 05:00", departures=2, mean_delay=15.0))


def test_a_departure_that_is_reported_too_late_is_in_no_hour_and_is_told_of(driver):
    driver.send(departures, flight(0), key="JFK", timestamp=11 * HOUR)
    driver.send(departures, flight(0), key="JFK", timestamp=6 * HOUR)
    driver.send(departures, flight(0), key="JFK", timestamp=5 * HOUR)
    (output,) = driver.outputs(missed)
    assert output.value == Missed("UA17", "Thu 01 Jan 05:00", too_late=0)
    assert driver.dropped["late"] == 1


def test_the_last_hours_come_out_when_no_more_departures_come():
    with TestDriver(app, now=7 * HOUR) as driver:
        driver.send(departures, flight(30), key="JFK", timestamp=5 * HOUR)
        driver.advance(GRACE - timedelta(hours=1))
        assert driver.outputs(hourly) == []
        driver.advance(QUIET)
        assert [output.value.departures for output in driver.outputs(hourly)] == [1]
