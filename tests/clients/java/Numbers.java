import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Publishes {@code java-0}, {@code java-1} and so on to a partitioned topic, and consumes all that
 * is in it, until its input says "stop"; it consumes on until its input ends.
 *
 * <p>Arguments: service URL, topic, milliseconds between two messages. Prints {@code receipt
 * PARTITION TEXT} and {@code delivered PARTITION TEXT}, {@code failed REASON}, and {@code flushed}
 * when there is an answer to each message.
 */
public final class Numbers {
    private static final String NAME = "java";

    private Numbers() {}

    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0])
                .operationTimeout(30, TimeUnit.SECONDS).build();
        client.newConsumer().topic(args[1]).subscriptionName(NAME)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .messageListener((consumer, message) -> {
                    MessageIdAdv id = (MessageIdAdv) message.getMessageId();
                    say("delivered " + id.getPartitionIndex() + " "
                            + new String(message.getData(), StandardCharsets.UTF_8));
                    consumer.acknowledgeAsync(message);
                }).subscribe();
        Producer<byte[]> producer = client.newProducer().topic(args[1])
                .producerName(NAME).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true)
                .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create();
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (int number = 0; !input.ready(); number++) {
            String text = NAME + "-" + number;
            byte[] payload = text.getBytes(StandardCharsets.UTF_8);
            producer.sendAsync(payload).whenComplete((id, failure) -> say(failure == null
                    ? "receipt " + ((MessageIdAdv) id).getPartitionIndex() + " " + text
                    : "failed " + text + ": " + failure.toString().replace('\n', ' ')));
            Thread.sleep(Long.parseLong(args[2]));
        }
        producer.flush();
        say("flushed");
        input.readLine();
        input.readLine();
        client.close();
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
