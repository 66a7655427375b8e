import java.util.Map;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;

/** A topic gets more partitions under everything that may be attached to it. */
@SuppressWarnings("try")
final class Growing {
    private Growing() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("partitions_grow", Growing::grow);
    }

    private static void grow(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 2);
        try (Producer<String> producer = broker.produces(topic);
                QueueConsumer<String> queue = broker.queue(topic).subscriptionName("q").subscribe();
                StreamConsumer<String> stream = broker.stream(topic, "c").subscribe();
                StreamConsumer<String> one =
                        broker.stream(topic, "one").subscriptionName("shared").subscribe();
                StreamConsumer<String> two =
                        broker.stream(topic, "two").subscriptionName("shared").subscribe();
                CheckpointConsumer<String> reader =
                        broker.reader(topic).startPosition(Checkpoint.earliest()).create();
                CheckpointConsumer<String> first = broker.readerOf(topic, "g", "first");
                CheckpointConsumer<String> second = broker.readerOf(topic, "g", "second")) {
            Parts.publish(producer, 0, 40, 0);
            broker.grow("t", 4);
            int published = 40;
            while (broker.published("t-partition-2") == 0
                    || broker.published("t-partition-3") == 0) {
                Parts.check(published < 4000, "the producer does not see new partitions");
                Parts.publish(producer, published, published + 10, 0);
                published += 10;
            }
            Parts.receive(published, Parts.taker(queue)).once();
            Parts.receive(published, Parts.taker(stream)).once();
            Parts.receive(published, Parts.taker(one), Parts.taker(two)).once();
            Parts.receive(published, Parts.taker(reader)).once();
            Parts.receive(published, Parts.taker(first), Parts.taker(second)).once();
        }
    }
}
