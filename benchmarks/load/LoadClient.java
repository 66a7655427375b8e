import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * The load of the comparison: one long-lived JVM, the official client at its defaults.
 *
 * <p>Reads one command a line, {@code NAME key=value ...}, and answers each with one line of JSON:
 * numbers by name, or {@code {"error": "..."}}. All times are seconds of this process's clock.
 */
public final class LoadClient {
    private static final int BURST = 64;
    private final Map<String, PulsarClient> clients = new HashMap<>();

    public static void main(String[] args) throws Exception {
        LoadClient load = new LoadClient();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(load.answer(line));
            System.out.flush();
        }
        System.exit(0);
    }

    private String answer(String line) {
        String[] words = line.trim().split(" ");
        Map<String, String> options = new HashMap<>();
        for (String word : Arrays.copyOfRange(words, 1, words.length)) {
            int at = word.indexOf('=');
            options.put(word.substring(0, at), word.substring(at + 1));
        }
        try {
            return run(words[0], options);
        } catch (Exception e) {
            String text = String.valueOf(e).replaceAll("[\\\\\"\\p{Cntrl}]", " ");
            return "{\"error\": \"" + text + "\"}";
        }
    }

    private String run(String name, Map<String, String> o) throws Exception {
        String url = o.get("url");
        String topic = o.get("topic");
        switch (name) {
            case "first":
                return first(url, topic, Double.parseDouble(o.get("seconds")));
            case "publish":
                return publish(client(o), topic, Boolean.parseBoolean(o.get("batching")),
                        Integer.parseInt(o.get("pending")), Integer.parseInt(o.get("size")),
                        Double.parseDouble(o.get("seconds")));
            case "lone":
                return lone(client(o), topic, Integer.parseInt(o.get("size")),
                        Integer.parseInt(o.get("count")));
            case "endtoend":
                return endToEnd(client(o), topic, Integer.parseInt(o.get("size")),
                        Integer.parseInt(o.get("count")), Double.parseDouble(o.get("rate")));
            case "backlog":
                return backlog(client(o), topic, Integer.parseInt(o.get("size")),
                        Integer.parseInt(o.get("count")));
            case "fill":
                return fill(client(o), topic, Integer.parseInt(o.get("size")),
                        Integer.parseInt(o.get("count")), Integer.parseInt(o.get("keys")));
            case "steady":
                return steady(client(o), topic, Integer.parseInt(o.get("size")),
                        Double.parseDouble(o.get("rate")), Double.parseDouble(o.get("seconds")),
                        Boolean.parseBoolean(o.get("batching")));
            case "catchup":
                return catchUp(client(o), topic, o.get("subscription"),
                        Integer.parseInt(o.get("count")));
            case "deliver":
                return deliver(client(o), topic, SubscriptionType.valueOf(o.get("type")),
                        Integer.parseInt(o.get("subscriptions")),
                        Integer.parseInt(o.get("consumers")), Integer.parseInt(o.get("keys")),
                        Integer.parseInt(o.get("size")), Integer.parseInt(o.get("count")));
            case "disconnect":
                PulsarClient client = clients.remove(url);
                if (client != null) {
                    client.shutdown();
                }
                return "{}";
            default:
                throw new IllegalArgumentException("unknown command " + name);
        }
    }

    /** One for each address; {@code trust} has the CAs over TLS, {@code token} is the login. */
    private PulsarClient client(Map<String, String> o) throws PulsarClientException {
        String url = o.get("url");
        PulsarClient client = clients.get(url);
        if (client == null) {
            ClientBuilder builder = PulsarClient.builder().serviceUrl(url);
            if (o.containsKey("trust")) {
                builder.tlsTrustCertsFilePath(o.get("trust")).enableTlsHostnameVerification(true);
            }
            if (o.containsKey("token")) {
                builder.authentication(AuthenticationFactory.token(o.get("token")));
            }
            client = builder.build();
            clients.put(url, client);
        }
        return client;
    }

    /** Connect to a broker that is just starting, until one message is acknowledged. */
    private String first(String url, String topic, double seconds) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        int port = Integer.parseInt(url.substring(url.lastIndexOf(':') + 1));
        int attempts = 0;
        while (true) {
            try (Socket socket = new Socket()) {
                socket.connect(new InetSocketAddress("127.0.0.1", port), 1000);
            } catch (java.io.IOException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(2);
                continue;
            }
            attempts++;
            try (PulsarClient client = PulsarClient.builder().serviceUrl(url)
                            .operationTimeout(2, TimeUnit.SECONDS)
                            .lookupTimeout(2, TimeUnit.SECONDS).build();
                    Producer<byte[]> producer =
                            client.newProducer().topic(topic).enableBatching(false).create()) {
                producer.send(new byte[100]);
                return String.format("{\"attempts\": %d}", attempts);
            } catch (PulsarClientException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(10);
            }
        }
    }

    /**
     * Publish as fast as the client lets us for a while; the clock stops at the last receipt.
     * {@code pending} bounds the unacknowledged messages; 0 leaves it to the client's memory limit.
     */
    private static String publish(
            PulsarClient client, String topic, boolean batching, int pending, int size,
            double seconds) throws Exception {
        byte[] payload = payload(size);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Semaphore acknowledged = new Semaphore(0);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(batching)
                .maxPendingMessages(pending).blockIfQueueFull(true).create()) {
            producer.send(payload);
            int sent = 0;
            long start = System.nanoTime();
            long end = start + (long) (seconds * 1e9);
            while (System.nanoTime() < end) {
                for (int i = 0; i < BURST; i++) {
                    producer.sendAsync(payload).whenComplete((id, error) -> {
                        if (error != null) {
                            failure.set(error);
                        }
                        acknowledged.release();
                    });
                }
                sent += BURST;
            }
            producer.flushAsync();
            acknowledged.acquire(sent);
            double elapsed = (System.nanoTime() - start) / 1e9;
            if (failure.get() != null) {
                throw new IllegalStateException("a publish failed", failure.get());
            }
            return String.format("{\"messages\": %d, \"seconds\": %.6f}", sent, elapsed);
        }
    }

    /** One outstanding message at a time, not batched. */
    private static String lone(PulsarClient client, String topic, int size, int count)
            throws Exception {
        byte[] payload = payload(size);
        long[] nanos = new long[count];
        try (Producer<byte[]> producer =
                client.newProducer().topic(topic).enableBatching(false).create()) {
            producer.send(payload);
            for (int i = 0; i < count; i++) {
                long start = System.nanoTime();
                producer.send(payload);
                nanos[i] = System.nanoTime() - start;
            }
        }
        return percentiles(nanos);
    }

    /** Paced publishing, not batched; latency from before the send to the consumer's hands. */
    @SuppressWarnings("try")
    private static String endToEnd(
            PulsarClient client, String topic, int size, int count, double rate)
            throws Exception {
        byte[] payload = payload(size);
        long[] sent = new long[count];
        long[] nanos = new long[count];
        Semaphore received = new Semaphore(0);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                        .subscriptionName("endtoend").messageListener((c, message) -> {
                            long now = System.nanoTime();
                            int index = (int) Long.parseLong(message.getKey());
                            nanos[index] = now - sent[index];
                            c.acknowledgeAsync(message);
                            received.release();
                        }).subscribe();
                Producer<byte[]> producer =
                        client.newProducer().topic(topic).enableBatching(false).create()) {
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                long due = start + (long) (i * 1e9 / rate);
                for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                    java.util.concurrent.locks.LockSupport.parkNanos(wait);
                }
                sent[i] = System.nanoTime();
                producer.newMessage().key(Integer.toString(i)).value(payload).sendAsync();
            }
            if (!received.tryAcquire(count, 30, TimeUnit.SECONDS)) {
                throw new IllegalStateException(received.availablePermits() + " of " + count
                        + " messages arrived");
            }
        }
        return percentiles(nanos);
    }

    /** Fill a topic that a subscription holds on to, with batches. */
    private static String backlog(PulsarClient client, String topic, int size, int count)
            throws Exception {
        byte[] payload = payload(size);
        client.newConsumer().topic(topic).subscriptionName("hold")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe().close();
        Semaphore acknowledged = new Semaphore(0);
        try (Producer<byte[]> producer =
                client.newProducer().topic(topic).blockIfQueueFull(true).create()) {
            for (int i = 0; i < count; i++) {
                producer.sendAsync(payload).thenRun(acknowledged::release);
            }
            producer.flush();
            acknowledged.acquire(count);
        }
        return String.format("{\"messages\": %d}", count);
    }

    /**
     * Fill a topic with messages that have a key, an event time and a value that no other has.
     * Batches are those of a client that sends as much as it may.
     */
    private static String fill(
            PulsarClient client, String topic, int size, int count, int keys) throws Exception {
        java.util.Random random = new java.util.Random(1);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true)
                .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS).create()) {
            for (int i = 0; i < count; i++) {
                byte[] payload = new byte[size];
                random.nextBytes(payload);
                TypedMessageBuilder<byte[]> message =
                        producer.newMessage().value(payload).eventTime(System.currentTimeMillis());
                if (keys > 0) {
                    message.key("key-" + random.nextInt(keys));
                }
                message.sendAsync().exceptionally(error -> {
                    failure.set(error);
                    return null;
                });
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a publish failed", failure.get());
        }
        return String.format("{\"messages\": %d}", count);
    }

    /** Publish at a rate, whatever the receipts; the event time is when a message was due. */
    private static String steady(
            PulsarClient client, String topic, int size, double rate, double seconds,
            boolean batching) throws Exception {
        byte[] payload = payload(size);
        int count = (int) (rate * seconds);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .enableBatching(batching).blockIfQueueFull(true).create()) {
            producer.newMessage().value(payload).eventTime(System.currentTimeMillis()).send();
            long epoch = System.currentTimeMillis();
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                long due = (long) (i * 1e9 / rate);
                long wait = start + due - System.nanoTime();
                while (wait > 0) {
                    // Woken a thousand times a second: more would take a core to wait.
                    java.util.concurrent.locks.LockSupport.parkNanos(Math.max(wait, 1_000_000));
                    wait = start + due - System.nanoTime();
                }
                producer.newMessage().value(payload).eventTime(epoch + due / 1_000_000).sendAsync()
                        .exceptionally(error -> {
                            failure.set(error);
                            return null;
                        });
            }
            producer.flush();
            double elapsed = (System.nanoTime() - start) / 1e9;
            if (failure.get() != null) {
                throw new IllegalStateException("a publish failed", failure.get());
            }
            return String.format("{\"messages\": %d, \"seconds\": %.6f}", count + 1, elapsed);
        }
    }

    /** Read a backlog from its first message with a new subscription, acknowledging each. */
    private static String catchUp(
            PulsarClient client, String topic, String subscription, int count) throws Exception {
        long start = System.nanoTime();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int i = 0; i < count; i++) {
                Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(i + " of " + count + " messages arrived");
                }
                consumer.acknowledgeAsync(message);
            }
            double elapsed = (System.nanoTime() - start) / 1e9;
            return String.format("{\"messages\": %d, \"seconds\": %.6f}", count, elapsed);
        }
    }

    /**
     * Publish to consumers that are there already, until each subscription has received all. With
     * keys each message is sent alone, because a batch goes to one consumer.
     */
    private static String deliver(
            PulsarClient client, String topic, SubscriptionType type, int subscriptions,
            int consumers, int keys, int size, int count) throws Exception {
        byte[] payload = payload(size);
        Semaphore received = new Semaphore(0);
        List<Consumer<byte[]>> open = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(keys == 0)
                .maxPendingMessages(1000).blockIfQueueFull(true).create()) {
            for (int i = 0; i < subscriptions * consumers; i++) {
                open.add(client.newConsumer().topic(topic).subscriptionType(type)
                        .subscriptionName("s" + i / consumers).messageListener((c, message) -> {
                            c.acknowledgeAsync(message);
                            received.release();
                        }).subscribe());
            }
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(payload);
                if (keys > 0) {
                    message.key("key-" + i % keys);
                }
                message.sendAsync();
            }
            producer.flush();
            if (!received.tryAcquire(count * subscriptions, 60, TimeUnit.SECONDS)) {
                throw new IllegalStateException(received.availablePermits() + " of "
                        + count * subscriptions + " messages arrived");
            }
            double elapsed = (System.nanoTime() - start) / 1e9;
            return String.format("{\"messages\": %d, \"seconds\": %.6f}",
                    count * subscriptions, elapsed);
        } finally {
            for (Consumer<byte[]> consumer : open) {
                consumer.closeAsync();
            }
        }
    }

    /** Bytes that do not compress away, the same in every run. */
    private static byte[] payload(int size) {
        byte[] payload = new byte[size];
        new java.util.Random(1).nextBytes(payload);
        return payload;
    }

    private static String percentiles(long[] nanos) {
        Arrays.sort(nanos);
        return String.format("{\"p50\": %.9f, \"p99\": %.9f}",
                nanos[nanos.length / 2] / 1e9, nanos[nanos.length * 99 / 100] / 1e9);
    }
}
