import static java.util.stream.Collectors.toSet;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.GenericRecord;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Producers, and what they and the broker make of topics, names and schemas. */
@SuppressWarnings("try")
final class Producing {
    private Producing() {}

    static void addTo(Map<String, V5Client.Scenario> scenarios) {
        scenarios.put("keyed", Producing::keyed);
        scenarios.put("keyless", Producing::keyless);
        scenarios.put("batches", Producing::batches);
        scenarios.put("chunks", Producing::chunks);
        scenarios.put("metadata", Producing::metadata);
        scenarios.put("created_by_use", Producing::createdByUse);
        scenarios.put("schemas", Producing::schemas);
        scenarios.put("schema_evolution", Producing::schemaEvolution);
        scenarios.put("refused", Producing::refused);
    }

    /** A type of messages. */
    public static final class Order {
        public String item;
        public int count;
    }

    /** The same, with a field that another type. */
    public static final class OddOrder {
        public String item;
        public boolean count;
    }

    private static void keyed(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        try (Producer<String> producer = broker.produces(topic);
                QueueConsumer<String> consumer = broker.queue(topic).subscribe()) {
            Parts.publish(producer, 0, 200, 20);
            Parts.Received received = Parts.receive(200, Parts.taker(consumer));
            received.once();
            Parts.equal(20, received.takersByKey.size());
        }
    }

    private static void keyless(Broker broker) throws Exception {
        String topic = broker.partitioned("t", 4);
        try (Producer<String> producer = broker.producer(topic)
                        .batchingPolicy(BatchingPolicy.ofDisabled()).create();
                QueueConsumer<String> consumer = broker.queue(topic).subscribe()) {
            for (int i = 0; i < 20; i++) {
                producer.newMessage().value(String.valueOf(i)).send();
            }
            Parts.receive(20, Parts.taker(consumer)).once();
            for (int partition = 0; partition < 4; partition++) {
                Parts.equal(5L, broker.published("t-partition-" + partition));
            }
        }
    }

    private static void batches(Broker broker) throws Exception {
        for (CompressionType type : CompressionType.values()) {
            String topic = broker.persistent(type.name());
            BatchingPolicy batching = BatchingPolicy.builder().maxMessages(50)
                    .maxPublishDelay(Duration.ofMillis(20)).build();
            try (Producer<String> producer = broker.producer(topic).batchingPolicy(batching)
                            .compressionPolicy(CompressionPolicy.of(type)).create();
                    QueueConsumer<String> consumer = broker.queue(topic).subscribe()) {
                Parts.publish(producer, 0, 200, 0);
                Parts.receive(200, Parts.taker(consumer)).once();
            }
        }
    }

    private static void chunks(Broker broker) throws Exception {
        String topic = broker.persistent("t");
        byte[] large = new byte[300_000];
        new java.util.Random(7).nextBytes(large);
        try (Producer<byte[]> producer = broker.client.newProducer(Schema.bytes()).topic(topic)
                        .batchingPolicy(BatchingPolicy.ofDisabled())
                        .chunkingPolicy(
                                ChunkingPolicy.builder().enabled(true).chunkSize(64_000).build())
                        .create();
                QueueConsumer<byte[]> consumer = broker.client.newQueueConsumer(Schema.bytes())
                        .topic(topic).subscriptionName("s").subscribe()) {
            producer.newMessage().value(large).send();
            Message<byte[]> message = consumer.receive(Broker.PATIENCE);
            Parts.check(message != null && java.util.Arrays.equals(large, message.value()),
                    "it is another message");
        }
    }

    private static void metadata(Broker broker) throws Exception {
        String topic = broker.persistent("t");
        Instant event = Instant.ofEpochMilli(1_234_567);
        try (Producer<String> producer = broker.producer(topic).producerName("me").create();
                QueueConsumer<String> consumer = broker.queue(topic).subscribe()) {
            producer.newMessage().value("0").key("k").eventTime(event).sequenceId(7)
                    .properties(Map.of("a", "b")).send();
            Instant sent = Instant.now();
            producer.newMessage().value("1").deliverAfter(Duration.ofSeconds(2)).send();
            Message<String> message = consumer.receive(Broker.PATIENCE);
            Parts.equal("0", message.value());
            Parts.equal("k", message.key().orElse(""));
            Parts.equal(event, message.eventTime().orElse(null));
            Parts.equal(7L, message.sequenceId());
            Parts.equal("b", message.properties().get("a"));
            Parts.check(message.producerName().orElse("").startsWith("me"), "another producer");
            MessageId id = MessageId.fromByteArray(message.id().toByteArray());
            Parts.equal(0, id.compareTo(message.id()));
            Parts.equal("1", consumer.receive(Broker.PATIENCE).value());
            // A broker may deliver it a second early.
            Parts.check(Duration.between(sent, Instant.now()).toMillis() >= 900, "it came early");
        }
    }

    private static void createdByUse(Broker broker) throws Exception {
        for (String topic : new String[] {
            broker.name("short"), broker.persistent("full"), broker.scalable("scalable")
        }) {
            try (Producer<String> producer = broker.produces(topic)) {
                producer.newMessage().value("0").send();
            }
            try (QueueConsumer<String> consumer = broker.queue(topic).subscribe()) {
                Parts.receive(1, Parts.taker(consumer));
            }
        }
        // Both names are those of one topic.
        try (QueueConsumer<String> consumer =
                broker.queue(broker.persistent("scalable")).subscriptionName("2").subscribe()) {
            Parts.receive(1, Parts.taker(consumer));
        }
        String topics = broker.call("GET", "/persistent/public/default", "");
        for (String topic : new String[] {"short", "full", "scalable"}) {
            Parts.check(topics.contains("\"" + broker.persistent(topic) + "\""), topics);
        }
        Parts.check(!topics.contains("topic://"), topics);
    }

    private static void schemas(Broker broker) throws Exception {
        sends(broker, "int", Schema.int32(), 42);
        sends(broker, "long", Schema.int64(), 1L << 40);
        sends(broker, "double", Schema.float64(), 0.5);
        sends(broker, "bool", Schema.bool(), true);
        Order order = new Order();
        order.item = "espresso";
        order.count = 2;
        for (Schema<Order> schema : Set.of(Schema.json(Order.class), Schema.avro(Order.class))) {
            String topic = broker.persistent(schema.schemaInfo().type().name());
            try (Producer<Order> producer =
                            broker.client.newProducer(schema).topic(topic).create();
                    QueueConsumer<Order> typed = broker.client.newQueueConsumer(schema)
                            .topic(topic).subscriptionName("typed").subscribe();
                    QueueConsumer<GenericRecord> generic = broker.client
                            .newQueueConsumer(Schema.autoConsume())
                            .topic(topic).subscriptionName("generic").subscribe()) {
                producer.newMessage().value(order).send();
                Order found = typed.receive(Broker.PATIENCE).value();
                Parts.equal("espresso 2", found.item + " " + found.count);
                GenericRecord record = generic.receive(Broker.PATIENCE).value();
                Parts.equal("espresso 2", record.field("item") + " " + record.field("count"));
            }
        }
    }

    private static <T> void sends(Broker broker, String name, Schema<T> schema, T value)
            throws Exception {
        String topic = broker.persistent(name);
        try (Producer<T> producer = broker.client.newProducer(schema).topic(topic).create();
                QueueConsumer<T> consumer = broker.client.newQueueConsumer(schema).topic(topic)
                        .subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            producer.newMessage().value(value).send();
            Parts.equal(value, consumer.receive(Broker.PATIENCE).value());
        }
    }

    private static void schemaEvolution(Broker broker) throws Exception {
        String topic = broker.persistent("t");
        Order order = new Order();
        order.item = "tea";
        try (Producer<Order> producer =
                broker.client.newProducer(Schema.avro(Order.class)).topic(topic).create()) {
            producer.newMessage().value(order).send();
        }
        // A producer attaches to a segment when it first sends.
        Parts.refused("chema", () -> {
            try (Producer<OddOrder> producer =
                    broker.client.newProducer(Schema.avro(OddOrder.class)).topic(topic).create()) {
                return producer.newMessage().value(new OddOrder()).send();
            }
        });
    }

    private static void refused(Broker broker) throws Exception {
        broker.partitioned("t", 2);
        for (String topic : new String[] {
            broker.persistent("t") + "-partition-0",
            broker.persistent("t").replace("public/default", "public/none"),
        }) {
            Parts.refused("", () -> broker.produces(topic).newMessage().value("0").send());
            Parts.refused("", () -> broker.queue(topic).subscribe());
            Parts.refused("", () -> broker.stream(topic, "c").subscribe());
        }
        try {
            broker.produces("non-persistent://public/default/" + broker.name("n"));
            throw new AssertionError("the client takes topics that are not persistent");
        } catch (UnsupportedOperationException e) {
            Parts.check(e.getMessage().contains("non-persistent"), "it was told " + e);
        }
        Parts.refused("ransaction", () -> broker.client.newTransaction());
    }
}
