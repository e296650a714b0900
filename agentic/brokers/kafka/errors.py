"""What librdkafka says, in the words of `agentic.errors`."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from agentic import errors
from agentic.errors import BrokerError

#: The group has moved on without us: whoever commits now is a former owner.
NOT_OWNER = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._STATE,
        KafkaError._ASSIGNMENT_LOST,
    }
)
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNRELEASED_INSTANCE_ID,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
UNAVAILABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._RETRY,
        KafkaError._DESTROY,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)
UNKNOWN_TOPIC = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._NOENT,
    }
)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
#: Nobody but an administrator can help.
FORBIDDEN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

_CLASSES: tuple[tuple[frozenset[int], type[BrokerError], str], ...] = (
    (NOT_OWNER, errors.NotOwner, "the group has moved on; what is not committed goes to the next owner"),
    (FENCED, errors.Fenced, "give each worker an id of its own"),
    (UNAVAILABLE, errors.BrokerUnavailable, "check that the broker runs and can be reached from here"),
    (UNKNOWN_TOPIC, errors.UnknownTopic, "create it with `agentic topics create`, or check its name"),
    (TOO_LARGE, errors.RecordTooLarge, "send less, or raise max.message.bytes of the topic and message.max.bytes here"),
    (FORBIDDEN, BrokerError, "check the credentials and the ACLs of this user"),
)


def cause(problem: KafkaError | KafkaException) -> KafkaError:
    """Return the `KafkaError` inside an exception, or the error itself."""
    return problem.args[0] if isinstance(problem, KafkaException) else problem


def translate(problem: KafkaError | KafkaException, doing: str) -> BrokerError:
    """Return the error to raise for what librdkafka reports about `doing` ("commit of group 'g'")."""
    error = cause(problem)
    code = error.code()
    for codes, kind, way_out in _CLASSES:
        if code in codes:
            return kind(f"{doing}: {_text(error)}; {way_out}")
    return BrokerError(f"{doing}: {_text(error)}")


def _text(error: KafkaError) -> str:
    return f"{' '.join(error.str().split())} ({error.name()})"
