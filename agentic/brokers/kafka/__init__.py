"""The driver for Kafka: ``kafka://HOST:PORT[,HOST:PORT…]`` on confluent-kafka (librdkafka).

`broker` makes the rest: `consumer` is a group member as the loop sees it and `member` the thread
under it, which is a `poller`; `columns` turns messages into batches; `producer` and
`transactions` append; `admin` asks and orders; `config` knows the properties, `errors` what
the client's errors mean, `incident` says once that the broker is away.
"""

from agentic.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
