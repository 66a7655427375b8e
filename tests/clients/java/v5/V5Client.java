import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

/**
 * What an application does with Pulsar 5's client, against a running broker.
 *
 * <p>Arguments: the addresses of its binary and its HTTP port. A line of the input has the name of
 * a scenario, and the output then {@code PASS name} or {@code FAIL name: reason}. In between it may
 * say {@code ASK something}, and the next line of the input says that this is done.
 */
public final class V5Client {
    private static final BufferedReader INPUT = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private V5Client() {}

    /** One thing that an application does. */
    interface Scenario {
        void run(Broker broker) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Map<String, Scenario> scenarios = new TreeMap<>();
        Producing.addTo(scenarios);
        Queues.addTo(scenarios);
        Streams.addTo(scenarios);
        Checkpoints.addTo(scenarios);
        Namespaces.addTo(scenarios);
        Growing.addTo(scenarios);
        Killing.addTo(scenarios);
        for (String name = INPUT.readLine(); name != null; name = INPUT.readLine()) {
            try (Broker broker = new Broker(args[0], args[1], name.replace('_', '-'))) {
                scenarios.get(name).run(broker);
                say("PASS " + name);
            } catch (Exception | Error e) {
                e.printStackTrace();
                say("FAIL " + name + ": " + String.valueOf(e).replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    /** Have something done by who runs this program, and wait for it. */
    static synchronized void ask(String what) throws IOException {
        say("ASK " + what);
        INPUT.readLine();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
