"""Publishes ``python-0``, ``python-1`` and so on to a partitioned topic and consumes all in it.

It publishes until its input says "stop", and consumes until its input ends. ::

    python -m tests.clients.numbers SERVICE_URL TOPIC MILLISECONDS_BETWEEN_TWO

It prints ``receipt PARTITION TEXT`` and ``delivered PARTITION TEXT``, ``failed REASON``, and
``flushed`` when there is an answer to each message. ``java/Numbers.java`` and ``go/numbers`` are
the same with other clients.
"""

from __future__ import annotations

import select
import sys
from functools import partial

import pulsar

NAME = "python"


def say(line: str) -> None:
    """In one piece: it is called by threads of the client."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def taken(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    say(f"delivered {message.message_id().partition()} {message.data().decode()}")
    consumer.acknowledge(message)


def answered(text: str, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
    if result == pulsar.Result.Ok:
        say(f"receipt {message_id.partition()} {text}")
    else:
        say(f"failed {text}: {result}")


def main(service_url: str, topic: str, pause_ms: str) -> None:
    # Its console logger would write in the middle of the output.
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr")
    client = pulsar.Client(service_url, logger=logger)
    client.subscribe(
        topic, NAME, message_listener=taken, initial_position=pulsar.InitialPosition.Earliest
    )
    producer = client.create_producer(
        topic,
        producer_name=NAME,
        send_timeout_millis=0,
        block_if_queue_full=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    number = 0
    while not select.select([sys.stdin], [], [], int(pause_ms) / 1000)[0]:
        text = f"{NAME}-{number}"
        producer.send_async(text.encode(), partial(answered, text))
        number += 1
    producer.flush()
    say("flushed")
    sys.stdin.read()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
