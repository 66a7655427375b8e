"""Scalable topics, as Pulsar 5's clients ask for them, over ordinary topics.

Such a client asks for the *layout* of every topic it uses. An ordinary topic has one *segment* a
partition, and all traffic of a segment is that of the partition. Segments are never split and never
merged; a topic gets more of them when it gets more partitions.

Start with ``scalable_topics``, which has the parts of a broker. ``layouts`` says what a topic's
layout is, and ``followed`` follows it while somebody uses it. ``groups`` are the stream consumers
(and the readers of a checkpoint) that share a topic's segments, and ``shares`` decides who has
which: it never lets two subscribe to a segment at a time.

Nothing here is imported, and nothing is in memory, before the first client asks.
"""
