import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.async.AsyncProducer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * The load of Pulsar 5's client at its defaults: what LoadClient does, as far as publishes go.
 *
 * <p>Reads one command a line, {@code NAME key=value ...}, and answers each with one line of JSON:
 * numbers by name, or {@code {"error": "..."}}. All times are seconds of this process's clock.
 */
public final class V5LoadClient {
    private static final int BURST = 64;
    private final Map<String, PulsarClient> clients = new HashMap<>();

    public static void main(String[] args) throws Exception {
        V5LoadClient load = new V5LoadClient();
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
        double seconds = Double.parseDouble(o.get("seconds"));
        switch (name) {
            case "first":
                return first(o.get("url"), o.get("topic"), seconds);
            case "publish":
                return publish(client(o.get("url")), o.get("topic"),
                        Boolean.parseBoolean(o.get("batching")),
                        Integer.parseInt(o.get("pending")), Integer.parseInt(o.get("size")),
                        seconds);
            default:
                throw new IllegalArgumentException("unknown command " + name);
        }
    }

    private PulsarClient client(String url) throws PulsarClientException {
        PulsarClient client = clients.get(url);
        if (client == null) {
            client = PulsarClient.builder().serviceUrl(url).build();
            clients.put(url, client);
        }
        return client;
    }

    /** Connect to a broker that is just starting, until one message is acknowledged. */
    private String first(String url, String topic, double seconds) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        int port = Integer.parseInt(url.substring(url.lastIndexOf(':') + 1));
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
            try (PulsarClient client = PulsarClient.builder().serviceUrl(url)
                            .operationTimeout(Duration.ofSeconds(2)).build();
                    Producer<byte[]> producer = producer(client, topic, false).create()) {
                producer.newMessage().value(new byte[100]).send();
                return "{}";
            } catch (PulsarClientException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(10);
            }
        }
    }

    private static ProducerBuilder<byte[]> producer(
            PulsarClient client, String topic, boolean batching) {
        ProducerBuilder<byte[]> builder =
                client.newProducer(Schema.bytes()).topic(topic).blockIfQueueFull(true);
        return batching ? builder : builder.batchingPolicy(BatchingPolicy.ofDisabled());
    }

    /**
     * Publish as fast as the client lets us for a while; the clock stops at the last receipt.
     * {@code pending} bounds the unacknowledged messages; 0 leaves it to the client's memory limit.
     */
    private static String publish(
            PulsarClient client, String topic, boolean batching, int pending, int size,
            double seconds) throws Exception {
        byte[] payload = new byte[size];
        new java.util.Random(1).nextBytes(payload); // they do not compress away
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Semaphore acknowledged = new Semaphore(0);
        Semaphore room = new Semaphore(pending == 0 ? Integer.MAX_VALUE : pending);
        try (Producer<byte[]> producer = producer(client, topic, batching).create()) {
            producer.newMessage().value(payload).send();
            AsyncProducer<byte[]> async = producer.async();
            int sent = 0;
            long start = System.nanoTime();
            long end = start + (long) (seconds * 1e9);
            while (System.nanoTime() < end) {
                for (int i = 0; i < BURST; i++) {
                    room.acquire();
                    async.newMessage().value(payload).send().whenComplete((id, error) -> {
                        if (error != null) {
                            failure.set(error);
                        }
                        room.release();
                        acknowledged.release();
                    });
                }
                sent += BURST;
            }
            async.flush();
            if (!acknowledged.tryAcquire(sent, 60, TimeUnit.SECONDS)) {
                throw new IllegalStateException("publishes were not answered", failure.get());
            }
            double elapsed = (System.nanoTime() - start) / 1e9;
            if (failure.get() != null) {
                throw new IllegalStateException("a publish failed", failure.get());
            }
            return String.format("{\"messages\": %d, \"seconds\": %.6f}", sent, elapsed);
        }
    }
}
