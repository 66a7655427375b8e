import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.client.api.schema.RecordSchemaBuilder;
import org.apache.pulsar.client.api.schema.SchemaBuilder;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * What an application does with the official Java client, against a running broker.
 *
 * <p>Arguments: service URL, topic prefix, an existing partitioned topic of four partitions, and
 * the scenarios. Prints {@code PASS name} or {@code FAIL name: reason} for each.
 */
@SuppressWarnings("try")
public final class Smoke {
    private static final int SECONDS = 10;

    private final String url;
    private final PulsarClient client;
    private final String prefix;
    private final String partitioned;

    private Smoke(String url, PulsarClient client, String prefix, String partitioned) {
        this.url = url;
        this.client = client;
        this.prefix = prefix;
        this.partitioned = partitioned;
    }

    private interface Scenario {
        void run(String topic) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0])
                .operationTimeout(SECONDS, TimeUnit.SECONDS).build();
        Smoke smoke = new Smoke(args[0], client, args[1], args[2]);
        for (String name : Arrays.copyOfRange(args, 3, args.length)) {
            try {
                smoke.scenario(name).run(smoke.prefix + name);
                System.out.println("PASS " + name);
            } catch (Exception | AssertionError e) {
                e.printStackTrace();
                String reason = String.valueOf(e).replace('\n', ' ');
                System.out.println("FAIL " + name + ": " + reason);
            }
            System.out.flush();
        }
        client.shutdown();
        System.exit(0);
    }

    private Scenario scenario(String name) {
        switch (name) {
            case "batched_compressed":
                return this::batchedCompressed;
            case "keys_and_properties":
                return this::keysAndProperties;
            case "shared":
                return this::shared;
            case "failover":
                return this::failover;
            case "exclusive":
                return this::exclusive;
            case "reader":
                return this::reader;
            case "seek":
                return this::seek;
            case "cumulative_ack":
                return this::cumulativeAck;
            case "negative_ack":
                return this::negativeAck;
            case "partitioned":
                return topic -> partitioned();
            case "many_topics":
                return this::manyTopics;
            case "chunked":
                return this::chunked;
            case "schema":
                return this::schema;
            case "schema_types":
                return this::schemaTypes;
            case "schema_evolution":
                return this::schemaEvolution;
            case "ack_timeout":
                return this::ackTimeout;
            case "ack_receipts":
                return this::ackReceipts;
            case "retry_letter":
                return this::retryLetter;
            case "hashing":
                return topic -> hashing();
            case "readers_of_key_ranges":
                return this::readersOfKeyRanges;
            case "transactions":
                return topic -> transactions();
            default:
                throw new IllegalArgumentException("no scenario " + name);
        }
    }

    private void batchedCompressed(String topic) throws Exception {
        for (CompressionType type : CompressionType.values()) {
            String name = topic + "-" + type;
            try (Consumer<byte[]> consumer = consumer(name).subscribe();
                    Producer<byte[]> producer = client.newProducer().topic(name)
                            .compressionType(type).batchingMaxMessages(50)
                            .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create()) {
                publish(producer, 200);
                equal(numbered(200), texts(consumer, 200));
            }
        }
    }

    private void keysAndProperties(String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            MessageId id = producer.newMessage().key("k").orderingKey(bytes("o")).eventTime(12345)
                    .property("a", "1").property("b", "").value(bytes("v")).send();
            producer.newMessage().value(new byte[0]).send();
            Message<byte[]> message = next(consumer);
            equal("k", message.getKey());
            equal("o", new String(message.getOrderingKey(), StandardCharsets.UTF_8));
            equal(12345L, message.getEventTime());
            equal(Map.of("a", "1", "b", ""), message.getProperties());
            equal("v", text(message));
            equal(id, message.getMessageId());
            equal(0, next(consumer).getData().length);
        }
    }

    private void shared(String topic) throws Exception {
        ConsumerBuilder<byte[]> builder = consumer(topic).receiverQueueSize(10)
                .subscriptionType(SubscriptionType.Shared);
        try (Consumer<byte[]> one = builder.subscribe();
                Consumer<byte[]> two = builder.clone().subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            publish(producer, 100);
            Set<String> all = new HashSet<>();
            Set<String> of1 = new HashSet<>();
            for (int idle = 0; all.size() < 100 && idle < 100; idle++) {
                for (Consumer<byte[]> consumer : List.of(one, two)) {
                    Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        idle = 0;
                        check(all.add(text(message)), "a message came twice");
                        if (consumer == one) {
                            of1.add(text(message));
                        }
                        consumer.acknowledge(message);
                    }
                }
            }
            equal(new HashSet<>(numbered(100)), all);
            check(of1.size() > 10 && of1.size() < 90, "not shared: " + of1.size());
        }
    }

    private void failover(String topic) throws Exception {
        ConsumerBuilder<byte[]> builder =
                consumer(topic).subscriptionType(SubscriptionType.Failover);
        try (Consumer<byte[]> first = builder.clone().consumerName("a").subscribe();
                Consumer<byte[]> second = builder.clone().consumerName("b").subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            publish(producer, 20);
            Consumer<byte[]> active = first;
            Consumer<byte[]> standby = second;
            Message<byte[]> message = first.receive(2, TimeUnit.SECONDS);
            if (message == null) {
                active = second;
                standby = first;
                message = next(second);
            }
            equal("0", text(message));
            active.acknowledge(message);
            for (int i = 1; i < 10; i++) {
                message = next(active);
                equal(Integer.toString(i), text(message));
                active.acknowledge(message);
            }
            check(standby.receive(200, TimeUnit.MILLISECONDS) == null, "the standby got some");
            active.close();
            equal(numbered(20).subList(10, 20), texts(standby, 10));
        }
    }

    private void exclusive(String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic).subscribe()) {
            try {
                consumer(topic).subscribe().close();
            } catch (PulsarClientException.ConsumerBusyException expected) {
                return;
            }
            throw new AssertionError("a second exclusive consumer was let in");
        }
    }

    private void reader(String topic) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = unbatched(topic).create()) {
            for (int i = 0; i < 10; i++) {
                ids.add(producer.send(bytes(Integer.toString(i))));
            }
        }
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            int number = 0;
            while (reader.hasMessageAvailable()) {
                equal(Integer.toString(number++), text(reader.readNext(SECONDS, TimeUnit.SECONDS)));
            }
            equal(10, number);
        }
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(ids.get(4)).create()) {
            equal("5", text(reader.readNext(SECONDS, TimeUnit.SECONDS)));
            reader.seek(ids.get(7));
            equal("8", text(reader.readNext(SECONDS, TimeUnit.SECONDS)));
        }
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(MessageId.latest).startMessageIdInclusive().create()) {
            check(reader.hasMessageAvailable(), "the last message is not there");
            equal("9", text(reader.readNext(SECONDS, TimeUnit.SECONDS)));
            check(!reader.hasMessageAvailable(), "something after the last message");
        }
    }

    private void seek(String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            publish(producer, 10);
            List<Message<byte[]>> messages = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                messages.add(next(consumer));
                consumer.acknowledge(messages.get(i));
            }
            consumer.seek(messages.get(3).getMessageId());
            equal("4", text(next(consumer)));
            Thread.sleep(5);
            long now = System.currentTimeMillis();
            producer.send(bytes("10"));
            consumer.seek(now);
            equal("10", text(next(consumer)));
            consumer.seek(MessageId.earliest);
            equal("0", text(next(consumer)));
        }
    }

    private void cumulativeAck(String topic) throws Exception {
        try (Producer<byte[]> producer = unbatched(topic).create()) {
            try (Consumer<byte[]> consumer =
                    consumer(topic).isAckReceiptEnabled(true).subscribe()) {
                publish(producer, 10);
                for (int i = 0; i < 5; i++) {
                    Message<byte[]> message = next(consumer);
                    if (i == 4) {
                        consumer.acknowledgeCumulative(message);
                    }
                }
            }
            try (Consumer<byte[]> consumer = consumer(topic).subscribe()) {
                equal(numbered(10).subList(5, 10), texts(consumer, 5));
            }
        }
    }

    private void negativeAck(String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic)
                        .subscriptionType(SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            producer.send(bytes("again"));
            Message<byte[]> message = next(consumer);
            equal(0, message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
            message = next(consumer);
            equal("again", text(message));
            equal(1, message.getRedeliveryCount());
            consumer.acknowledge(message);
        }
    }

    private void partitioned() throws Exception {
        equal(4, client.getPartitionsForTopic(partitioned, false).get().size());
        try (Consumer<byte[]> consumer = consumer(partitioned).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(partitioned).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                String key = Integer.toString(i % 20);
                sent.add(producer.newMessage().key(key).value(bytes("" + i)).sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> future : sent) {
                future.get(SECONDS, TimeUnit.SECONDS);
            }
            Map<String, Integer> last = new HashMap<>();
            Set<String> topics = new HashSet<>();
            for (int i = 0; i < 200; i++) {
                Message<byte[]> message = next(consumer);
                int number = Integer.parseInt(text(message));
                Integer previous = last.put(message.getKey(), number);
                check(previous == null || previous < number, "a key is out of order");
                topics.add(message.getTopicName());
                consumer.acknowledge(message);
            }
            equal(4, topics.size());
        }
    }

    private void manyTopics(String topic) throws Exception {
        List<String> topics = List.of(topic + "-x", topic + "-y", topic + "-z");
        for (String name : topics) {
            try (Producer<byte[]> producer = unbatched(name).create()) {
                producer.send(bytes(name));
            }
        }
        ConsumerBuilder<byte[]> byList = client.newConsumer().topics(topics)
                .subscriptionName("list")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        try (Consumer<byte[]> consumer = byList.subscribe()) {
            equal(new HashSet<>(topics), new HashSet<>(texts(consumer, 3)));
        }
        ConsumerBuilder<byte[]> byPattern = client.newConsumer().topicsPattern(topic + "-.*")
                .subscriptionName("pattern")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        try (Consumer<byte[]> consumer = byPattern.subscribe()) {
            equal(new HashSet<>(topics), new HashSet<>(texts(consumer, 3)));
            // The client asks for new topics every minute: this one the broker has to tell it of.
            String created = topic + "-new";
            try (Producer<byte[]> producer = unbatched(created).create()) {
                producer.send(bytes(created));
            }
            equal(created, text(next(consumer)));
        }
    }

    private void chunked(String topic) throws Exception {
        byte[] large = new byte[12 << 20];
        new java.util.Random(1).nextBytes(large);
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer =
                        unbatched(topic).enableChunking(true).create()) {
            producer.send(large);
            producer.send(bytes("small"));
            Message<byte[]> message = next(consumer);
            check(Arrays.equals(large, message.getData()), "the chunks do not make the message");
            consumer.acknowledge(message);
            equal("small", text(next(consumer)));
        }
    }

    /** A value with fields. */
    public static final class Flight {
        public String carrier;
        public int delay;
    }

    private void schema(String topic) throws Exception {
        try (Consumer<Flight> consumer = client.newConsumer(Schema.JSON(Flight.class))
                        .topic(topic).subscriptionName("s").subscribe();
                Producer<Flight> producer =
                        client.newProducer(Schema.JSON(Flight.class)).topic(topic).create()) {
            Flight flight = new Flight();
            flight.carrier = "UA";
            flight.delay = -4;
            producer.send(flight);
            Message<Flight> message = consumer.receive(SECONDS, TimeUnit.SECONDS);
            equal("UA", message.getValue().carrier);
            equal(-4, message.getValue().delay);
        }
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING)
                        .topic(topic + "-string").subscriptionName("s").subscribe();
                Producer<String> producer =
                        client.newProducer(Schema.STRING).topic(topic + "-string").create()) {
            producer.send("grüße");
            equal("grüße", consumer.receive(SECONDS, TimeUnit.SECONDS).getValue());
        }
    }

    private void schemaTypes(String topic) throws Exception {
        long millis = 1767225600123L;
        exchange(topic, Schema.BOOL, true);
        exchange(topic, Schema.INT8, (byte) -7);
        exchange(topic, Schema.INT16, (short) 300);
        exchange(topic, Schema.INT32, 1 << 20);
        exchange(topic, Schema.INT64, 1L << 40);
        exchange(topic, Schema.FLOAT, 0.5f);
        exchange(topic, Schema.DOUBLE, 1.5);
        exchange(topic, Schema.DATE, new java.util.Date(millis));
        exchange(topic, Schema.TIME, new java.sql.Time(millis));
        exchange(topic, Schema.TIMESTAMP, new java.sql.Timestamp(millis));
        exchange(topic, Schema.INSTANT, java.time.Instant.ofEpochMilli(millis));
        exchange(topic, Schema.LOCAL_DATE, java.time.LocalDate.of(2026, 2, 3));
        exchange(topic, Schema.LOCAL_TIME, java.time.LocalTime.of(4, 5, 6));
        exchange(topic, Schema.LOCAL_DATE_TIME, java.time.LocalDateTime.of(2026, 2, 3, 4, 5));
        KeyValue<String, Integer> pair = new KeyValue<>("key", 5);
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            exchange(topic + encoding, Schema.KeyValue(Schema.STRING, Schema.INT32, encoding), pair);
        }
        Schema<KeyValue<Flight, Flight>> pairs = Schema.KeyValue(Flight.class, Flight.class);
        try (Producer<?> ignored = client.newProducer(pairs).topic(topic + "-pairs").create()) {
            refused(topic + "-pairs", Schema.KeyValue(Schema.STRING, Schema.INT32));
        }
    }

    /** One value there and back; then nobody brings another type to the topic. */
    private <T> void exchange(String prefix, Schema<T> schema, T value) throws Exception {
        String topic = prefix + "-" + schema.getSchemaInfo().getType();
        try (Consumer<T> consumer =
                        client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(value);
            equal(value, consumer.receive(SECONDS, TimeUnit.SECONDS).getValue());
            refused(topic, Schema.JSON(Flight.class));
        }
    }

    private void refused(String topic, Schema<?> schema) throws Exception {
        try (Producer<?> producer = client.newProducer(schema).topic(topic).create()) {
            check(false, producer + " was admitted");
        } catch (PulsarClientException.IncompatibleSchemaException expected) {
            check(expected.getMessage().contains("Incompatible schema"), expected.getMessage());
        }
    }

    private void schemaEvolution(String topic) throws Exception {
        for (SchemaType type : List.of(SchemaType.AVRO, SchemaType.JSON)) {
            evolve(topic + "-" + type, type);
        }
    }

    /** One producer sends records of two versions; a consumer that knows neither reads both. */
    private void evolve(String topic, SchemaType type) throws Exception {
        RecordSchemaBuilder first = SchemaBuilder.record("Flight");
        first.field("carrier").type(SchemaType.STRING);
        RecordSchemaBuilder second = SchemaBuilder.record("Flight");
        second.field("carrier").type(SchemaType.STRING);
        second.field("delay").type(SchemaType.INT32).defaultValue(7);
        GenericSchema<GenericRecord> old = Schema.generic(first.build(type));
        GenericSchema<GenericRecord> current = Schema.generic(second.build(type));
        try (Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME())
                        .topic(topic).subscriptionName("any").subscribe();
                Producer<GenericRecord> producer =
                        client.newProducer(old).topic(topic).create()) {
            producer.send(old.newRecordBuilder().set("carrier", "UA").build());
            producer.newMessage(current).value(current.newRecordBuilder()
                    .set("carrier", "LH").set("delay", -4).build()).send();
            for (int version = 0; version < 2; version++) {
                Message<GenericRecord> message = any.receive(SECONDS, TimeUnit.SECONDS);
                byte[] expected = ByteBuffer.allocate(8).putLong(version).array();
                check(Arrays.equals(expected, message.getSchemaVersion()), "another version");
                equal(version == 0 ? "UA" : "LH", message.getValue().getField("carrier"));
                equal(version + 1, message.getValue().getFields().size());
            }
            try (Producer<byte[]> bytes =
                    client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
                bytes.send(current.encode(current.newRecordBuilder()
                        .set("carrier", "BA").set("delay", 1).build()));
            }
            GenericRecord last = any.receive(SECONDS, TimeUnit.SECONDS).getValue();
            equal("BA", last.getField("carrier"));
        }
    }

    private void ackTimeout(String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic)
                        .subscriptionType(SubscriptionType.Shared)
                        .ackTimeout(1100, TimeUnit.MILLISECONDS)
                        .ackTimeoutTickTime(100, TimeUnit.MILLISECONDS).subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            producer.send(bytes("forgotten"));
            equal(0, next(consumer).getRedeliveryCount());
            Message<byte[]> message = next(consumer);
            equal("forgotten", text(message));
            equal(1, message.getRedeliveryCount());
            consumer.acknowledge(message);
            check(consumer.receive(1500, TimeUnit.MILLISECONDS) == null, "it came again");
        }
    }

    /** Acknowledgements of single messages, of lists and of batches, each with its answer. */
    private void ackReceipts(String topic) throws Exception {
        for (SubscriptionType type : SubscriptionType.values()) {
            String name = topic + "-" + type;
            ConsumerBuilder<byte[]> builder = consumer(name).subscriptionType(type)
                    .isAckReceiptEnabled(true).enableBatchIndexAcknowledgment(true)
                    .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS);
            try (Consumer<byte[]> consumer = builder.subscribe();
                    Producer<byte[]> single = unbatched(name).create();
                    Producer<byte[]> batches = client.newProducer().topic(name)
                            .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
                publish(single, 4);
                publish(batches, 6);
                List<MessageId> ids = new ArrayList<>();
                for (int i = 0; i < 10; i++) {
                    ids.add(next(consumer).getMessageId());
                }
                acknowledged(consumer.acknowledgeAsync(ids.get(0)));
                acknowledged(consumer.acknowledgeAsync(ids.subList(1, 4)));
                acknowledged(consumer.acknowledgeAsync(ids.get(6)));
                acknowledged(consumer.acknowledgeAsync(ids.get(0)));
                if (type == SubscriptionType.Exclusive || type == SubscriptionType.Failover) {
                    acknowledged(consumer.acknowledgeCumulativeAsync(ids.get(8)));
                }
                acknowledged(consumer.acknowledgeAsync(ids.subList(4, 10)));
            }
            try (Consumer<byte[]> consumer = builder.subscribe()) {
                equal(null, consumer.receive(200, TimeUnit.MILLISECONDS));
            }
        }
    }

    private static void acknowledged(CompletableFuture<Void> answer) throws Exception {
        answer.get(SECONDS, TimeUnit.SECONDS);
    }

    /** Two readers divide the keys of a topic; each message comes to one of them. */
    private void readersOfKeyRanges(String topic) throws Exception {
        int count = 40;
        List<Reader<byte[]>> readers = new ArrayList<>();
        try (Producer<byte[]> producer = unbatched(topic).create()) {
            producer.newMessage().key("0").value(bytes("0")).send();
            for (Range range : List.of(Range.of(0, 32767), Range.of(32768, 65535))) {
                readers.add(client.newReader().topic(topic).startMessageId(MessageId.earliest)
                        .keyHashRange(range).create());
            }
            for (int i = 1; i < count; i++) {
                producer.newMessage().key(Integer.toString(i)).value(bytes(Integer.toString(i)))
                        .send();
            }
        }
        Set<String> seen = new HashSet<>();
        for (Reader<byte[]> reader : readers) {
            int last = -1;
            Message<byte[]> message = reader.readNext(SECONDS, TimeUnit.SECONDS);
            while (message != null) {
                int number = Integer.parseInt(text(message));
                check(number > last, number + " comes after " + last);
                last = number;
                check(seen.add(text(message)), number + " came to both");
                message = reader.readNext(500, TimeUnit.MILLISECONDS);
            }
            check(last >= 0 && seen.size() < count + (reader == readers.get(1) ? 1 : 0),
                    "not divided");
            reader.close();
        }
        equal(new HashSet<>(numbered(count)), seen);
    }

    private void retryLetter(String topic) throws Exception {
        try (Consumer<byte[]> dead = consumer(topic + "-s-DLQ").subscribe();
                Consumer<byte[]> consumer = consumer(topic)
                        .subscriptionType(SubscriptionType.Shared).enableRetry(true)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build())
                        .subscribe();
                Producer<byte[]> producer = unbatched(topic).create()) {
            producer.newMessage().property("a", "1").value(bytes("later")).send();
            for (int i = 0; i <= 2; i++) {
                Message<byte[]> message = next(consumer);
                equal("later", text(message));
                equal("1", message.getProperty("a"));
                equal(i == 0 ? null : Integer.toString(i), message.getProperty("RECONSUMETIMES"));
                equal(topic + (i == 0 ? "" : "-s-RETRY"), message.getTopicName());
                consumer.reconsumeLater(message, 100, TimeUnit.MILLISECONDS);
            }
            equal("later", text(next(dead)));
        }
    }

    /** Keys whose hashes are known, and where they go in a topic of four partitions. */
    private void hashing() throws Exception {
        Map<String, Integer> murmur = Map.of("hello", 3, "test", 3, "key1", 1);
        for (HashingScheme scheme : HashingScheme.values()) {
            try (Consumer<byte[]> consumer = client.newConsumer().topic(partitioned)
                            .subscriptionName("hashing-" + scheme).subscribe();
                    Producer<byte[]> producer = client.newProducer().topic(partitioned)
                            .hashingScheme(scheme).enableBatching(false).create()) {
                for (String key : murmur.keySet()) {
                    producer.newMessage().key(key).value(bytes("x")).send();
                }
                for (int i = 0; i < murmur.size(); i++) {
                    Message<byte[]> message = next(consumer);
                    String key = message.getKey();
                    int expected = scheme == HashingScheme.Murmur3_32Hash
                            ? murmur.get(key) : (key.hashCode() & Integer.MAX_VALUE) % 4;
                    equal(partitioned + "-partition-" + expected, message.getTopicName());
                }
            }
        }
    }

    /** The broker has no coordinator, and the client says so at once. */
    private void transactions() throws Exception {
        try {
            PulsarClient.builder().serviceUrl(url).enableTransaction(true).build().close();
        } catch (PulsarClientException expected) {
            check(String.valueOf(expected).contains("ransaction coordinator"), "" + expected);
            return;
        }
        throw new AssertionError("transactions are enabled");
    }

    // -- helpers -----------------------------------------------------------------------------

    private ConsumerBuilder<byte[]> consumer(String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s");
    }

    private ProducerBuilder<byte[]> unbatched(String topic) {
        return client.newProducer().topic(topic).enableBatching(false);
    }

    private static void publish(Producer<byte[]> producer, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            sent.add(producer.sendAsync(bytes(Integer.toString(i))));
        }
        producer.flush();
        for (CompletableFuture<MessageId> future : sent) {
            future.get(SECONDS, TimeUnit.SECONDS);
        }
    }

    private static List<String> numbered(int count) {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            texts.add(Integer.toString(i));
        }
        return texts;
    }

    private static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(SECONDS, TimeUnit.SECONDS);
        check(message != null, "no message within " + SECONDS + " s");
        return message;
    }

    private static List<String> texts(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message<byte[]> message = next(consumer);
            texts.add(text(message));
            consumer.acknowledge(message);
        }
        return texts;
    }

    private static String text(Message<byte[]> message) {
        check(message != null, "no message");
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void equal(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    private static void check(boolean holds, String message) {
        if (!holds) {
            throw new AssertionError(message);
        }
    }
}
