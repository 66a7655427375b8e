import java.io.FileReader;
import java.io.IOException;
import java.io.InputStream;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.client.impl.auth.oauth2.AuthenticationFactoryOAuth2;

/**
 * Logs in at a locked broker with the official Java client, in each way and without success.
 *
 * <p>Arguments: a file of properties with addresses and credentials, and the scenarios, which run
 * side by side; those with tokens that expire come last. Prints {@code PASS name} or {@code FAIL name: reason} for each.
 */
@SuppressWarnings("try")
public final class Logins {
    private static final int WINDOW = 1000;

    /** The client tries again for as long where it gets no answer from a broker. */
    private static final int REFUSAL_SECONDS = 10;

    private final Properties values;
    private final int seconds;

    private Logins(Properties values) {
        this.values = values;
        this.seconds = Integer.parseInt(value("patience_seconds"));
    }

    private interface Scenario {
        void run() throws Exception;
    }

    private interface Attempt {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Properties values = new Properties();
        try (FileReader file = new FileReader(args[0], StandardCharsets.UTF_8)) {
            values.load(file);
        }
        Logins logins = new Logins(values);
        List<String> names = Arrays.asList(args).subList(1, args.length);
        for (boolean late : List.of(false, true)) {
            logins.runAll(names.stream().filter(n -> n.contains("_expires") == late).toList());
        }
        System.exit(0);
    }

    private void runAll(List<String> names) throws InterruptedException {
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String name : names) {
            threads.execute(() -> report(name, () -> scenario(name).run()));
        }
        threads.shutdown();
        threads.awaitTermination(5L * seconds, TimeUnit.SECONDS);
    }

    private static void report(String name, Attempt attempt) {
        String verdict = "PASS " + name;
        try {
            attempt.run();
        } catch (Exception | AssertionError e) {
            e.printStackTrace();
            verdict = "FAIL " + name + ": " + String.valueOf(e).replace('\n', ' ');
        }
        synchronized (System.out) {
            System.out.println(verdict);
            System.out.flush();
        }
    }

    private Scenario scenario(String name) {
        String[] words = name.split("_", 2);
        switch (words[1]) {
            case "comes_in":
                return () -> comesIn(words[0], login(words[0], "cook"));
            case "has_no_rights":
                return () -> hasNoRights(words[0], login(words[0], "stranger"));
            case "is_refused":
                return () -> isRefused(words[0], wrong(words[0]));
            case "expires_and_is_renewed":
                return () -> isRenewed(name, expiring(words[0], "java-" + name));
            case "expires":
                return () -> ends(name);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    // -- ways to log in ---

    private Authentication login(String way, String role) throws Exception {
        switch (way) {
            case "token":
                return AuthenticationFactory.token(value(role + "_token"));
            case "tls":
                return AuthenticationFactory.TLS(value(role + "_certificate"), value(role + "_key"));
            case "basic":
                return basic(role, value(role + "_password"));
            case "oidc":
                return oidc(role, "java");
            default:
                throw new IllegalArgumentException(way);
        }
    }

    private Authentication wrong(String way) throws Exception {
        switch (way) {
            case "token":
                return AuthenticationFactory.token(value("forged_token"));
            case "tls":
                return AuthenticationFactory.TLS(
                        value("foreign_certificate"), value("foreign_key"));
            case "basic":
                return basic("cook", "wrong");
            case "oidc":
                return oidc("wrong", "java");
            case "nothing":
                return null;
            default:
                throw new IllegalArgumentException(way);
        }
    }

    private Authentication expiring(String way, String purpose) throws Exception {
        if (way.equals("oidc")) {
            return oidc("brief", purpose);
        }
        return AuthenticationFactory.token(() -> brief(purpose));
    }

    private static Authentication basic(String user, String password) {
        AuthenticationBasic found = new AuthenticationBasic();
        found.configure("{\"userId\":\"" + user + "\",\"password\":\"" + password + "\"}");
        return found;
    }

    private Authentication oidc(String client, String purpose) throws Exception {
        return AuthenticationFactoryOAuth2.clientCredentials(
                new URL(value("issuer")),
                new URL("file://" + value(client + "_credentials")),
                value("audience"),
                purpose);
    }

    /** A token that a service hands out, good for a few seconds. */
    private String brief(String purpose) {
        try (InputStream answer = new URL(value("brief_tokens") + purpose).openStream()) {
            return new String(answer.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    // -- what happens ---

    private void comesIn(String way, Authentication login) throws Exception {
        String topic = topic("java-" + way);
        for (String url : List.of("service_url", "web_url")) {
            try (PulsarClient client = client(url, login);
                    Consumer<byte[]> consumer = subscribe(client, topic);
                    Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
                producer.send(url.getBytes(StandardCharsets.UTF_8));
                Message<byte[]> message = consumer.receive(seconds, TimeUnit.SECONDS);
                check(message != null && new String(message.getData()).equals(url), "nothing came");
                consumer.acknowledge(message);
            }
        }
        try (PulsarAdmin admin = admin(login)) {
            admin.topics().createPartitionedTopic(topic + "-made", 2);
            check(admin.topics().getPartitionedTopicMetadata(topic + "-made").partitions == 2, "");
            check(admin.topics().getStats(topic).getSubscriptions().size() == 1, "no statistics");
        }
    }

    private void hasNoRights(String way, Authentication login) throws Exception {
        String topic = topic("java-" + way + "-stranger");
        try (PulsarClient client = client("service_url", login)) {
            expect(PulsarClientException.AuthorizationException.class,
                    () -> client.newProducer().topic(topic).create());
            expect(PulsarClientException.AuthorizationException.class,
                    () -> subscribe(client, topic));
        }
        try (PulsarAdmin admin = admin(login)) {
            expect(PulsarAdminException.NotAuthorizedException.class,
                    () -> admin.topics().createNonPartitionedTopic(topic));
        }
    }

    private void isRefused(String way, Authentication login) throws Exception {
        String topic = topic("java-" + way + "-refused");
        boolean byHandshake = way.equals("tls");
        boolean byIssuer = way.equals("oidc");
        expect(byHandshake || byIssuer
                ? PulsarClientException.class
                : PulsarClientException.AuthenticationException.class,
                () -> {
                    int patience = byHandshake || byIssuer ? REFUSAL_SECONDS : seconds;
                    try (PulsarClient client = client("service_url", login, patience)) {
                        client.newProducer().topic(topic).create();
                    }
                });
        expect(byHandshake || byIssuer
                ? Exception.class
                : PulsarAdminException.NotAuthorizedException.class,
                () -> {
                    try (PulsarAdmin admin = admin(login)) {
                        admin.topics().createNonPartitionedTopic(topic);
                    }
                });
    }

    /** Publishes while two tokens end: nothing is lost, doubled or out of order. */
    private void isRenewed(String name, Authentication login) throws Exception {
        String topic = topic("java-" + name);
        try (PulsarClient client = client("service_url", login);
                Consumer<byte[]> consumer = subscribe(client, topic);
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            long end = System.nanoTime()
                    + (long) (Double.parseDouble(value("publishing_seconds")) * 1e9);
            while (System.nanoTime() < end) {
                sent.add(producer.sendAsync(bytes(sent.size())));
                Thread.sleep(2);
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                each.get(seconds, TimeUnit.SECONDS);
            }
            receive(consumer, sent.size());
            check(consumer.receive(200, TimeUnit.MILLISECONDS) == null, "a message came twice");
            check(producer.getLastDisconnectedTimestamp() == 0, "the producer was disconnected");
            check(consumer.getLastDisconnectedTimestamp() == 0, "the consumer was disconnected");
        }
    }

    /** A token that nobody renews: the client is told so, and what was confirmed is there. */
    private void ends(String name) throws Exception {
        String topic = topic("java-" + name);
        AtomicReference<String> first = new AtomicReference<>();
        Authentication once = AuthenticationFactory.token(
                () -> first.updateAndGet(token -> token == null ? brief("java-" + name) : token));
        int confirmed = 0;
        try (PulsarClient reading = client("service_url", login("token", "cook"));
                Consumer<byte[]> consumer = subscribe(reading, topic);
                PulsarClient client = client("service_url", once)) {
            Producer<byte[]> producer = client.newProducer().topic(topic)
                    .sendTimeout(2, TimeUnit.SECONDS).create();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            PulsarClientException told = null;
            while (told == null) {
                check(System.nanoTime() < end, "it publishes with a token that has expired");
                try {
                    producer.send(bytes(confirmed));
                    confirmed++;
                    Thread.sleep(2);
                } catch (PulsarClientException e) {
                    told = e;
                }
            }
            System.err.println(name + ": the producer was told " + told);
            producer.closeAsync();
            staysOutside(once, topic);
            check(confirmed > 0, "nothing was published");
            receive(consumer, confirmed);
        }
    }

    /** Waits until a new client is refused with the token. */
    private void staysOutside(Authentication expiring, String topic) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (System.nanoTime() < end) {
            try (PulsarClient client = client("service_url", expiring)) {
                client.newProducer().topic(topic).create();
            } catch (PulsarClientException.AuthenticationException e) {
                return;
            }
            Thread.sleep(200);
        }
        throw new AssertionError("a client comes in with a token that has expired");
    }

    // -- parts ---

    private PulsarClient client(String url, Authentication login) throws Exception {
        return client(url, login, seconds);
    }

    private PulsarClient client(String url, Authentication login, int patience) throws Exception {
        var builder = PulsarClient.builder().serviceUrl(value(url))
                .tlsTrustCertsFilePath(value("trust")).enableTlsHostnameVerification(true)
                .operationTimeout(patience, TimeUnit.SECONDS);
        return (login == null ? builder : builder.authentication(login)).build();
    }

    private PulsarAdmin admin(Authentication login) throws Exception {
        var builder = PulsarAdmin.builder().serviceHttpUrl(value("web_url"))
                .tlsTrustCertsFilePath(value("trust")).enableTlsHostnameVerification(true)
                .requestTimeout(seconds, TimeUnit.SECONDS);
        return (login == null ? builder : builder.authentication(login)).build();
    }

    private Consumer<byte[]> subscribe(PulsarClient client, String topic) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s")
                .receiverQueueSize(WINDOW).subscribe();
    }

    private void receive(Consumer<byte[]> consumer, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            Message<byte[]> message = consumer.receive(seconds, TimeUnit.SECONDS);
            check(message != null, "only " + number + " of " + count + " came");
            String text = new String(message.getData(), StandardCharsets.UTF_8);
            check(text.equals(String.valueOf(number)), "got " + text + " at " + number);
        }
    }

    private static void expect(Class<? extends Exception> kind, Attempt attempt) {
        try {
            attempt.run();
        } catch (Exception e) {
            check(kind.isInstance(e), "expected " + kind.getName() + ", was told " + e);
            return;
        }
        throw new AssertionError("nobody refused it");
    }

    private static void check(boolean good, String reason) {
        if (!good) {
            throw new AssertionError(reason);
        }
    }

    private String topic(String name) {
        return value("namespace") + "/" + name;
    }

    private String value(String name) {
        String found = values.getProperty(name);
        check(found != null, "there is no " + name);
        return found;
    }

    private static byte[] bytes(int number) {
        return String.valueOf(number).getBytes(StandardCharsets.UTF_8);
    }
}
