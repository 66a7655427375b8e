import java.time.Duration;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProcessingTimeoutPolicy;

/** Queue consumers. */
@SuppressWarnings("try")
final class Queues {
    private static final BackoffPolicy AT_ONCE =
            BackoffPolicy.exponential(Duration.ofMillis(100), Duration.ofMillis(200));

    private Queues() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("queue", Queues::shared);
        scenarios.put("queue_redelivery", Queues::redelivery);
        scenarios.put("queue_dead_letters", Queues::deadLetters);
        scenarios.put("queue_beside_stream", Queues::besideStream);
        scenarios.put("for_old_clients", Queues::forOldClients);
    }

    private static void shared(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 2);
        try (Producer<String> producer = broker.produces(topic);
                QueueConsumer<String> one = broker.queue(topic).receiverQueueSize(5).subscribe();
                QueueConsumer<String> two = broker.queue(topic).receiverQueueSize(5).subscribe()) {
            for (int i = 0; i < 60; i++) {
                producer.newMessage().value(String.valueOf(i)).send();
            }
            Parts.Received received =
                    Parts.receive(60, Parts.taker(one), Parts.taker(two));
            received.once();
            Parts.equal(Set.of(0, 1), received.takersByKey.get(""));
        }
        try (QueueConsumer<String> again = broker.queue(topic).subscribe()) {
            Parts.silent(Parts.taker(again));
        }
    }

    private static void redelivery(Broker broker) throws Exception {
        String topic = broker.persistent("t");
        try (Producer<String> producer = broker.produces(topic)) {
            producer.newMessage().value("0").send();
            producer.newMessage().value("1").send();
            try (QueueConsumer<String> consumer =
                    broker.queue(topic).negativeAckRedeliveryBackoff(AT_ONCE).subscribe()) {
                consumer.acknowledge(consumer.receive(Broker.PATIENCE).id());
                consumer.negativeAcknowledge(consumer.receive(Broker.PATIENCE).id());
                Message<String> again = consumer.receive(Broker.PATIENCE);
                Parts.equal("1 1", again.value() + " " + again.redeliveryCount());
            }
            // It was not acknowledged.
            try (QueueConsumer<String> consumer = broker.queue(topic)
                    .processingTimeout(ProcessingTimeoutPolicy.of(Duration.ofSeconds(1)))
                    .subscribe()) {
                Parts.equal("1", consumer.receive(Broker.PATIENCE).value());
                Message<String> again = consumer.receive(Broker.PATIENCE);
                Parts.equal("1", again.value());
                Parts.check(again.redeliveryCount() > 0, "it is no redelivery");
                consumer.acknowledge(again.id());
            }
        }
    }

    private static void deadLetters(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 2);
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2).build();
        try (Producer<String> producer = broker.produces(topic);
                QueueConsumer<String> consumer = broker.queue(topic)
                        .negativeAckRedeliveryBackoff(AT_ONCE).deadLetterPolicy(policy)
                        .subscribe()) {
            producer.newMessage().value("0").key("bad").send();
            for (int count = 0; count <= 2; count++) {
                Message<String> message = consumer.receive(Broker.PATIENCE);
                Parts.check(message != null, "delivery " + count + " did not come");
                Parts.equal(count, message.redeliveryCount());
                consumer.negativeAcknowledge(message.id());
            }
            // What the client sends there is bytes, whatever the topic's schema.
            try (QueueConsumer<byte[]> letters = broker.client
                    .newQueueConsumer(org.apache.pulsar.client.api.v5.schema.Schema.bytes())
                    .topic(broker.scalable("t") + "-DLQ").subscriptionName("s")
                    .subscriptionInitialPosition(
                            org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition
                                    .EARLIEST)
                    .subscribe()) {
                Message<byte[]> letter = letters.receive(Broker.PATIENCE);
                Parts.check(letter != null, "there is no dead letter");
                Parts.equal("0", new String(letter.value()));
            }
            Parts.silent(Parts.taker(consumer));
        }
    }

    private static void besideStream(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 2);
        try (QueueConsumer<String> queue = broker.queue(topic).subscribe()) {
            Parts.refused("", () -> broker.stream(topic, "c").subscribe());
        }
        try (StreamConsumer<String> stream = broker.stream(topic, "c").subscribe()) {
            Parts.refused("", () -> broker.queue(topic).subscribe());
        }
    }

    /** Publishes one message a key, and takes half of them: the others are for older clients. */
    private static void forOldClients(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        try (Producer<String> producer = broker.produces(topic);
                QueueConsumer<String> consumer =
                        broker.queue(topic).receiverQueueSize(1).subscribe()) {
            for (int i = 0; i < 40; i++) {
                producer.newMessage().value(String.valueOf(i)).key("key-" + i).send();
            }
            Parts.Received received = new Parts.Received();
            while (received.values.size() < 20) {
                Message<String> message = Parts.taker(consumer).take(Broker.PATIENCE);
                Parts.check(message != null, "only " + received.values + " came");
                received.add(message, 0);
            }
        }
    }
}
