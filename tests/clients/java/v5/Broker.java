import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.CheckpointConsumerBuilder;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumerBuilder;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.ConnectionPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** The broker as one scenario sees it: a client of its own, the admin API, and topics by name. */
final class Broker implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(40);

    final PulsarClient client;
    private final String url;
    private final String web;
    private final String scenario;
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<PulsarClient> others = new ArrayList<>();

    Broker(String url, String web, String scenario) throws PulsarClientException {
        this.url = url;
        this.web = web;
        this.scenario = scenario;
        this.client = newClient();
    }

    private PulsarClient newClient() throws PulsarClientException {
        BackoffPolicy soon =
                BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(500));
        return PulsarClient.builder().serviceUrl(url).operationTimeout(PATIENCE)
                .connectionPolicy(ConnectionPolicy.builder().connectionBackoff(soon).build())
                .build();
    }

    /** One with connections of its own. */
    PulsarClient otherClient() throws PulsarClientException {
        PulsarClient other = newClient();
        others.add(other);
        return other;
    }

    @Override
    public void close() {
        client.shutdown();
        others.forEach(PulsarClient::shutdown);
    }

    // -- topics ---

    /** The short name of a topic of this scenario. */
    String name(String topic) {
        return "v5-" + scenario + "-" + topic;
    }

    String persistent(String topic) {
        return "persistent://public/default/" + name(topic);
    }

    String scalable(String topic) {
        return "topic://public/default/" + name(topic);
    }

    /** Make a topic with partitions; its full name. */
    String partitioned(String topic, int partitions) throws Exception {
        call("PUT", path(topic) + "/partitions", String.valueOf(partitions));
        return persistent(topic);
    }

    void grow(String topic, int partitions) throws Exception {
        call("POST", path(topic) + "/partitions", String.valueOf(partitions));
    }

    /** How many messages a topic, or a partition, has taken. */
    long published(String topic) throws Exception {
        String stats = call("GET", path(topic) + "/stats", "");
        Matcher found = Pattern.compile("\"msgInCounter\" ?: ?(\\d+)").matcher(stats);
        Parts.check(found.find(), "there is no msgInCounter in " + stats);
        return Long.parseLong(found.group(1));
    }

    private String path(String topic) {
        return "/persistent/public/default/" + name(topic);
    }

    String call(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(web + "/admin/v2" + path))
                .header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer = http.send(
                request, HttpResponse.BodyHandlers.ofString(StandardCharsets.UTF_8));
        Parts.check(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode()
                + " " + answer.body());
        return answer.body();
    }

    // -- what attaches to them, of strings ---

    ProducerBuilder<String> producer(String topic) {
        return client.newProducer(Schema.string()).topic(topic);
    }

    Producer<String> produces(String topic) throws PulsarClientException {
        return producer(topic).create();
    }

    QueueConsumerBuilder<String> queue(String topic) {
        return queue(client).topic(topic);
    }

    static QueueConsumerBuilder<String> queue(PulsarClient client) {
        return client.newQueueConsumer(Schema.string()).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    StreamConsumerBuilder<String> stream(String topic, String consumer) {
        return stream(client, consumer).topic(topic);
    }

    static StreamConsumerBuilder<String> stream(PulsarClient client, String consumer) {
        return client.newStreamConsumer(Schema.string()).subscriptionName("s")
                .consumerName(consumer).acknowledgmentGroupTime(Duration.ofMillis(20))
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    CheckpointConsumerBuilder<String> reader(String topic) {
        return client.newCheckpointConsumer(Schema.string()).topic(topic);
    }

    CheckpointConsumer<String> readerOf(String topic, String group, String consumer)
            throws PulsarClientException {
        return reader(topic).consumerGroup(group).consumerName(consumer)
                .startPosition(org.apache.pulsar.client.api.v5.Checkpoint.earliest()).create();
    }
}
