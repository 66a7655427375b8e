import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;

/** The broker is killed, and started again, under all kinds of consumers at once. */
@SuppressWarnings("try")
final class Killing {
    private static final int BEFORE = 100;
    private static final int ALL = 200;
    private static final int KEYS = 10;

    private Killing() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("killed", Killing::killed);
    }

    /** One kind of consumers, with the topic of its own. */
    private interface Kind {
        void run(String topic, Callable<?> kill) throws Exception;
    }

    private static void killed(Broker broker) throws Exception {
        Map<String, Kind> kinds = Map.of(
                "queue", (topic, kill) -> {
                    try (QueueConsumer<String> consumer = broker.queue(topic).subscribe()) {
                        across(broker, topic, kill, Parts.taker(consumer));
                    }
                },
                "stream", (topic, kill) -> {
                    try (StreamConsumer<String> one = broker.stream(topic, "one").subscribe();
                            StreamConsumer<String> two = broker.stream(topic, "two").subscribe()) {
                        across(broker, topic, kill, Parts.taker(one), Parts.taker(two));
                    }
                },
                "checkpoint", (topic, kill) -> {
                    try (CheckpointConsumer<String> reader =
                            broker.reader(topic).startPosition(Checkpoint.earliest()).create()) {
                        // Not once(): this client closes its connection if a reader loses its
                        // partition while it attaches, and its producers then send again.
                        across(broker, topic, kill, Parts.taker(reader)).eachStoredOnce();
                    }
                },
                "group", (topic, kill) -> {
                    try (CheckpointConsumer<String> one = broker.readerOf(topic, "g", "one");
                            CheckpointConsumer<String> two = broker.readerOf(topic, "g", "two")) {
                        // A reader that gets a partition from another one begins at its start.
                        across(broker, topic, kill, Parts.taker(one), Parts.taker(two));
                    }
                });
        CyclicBarrier barrier = new CyclicBarrier(kinds.size(), () -> {
            try {
                V5Client.ask("kill");
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
        ExecutorService threads = Executors.newFixedThreadPool(kinds.size());
        Map<String, Future<?>> running = new java.util.TreeMap<>();
        for (String kind : kinds.keySet()) {
            String topic = broker.partitioned(kind, 2);
            running.put(kind, threads.submit(() -> {
                kinds.get(kind).run(topic, () -> barrier.await());
                return null;
            }));
        }
        threads.shutdown();
        for (Map.Entry<String, Future<?>> each : running.entrySet()) {
            try {
                each.getValue().get();
            } catch (java.util.concurrent.ExecutionException e) {
                throw new AssertionError(each.getKey() + ": " + e.getCause(), e.getCause());
            }
        }
    }

    /** Half is published before, of which half is taken; a producer goes on in between. */
    private static Parts.Received across(
            Broker broker, String topic, Callable<?> kill, Parts.Taker... takers)
            throws Exception {
        try (Producer<String> producer = broker.produces(topic)) {
            Parts.publish(producer, 0, BEFORE / 2, KEYS);
            Parts.Received received = Parts.receive(BEFORE / 2, takers);
            Parts.publish(producer, BEFORE / 2, BEFORE, KEYS);
            kill.call();
            Parts.publish(producer, BEFORE, ALL, KEYS);
            return Parts.receive(received, ALL, takers);
        }
    }
}
