"""PROJECT, step by step and without a broker: run it with pytest."""

from agentic.testing import TestDriver

from app import app, greetings, names


def test_everyone_is_greeted_by_name():
    with TestDriver(app) as driver:
        driver.send(names, "Ada")
        driver.send(names, "Bob")
        assert sorted(output.value for output in driver.outputs(greetings)) == ["hello, Ada", "hello, Bob"]
