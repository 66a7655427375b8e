import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.async.AsyncMessageBuilder;

/** What several scenarios do. Message {@code i} is the number i as text; its key is i mod keys. */
final class Parts {
    private static final Duration A_MOMENT = Duration.ofMillis(20);

    private Parts() {}

    /** Any kind of consumer: it takes the next message, and says so to the broker. */
    interface Taker {
        /** {@code null} if none comes in the time. */
        Message<String> take(Duration time) throws PulsarClientException;
    }

    static Taker taker(QueueConsumer<String> consumer) {
        return time -> {
            Message<String> message = consumer.receive(time);
            if (message != null) {
                consumer.acknowledge(message.id());
            }
            return message;
        };
    }

    static Taker taker(StreamConsumer<String> consumer) {
        return time -> {
            Message<String> message = consumer.receive(time);
            if (message != null) {
                consumer.acknowledgeCumulative(message.id());
            }
            return message;
        };
    }

    static Taker taker(CheckpointConsumer<String> consumer) {
        return consumer::receive;
    }

    /** What has come, as several consumers of one subscription got it. */
    static final class Received {
        final Set<String> values = new LinkedHashSet<>();
        final List<String> all = new ArrayList<>();
        final Map<String, Set<Integer>> takersByKey = new HashMap<>();
        private final Map<String, Message<String>> last = new HashMap<>();
        private final Set<MessageId> ids = new HashSet<>();
        private final List<String> again = new ArrayList<>();

        /** Note a message. A new one must be later than those of its key that came before. */
        void add(Message<String> message, int taker) {
            String value = message.value();
            String key = message.key().orElse("");
            all.add(value);
            if (!ids.add(message.id())) {
                again.add(value + " (" + message.id() + ")");
            }
            takersByKey.computeIfAbsent(key, unused -> new LinkedHashSet<>()).add(taker);
            if (values.add(value) && !key.isEmpty()) {
                Message<String> before = last.put(key, message);
                check(before == null || Integer.parseInt(before.value()) < Integer.parseInt(value),
                        "of key " + key + ", " + told(message) + " came after " + told(before));
            }
        }

        private static String told(Message<String> message) {
            return message == null ? "" : message.value() + " (" + message.id() + ")";
        }

        void once() {
            check(all.size() == values.size(), "some came twice: " + all);
        }

        /** A message that its producer sent again after a lost connection is stored twice. */
        void eachStoredOnce() {
            check(again.isEmpty(), "some came twice: " + again);
        }
    }

    /** Publish in batches; {@code keys} 0 for none. */
    static void publish(Producer<String> producer, int from, int to, int keys) throws Exception {
        List<CompletableFuture<?>> sent = new ArrayList<>();
        for (int i = from; i < to; i++) {
            AsyncMessageBuilder<String> message =
                    producer.async().newMessage().value(String.valueOf(i));
            sent.add((keys > 0 ? message.key("key-" + i % keys) : message).send());
        }
        for (CompletableFuture<?> each : sent) {
            each.get(Broker.PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    /** Take from all in turn until each of the numbers below {@code count} has come. */
    static Received receive(int count, Taker... takers) throws Exception {
        return receive(new Received(), count, takers);
    }

    static Received receive(Received received, int count, Taker... takers) throws Exception {
        long end = System.nanoTime() + Broker.PATIENCE.toNanos();
        while (received.values.size() < count) {
            check(System.nanoTime() < end, "only " + received.values.size() + " of " + count
                    + " came; missing: " + missing(received, count));
            for (int i = 0; i < takers.length; i++) {
                Duration time = takers.length == 1 ? Duration.ofMillis(500) : A_MOMENT;
                Message<String> message = takers[i].take(time);
                while (message != null) {
                    received.add(message, i);
                    message = received.values.size() < count ? takers[i].take(A_MOMENT) : null;
                }
            }
        }
        return received;
    }

    private static List<String> missing(Received received, int count) {
        return IntStream.range(0, count).mapToObj(String::valueOf)
                .filter(value -> !received.values.contains(value)).limit(10).toList();
    }

    /** Nothing more comes. */
    static void silent(Taker... takers) throws PulsarClientException {
        for (Taker taker : takers) {
            Message<String> message = taker.take(Duration.ofMillis(300));
            check(message == null, "it got one more: " + (message == null ? "" : message.value()));
        }
    }

    /** Wait until something holds. */
    static void until(String what, java.util.concurrent.Callable<Boolean> holds) throws Exception {
        long end = System.nanoTime() + Broker.PATIENCE.toNanos();
        while (!holds.call()) {
            check(System.nanoTime() < end, "waited in vain until " + what);
            Thread.sleep(20);
        }
    }

    static void check(boolean good, String reason) {
        if (!good) {
            throw new AssertionError(reason);
        }
    }

    static void equal(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    /** It is refused, and the client is told why. */
    static void refused(String why, java.util.concurrent.Callable<?> attempt) throws Exception {
        try {
            attempt.call();
        } catch (PulsarClientException e) {
            check(String.valueOf(e).contains(why), "it was told " + e);
            return;
        }
        throw new AssertionError("nobody refused it");
    }
}
