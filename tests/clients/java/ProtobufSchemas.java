import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.Field;
import com.google.protobuf.SourceContext;
import com.google.protobuf.Syntax;
import com.google.protobuf.Type;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Publishes messages that come with Protobuf's library, registered in both of the client's ways;
 * or, with {@code read} as the third argument, receives them and compares.
 */
public final class ProtobufSchemas {
    private static final int COUNT = 60;

    private ProtobufSchemas() {}

    public static void main(String[] args) throws Exception {
        boolean read = args.length > 1 && args[1].equals("read");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            for (int way = 0; way < 2; way++) {
                Schema<Type> types =
                        way == 0 ? Schema.PROTOBUF(Type.class) : Schema.PROTOBUF_NATIVE(Type.class);
                Schema<FieldDescriptorProto> fields = way == 0
                        ? Schema.PROTOBUF(FieldDescriptorProto.class)
                        : Schema.PROTOBUF_NATIVE(FieldDescriptorProto.class);
                exchange(client, "proto3-" + way, types, read, ProtobufSchemas::type);
                exchange(client, "proto2-" + way, fields, read, ProtobufSchemas::field);
            }
        }
    }

    private interface Author<T> {
        T message(int n);
    }

    private static <T> void exchange(
            PulsarClient client, String topic, Schema<T> schema, boolean read, Author<T> author)
            throws Exception {
        if (!read) {
            try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
                for (int n = 0; n < COUNT; n++) {
                    producer.sendAsync(author.message(n));
                }
                producer.flush();
            }
            return;
        }
        try (Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int n = 0; n < COUNT; n++) {
                T found = consumer.receive(10, TimeUnit.SECONDS).getValue();
                if (!author.message(n).equals(found)) {
                    throw new IllegalStateException(topic + ": message " + n + " is " + found);
                }
            }
        }
    }

    private static Type type(int n) {
        Type.Builder type = Type.newBuilder().setName("n" + n);
        type.setSyntax(n % 2 == 0 ? Syntax.SYNTAX_PROTO2 : Syntax.SYNTAX_PROTO3);
        for (int k = 0; k < n % 4; k++) {
            type.addOneofs("o" + k);
            Field.Builder field = Field.newBuilder().setNumber(k - 1).setPacked(k == 1);
            type.addFields(field.setKind(Field.Kind.TYPE_DOUBLE).setName("é"));
        }
        if (n % 3 == 0) {
            type.setSourceContext(SourceContext.newBuilder().setFileName(n == 0 ? "" : "f"));
        }
        return type.build();
    }

    private static FieldDescriptorProto field(int n) {
        FieldDescriptorProto.Builder field = FieldDescriptorProto.newBuilder();
        field.setNumber(n % 5).setType(FieldDescriptorProto.Type.TYPE_SINT64);
        if (n % 2 == 0) {
            field.setName("").getOptionsBuilder().setPacked(n % 4 == 0);
        }
        return field.build();
    }
}
