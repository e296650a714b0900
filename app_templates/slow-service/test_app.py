"""PROJECT, step by step, without a broker and without the service: run it with pytest."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from agentic.testing import TestDriver

import app as project
from app import Assessed, Payment, app, assess, assessed, failed, outcomes, payments
from client import Answer

FINE = Answer(200, {}, b"7")
BROKEN = Answer(500, {}, b"")
BUSY = Answer(429, {"retry-after": "20"}, b"")
REFUSED = Answer(400, {}, b"currency 'XBT' is unknown")
#: The service never answers.
HANGING = None


class FakeService:
    """Stands in for client and service: gives the answers that a test lines up, and then good ones."""

    def __init__(self):
        self.answers = []
        #: The names of the requests, in the order in which they came.
        self.asked = []

    @asynccontextmanager
    async def connect(self):
        yield self

    async def post(self, path, body, headers):
        self.asked.append(headers["Idempotency-Key"])
        answer = self.answers.pop(0) if self.answers else FINE
        if answer is HANGING:
            await asyncio.Event().wait()
        return answer


@pytest.fixture
def service(monkeypatch):
    fake = FakeService()
    monkeypatch.setattr(project, "connect", fake.connect)
    return fake


@pytest.fixture
def driver(service):
    with TestDriver(app) as driver:
        yield driver


def payment(number: int, currency: str = "EUR") -> Payment:
    return Payment(number=number, amount=100, currency=currency)


def test_a_payment_is_assessed_and_counted(driver):
    driver.send(payments, payment(1), key="ann")
    assert [output.value for output in driver.outputs(assessed)] == [Assessed(number=1, risk=7, attempts=1)]
    assert driver.table(outcomes) == {"answered at once": 1}


def test_a_call_that_fails_is_made_again_under_the_same_name(driver, service):
    service.answers = [BROKEN, BROKEN]
    driver.send(payments, payment(1), key="ann")
    driver.advance(1)
    assert [output.value.attempts for output in driver.outputs(assessed)] == [3]
    assert len(service.asked) == 3
    assert len(set(service.asked)) == 1
    assert driver.table(outcomes) == {"answered after retries": 1}


def test_a_service_that_is_busy_is_left_alone_for_as_long_as_it_says(driver, service):
    service.answers = [BUSY]
    driver.send(payments, payment(1), key="ann")
    driver.advance(19)
    assert len(service.asked) == 1
    driver.advance(1)
    assert len(driver.outputs(assessed)) == 1


def test_a_call_that_hangs_is_given_up_and_made_again(driver, service):
    service.answers = [HANGING]
    driver.send(payments, payment(1), key="ann")
    driver.advance(2)
    assert [output.value.attempts for output in driver.outputs(assessed)] == [2]


def test_a_payment_that_is_refused_is_dead_lettered_at_once(driver, service):
    service.answers = [REFUSED]
    driver.send(payments, payment(1, currency="XBT"), key="ann")
    (letter,) = driver.outputs(failed)
    assert letter.value == payment(1, currency="XBT")
    assert dict(letter.headers)["agentic-error"] == b"Poison: currency 'XBT' is unknown"
    assert driver.table(outcomes) == {"dead-lettered": 1}


def test_a_payment_that_fails_each_time_is_dead_lettered_in_the_end(driver, service):
    service.answers = [BROKEN] * 5
    driver.send(payments, payment(1), key="ann")
    driver.advance(5)
    assert [dict(letter.headers)["agentic-attempts"] for letter in driver.outputs(failed)] == [b"5"]


def test_a_customers_payments_wait_for_each_other_and_for_nobody_else(driver, service):
    service.answers = [BROKEN]
    driver.send(payments, payment(1), key="ann", partition=0)
    driver.send(payments, payment(2), key="ann", partition=0)
    driver.send(payments, payment(3), key="ben", partition=0)
    assert [output.value.number for output in driver.outputs(assessed)] == [3]
    driver.advance(1)
    assert [output.value.number for output in driver.outputs(assessed)] == [1, 2]


def test_a_crash_asks_again_only_for_what_was_not_done(driver, service):
    driver.hold(assess)
    for number, customer in enumerate(["ann", "ben", "cleo"]):
        driver.send(payments, payment(number), key=customer, partition=0)
    first, *_ = service.asked
    driver.complete(assess, key="cleo")
    driver.complete(assess, key="ben")
    driver.crash()
    driver.release(assess)
    assert service.asked[3:] == [first]
    assert sorted(output.value.number for output in driver.outputs(assessed)) == [0, 1, 2]
    assert driver.table(outcomes) == {"answered at once": 3}
