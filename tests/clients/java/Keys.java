import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/**
 * Publishes a message for each key: {@code key-0}, {@code key-1} and so on.
 *
 * <p>Arguments: service URL, topic, number of keys, and the hashing scheme if not the default one.
 */
public final class Keys {
    private Keys() {}

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            ProducerBuilder<String> builder = client.newProducer(Schema.STRING).topic(args[1]);
            if (args.length > 3) {
                builder.hashingScheme(HashingScheme.valueOf(args[3]));
            }
            try (Producer<String> producer = builder.create()) {
                for (int i = 0; i < Integer.parseInt(args[2]); i++) {
                    producer.newMessage().key("key-" + i).value("java").send();
                }
            }
        }
    }
}
