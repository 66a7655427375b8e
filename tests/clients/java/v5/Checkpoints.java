import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Producer;

/** Checkpoint consumers, alone and in groups. */
@SuppressWarnings("try")
final class Checkpoints {
    private Checkpoints() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("checkpoint", Checkpoints::resumed);
        scenarios.put("checkpoint_group", Checkpoints::group);
    }

    private static void resumed(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        try (Producer<String> producer = broker.produces(topic)) {
            Parts.publish(producer, 0, 100, 10);
            Parts.Received received = new Parts.Received();
            byte[] saved;
            try (CheckpointConsumer<String> reader =
                    broker.reader(topic).startPosition(Checkpoint.earliest()).create()) {
                for (int i = 0; i < 50; i++) {
                    received.add(reader.receive(Broker.PATIENCE), 0);
                }
                saved = reader.checkpoint().toByteArray();
            }
            try (CheckpointConsumer<String> reader = broker.reader(topic)
                            .startPosition(Checkpoint.fromByteArray(saved)).create();
                    CheckpointConsumer<String> latest =
                            broker.reader(topic).startPosition(Checkpoint.latest()).create()) {
                Parts.receive(received, 100, Parts.taker(reader)).once();
                Parts.publish(producer, 100, 110, 10);
                Parts.receive(received, 110, Parts.taker(reader)).once();
                for (int i = 0; i < 10; i++) {
                    int value = Integer.parseInt(latest.receive(Broker.PATIENCE).value());
                    Parts.check(value >= 100, value + " was there before");
                }
            }
        }
    }

    private static void group(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        try (Producer<String> producer = broker.produces(topic);
                CheckpointConsumer<String> one = broker.readerOf(topic, "g", "one");
                CheckpointConsumer<String> two = broker.readerOf(topic, "g", "two")) {
            Parts.publish(producer, 0, 100, 20);
            Parts.Received received = Parts.receive(100, Parts.taker(one), Parts.taker(two));
            received.once();
            Set<Integer> busy = new HashSet<>();
            received.takersByKey.values().forEach(busy::addAll);
            Parts.equal(Set.of(0, 1), busy);
            two.close();
            Parts.publish(producer, 100, 200, 20);
            Parts.receive(received, 200, Parts.taker(one));
        }
    }
}
