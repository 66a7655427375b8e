import java.util.Map;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;

/** Consumers of all topics of a namespace. */
@SuppressWarnings("try")
final class Namespaces {
    private Namespaces() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("namespace_queue", broker -> {
            String namespace = made(broker, "queue");
            try (QueueConsumer<String> consumer =
                    Broker.queue(broker.client).namespace(namespace).subscribe()) {
                follow(broker, namespace, Parts.taker(consumer));
            }
        });
        scenarios.put("namespace_stream", broker -> {
            String namespace = made(broker, "stream");
            try (StreamConsumer<String> consumer =
                    Broker.stream(broker.client, "c").namespace(namespace).subscribe()) {
                follow(broker, namespace, Parts.taker(consumer));
            }
        });
    }

    /** A namespace with a topic of two partitions. */
    private static String made(Broker broker, String name) throws Exception {
        String namespace = "public/v5-" + name;
        broker.call("PUT", "/namespaces/" + namespace, "");
        broker.call("PUT", "/persistent/" + namespace + "/first/partitions", "2");
        return namespace;
    }

    /** One topic was there before the consumer, and one comes later. */
    private static void follow(Broker broker, String namespace, Parts.Taker taker)
            throws Exception {
        Parts.Received received = new Parts.Received();
        int count = 0;
        for (String topic : new String[] {"first", "second"}) {
            String name = "persistent://" + namespace + "/" + topic;
            try (Producer<String> producer = broker.produces(name)) {
                Parts.publish(producer, count, count + 20, 5);
                count += 20;
                Parts.receive(received, count, taker);
            }
        }
        received.once();
    }
}
