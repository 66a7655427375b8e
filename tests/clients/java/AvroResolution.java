import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.pulsar.shade.org.apache.avro.Schema;
import org.apache.pulsar.shade.org.apache.avro.SchemaValidationException;
import org.apache.pulsar.shade.org.apache.avro.SchemaValidator;
import org.apache.pulsar.shade.org.apache.avro.SchemaValidatorBuilder;

/**
 * Asks the Avro library of Pulsar, as its brokers do, whether one schema reads the data of
 * another. A line of the input is the reader's definition, a tab and the writer's; a line of the
 * output is {@code true} or {@code false}.
 */
public final class AvroResolution {
    private AvroResolution() {}

    public static void main(String[] args) throws Exception {
        SchemaValidator backward = new SchemaValidatorBuilder().canReadStrategy().validateLatest();
        BufferedReader input = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] pair = line.split("\t");
            Schema reader = new Schema.Parser().parse(pair[0]);
            Schema writer = new Schema.Parser().parse(pair[1]);
            System.out.println(reads(backward, reader, writer));
        }
    }

    private static boolean reads(SchemaValidator backward, Schema reader, Schema writer) {
        try {
            backward.validate(reader, List.of(writer));
            return true;
        } catch (SchemaValidationException unreadable) {
            return false;
        }
    }
}
