import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;

/** Stream consumers, alone and in groups. */
@SuppressWarnings("try")
final class Streams {
    private Streams() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("stream", Streams::resumed);
        scenarios.put("stream_shares", Streams::shares);
        scenarios.put("stream_many", Streams::many);
        scenarios.put("stream_never_closed", Streams::neverClosed);
        scenarios.put("stream_killed_in_hand_over", Streams::killedInHandOver);
        scenarios.put("stream_come_and_go", broker -> comeAndGo(broker, 6));
        scenarios.put("stream_come_and_go_for_long", broker -> comeAndGo(broker, 60));
    }

    private static void resumed(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        // A part of a batch is not acknowledged, unless the consumer asks for that.
        try (Producer<String> producer = broker.producer(topic)
                .batchingPolicy(BatchingPolicy.ofDisabled()).create()) {
            Parts.publish(producer, 0, 200, 20);
        }
        Set<String> acknowledged = new HashSet<>();
        try (StreamConsumer<String> consumer = broker.stream(topic, "c").subscribe()) {
            Parts.Received received = new Parts.Received();
            Message<String> last = null;
            for (int i = 0; i < 100; i++) {
                last = consumer.receive(Broker.PATIENCE);
                received.add(last, 0);
                acknowledged.add(last.value());
            }
            consumer.acknowledgeCumulative(last.id());
            Parts.equal("c", consumer.consumerName());
            Thread.sleep(200); // acknowledgements are sent in groups
        }
        try (StreamConsumer<String> consumer = broker.stream(topic, "c").subscribe()) {
            Parts.Received rest = new Parts.Received();
            for (int i = 0; i < 100; i++) {
                rest.add(consumer.receive(Broker.PATIENCE), 0);
            }
            rest.once();
            rest.values.retainAll(acknowledged);
            Parts.equal(Set.of(), rest.values);
            Parts.silent(Parts.taker(consumer));
        }
    }

    private static void shares(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        try (Producer<String> producer = broker.produces(topic);
                StreamConsumer<String> one = broker.stream(topic, "one").subscribe()) {
            Parts.publish(producer, 0, 40, 20);
            Parts.Received received = Parts.receive(40, Parts.taker(one));
            StreamConsumer<String> two = Broker.stream(broker.otherClient(), "two")
                    .topic(topic).subscribe();
            received.takersByKey.clear();
            Parts.publish(producer, 40, 140, 20);
            Parts.receive(received, 140, Parts.taker(one), Parts.taker(two));
            Set<Integer> busy = new HashSet<>();
            received.takersByKey.forEach((key, takers) -> {
                Parts.check(takers.size() == 1, key + " came to both");
                busy.addAll(takers);
            });
            Parts.equal(Set.of(0, 1), busy);
            two.close(); // its client stays connected
            Parts.publish(producer, 140, 240, 20);
            Parts.receive(received, 240, Parts.taker(one));
        }
    }

    private static void many(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        List<StreamConsumer<String>> consumers = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            consumers.add(broker.stream(topic, "c" + i).subscribe());
        }
        try (Producer<String> producer = broker.produces(topic)) {
            Parts.publish(producer, 0, 80, 20);
            Parts.Received received = Parts.receive(80, takers(consumers));
            Set<Integer> busy = new HashSet<>();
            received.takersByKey.values().forEach(busy::addAll);
            Parts.equal(4, busy.size());
            // Those with a share leave: the idle ones get it.
            busy.forEach(i -> consumers.get(i).async().close());
            busy.stream().sorted((a, b) -> b - a).forEach(i -> consumers.remove((int) i));
            Parts.publish(producer, 80, 160, 20);
            Parts.receive(received, 160, takers(consumers));
        }
    }

    /** Another member of the group never closes what it loses; in the end it hangs up. */
    private static void neverClosed(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 2);
        try (Producer<String> producer = broker.produces(topic)) {
            V5Client.ask("attach " + topic);
            StreamConsumer<String> consumer = broker.stream(topic, "b").subscribe();
            Parts.Received received = new Parts.Received();
            Parts.publish(producer, 0, 40, 20);
            Parts.until("it has its share", () -> {
                Message<String> message = consumer.receive(java.time.Duration.ofMillis(100));
                if (message != null) {
                    received.add(message, 0);
                }
                return received.values.size() >= 5;
            });
            V5Client.ask("hang_up");
            Parts.receive(received, 40, Parts.taker(consumer));
        }
    }

    /** The broker is killed while a consumer waits for what another one was told to give up. */
    private static void killedInHandOver(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 2);
        try (Producer<String> producer = broker.produces(topic)) {
            Parts.publish(producer, 0, 40, 20);
            V5Client.ask("attach " + topic);
            CompletableFuture<StreamConsumer<String>> waiting =
                    broker.stream(topic, "b").subscribeAsync();
            Thread.sleep(500);
            Parts.check(!waiting.isDone(), "it did not wait");
            V5Client.ask("kill");
            StreamConsumer<String> consumer;
            try {
                consumer = waiting.get(Broker.PATIENCE.toSeconds(), TimeUnit.SECONDS);
            } catch (ExecutionException failed) {
                // The client gives up whom it is making when a connection ends.
                consumer = broker.stream(topic, "b").subscribe();
            }
            Parts.publish(producer, 40, 80, 20);
            Parts.receive(80, Parts.taker(consumer));
        }
    }

    /** Ten consumers on eight partitions come and go at random. */
    private static void comeAndGo(Broker broker, int seconds) throws Exception {
        String topic = broker.partitioned("t" + seconds, 8);
        Random random = new Random(5);
        List<StreamConsumer<String>> consumers = new ArrayList<>();
        Parts.Received received = new Parts.Received();
        int published = 0;
        try (Producer<String> producer = broker.produces(topic)) {
            long end = System.nanoTime() + seconds * 1_000_000_000L;
            for (int turn = 0; System.nanoTime() < end; turn++) {
                if (consumers.isEmpty() || (consumers.size() < 10 && random.nextInt(10) < 6)) {
                    consumers.add(broker.stream(topic, "c" + turn).subscribe());
                } else {
                    consumers.remove(random.nextInt(consumers.size())).close();
                }
                Parts.publish(producer, published, published + 40, 40);
                published += 40;
                for (Parts.Taker taker : takers(consumers)) {
                    Message<String> message = taker.take(java.time.Duration.ofMillis(5));
                    while (message != null) {
                        received.add(message, 0);
                        message = taker.take(java.time.Duration.ofMillis(1));
                    }
                }
            }
            if (consumers.isEmpty()) {
                consumers.add(broker.stream(topic, "last").subscribe());
            }
            Parts.receive(received, published, takers(consumers));
        }
        System.err.println(published + " messages to consumers that come and go");
    }

    private static Parts.Taker[] takers(List<StreamConsumer<String>> consumers) {
        return consumers.stream().map(Parts::taker).toArray(Parts.Taker[]::new);
    }
}
