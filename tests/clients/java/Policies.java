import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.AutoSubscriptionCreationOverride;
import org.apache.pulsar.common.policies.data.AutoTopicCreationOverride;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.BacklogQuota.BacklogQuotaType;
import org.apache.pulsar.common.policies.data.BacklogQuota.RetentionPolicy;
import org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.InactiveTopicDeleteMode;
import org.apache.pulsar.common.policies.data.InactiveTopicPolicies;
import org.apache.pulsar.common.policies.data.PersistencePolicies;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;

/**
 * Sets, reads and removes every policy with Pulsar's admin client.
 *
 * <p>Argument: the HTTP address of a broker. Prints a line for everything that is not as it should
 * be, and ends with 1 if there is any.
 */
public final class Policies {
    private static final String NAMESPACE = "public/java-policies";
    private static final String TOPIC = "persistent://" + NAMESPACE + "/t";
    private static final RetentionPolicies RETENTION = new RetentionPolicies(10, 100);
    private static final PersistencePolicies PERSISTENCE = new PersistencePolicies(1, 1, 1, 0.5);
    private static final DelayedDeliveryPolicies DELAYED =
            DelayedDeliveryPolicies.builder()
                    .tickTime(500).active(true).maxDeliveryDelayInMillis(7).build();
    private static final InactiveTopicPolicies INACTIVE =
            new InactiveTopicPolicies(
                    InactiveTopicDeleteMode.delete_when_subscriptions_caught_up, 10, true);
    private static final AutoSubscriptionCreationOverride NO_SUBSCRIPTIONS =
            AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build();
    private static final AutoTopicCreationOverride THREE_PARTITIONS =
            AutoTopicCreationOverride.builder()
                    .allowAutoTopicCreation(true)
                    .topicType("partitioned")
                    .defaultNumPartitions(3)
                    .build();
    private static final Set<SubscriptionType> TYPES =
            Set.of(SubscriptionType.Exclusive, SubscriptionType.Shared);
    private static final BacklogQuota BY_SIZE =
            BacklogQuota.builder()
                    .limitSize(1000).limitTime(-1)
                    .retentionPolicy(RetentionPolicy.producer_exception).build();
    private static final BacklogQuota BY_AGE =
            BacklogQuota.builder()
                    .limitSize(-1).limitTime(50)
                    .retentionPolicy(RetentionPolicy.consumer_backlog_eviction).build();

    private int problems;

    private interface Write<T> {
        void accept(T value) throws Exception;
    }

    private interface Read {
        Object get() throws Exception;
    }

    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Policies policies = new Policies();
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[0]).build()) {
            policies.ofNamespaces(admin.namespaces());
            policies.ofTopics(admin.topics(), admin.topicPolicies());
            policies.refused(admin.namespaces(), admin.topicPolicies());
            policies.operations(admin.topics());
        }
        System.exit(policies.problems == 0 ? 0 : 1);
    }

    private void ofNamespaces(Namespaces n) throws Exception {
        var given = new org.apache.pulsar.common.policies.data.Policies();
        given.message_ttl_in_seconds = 77;
        n.createNamespace(NAMESPACE, given);
        String ns = NAMESPACE;
        check("ttl of the new namespace", 77, () -> n.getPolicies(ns).message_ttl_in_seconds);
        n.removeNamespaceMessageTTL(ns);
        policy("messageTTL", 5, v -> n.setNamespaceMessageTTL(ns, v),
                () -> n.getNamespaceMessageTTL(ns), () -> n.removeNamespaceMessageTTL(ns));
        policy("retention", RETENTION, v -> n.setRetention(ns, v),
                () -> n.getRetention(ns), () -> n.removeRetention(ns));
        policy("persistence", PERSISTENCE, v -> n.setPersistence(ns, v),
                () -> n.getPersistence(ns), () -> n.removePersistence(ns));
        policy("deduplication", true, v -> n.setDeduplicationStatus(ns, v),
                () -> n.getDeduplicationStatus(ns), () -> n.removeDeduplicationStatus(ns));
        policy("deduplicationSnapshotInterval", 9,
                v -> n.setDeduplicationSnapshotInterval(ns, v),
                () -> n.getDeduplicationSnapshotInterval(ns),
                () -> n.removeDeduplicationSnapshotInterval(ns));
        policy("maxProducersPerTopic", 1, v -> n.setMaxProducersPerTopic(ns, v),
                () -> n.getMaxProducersPerTopic(ns), () -> n.removeMaxProducersPerTopic(ns));
        policy("maxConsumersPerTopic", 1, v -> n.setMaxConsumersPerTopic(ns, v),
                () -> n.getMaxConsumersPerTopic(ns), () -> n.removeMaxConsumersPerTopic(ns));
        policy("maxConsumersPerSubscription", 1, v -> n.setMaxConsumersPerSubscription(ns, v),
                () -> n.getMaxConsumersPerSubscription(ns),
                () -> n.removeMaxConsumersPerSubscription(ns));
        policy("maxSubscriptionsPerTopic", 1, v -> n.setMaxSubscriptionsPerTopic(ns, v),
                () -> n.getMaxSubscriptionsPerTopic(ns),
                () -> n.removeMaxSubscriptionsPerTopic(ns));
        policy("maxUnackedMessagesPerConsumer", 1, v -> n.setMaxUnackedMessagesPerConsumer(ns, v),
                () -> n.getMaxUnackedMessagesPerConsumer(ns),
                () -> n.removeMaxUnackedMessagesPerConsumer(ns));
        policy("maxUnackedMessagesPerSubscription", 1,
                v -> n.setMaxUnackedMessagesPerSubscription(ns, v),
                () -> n.getMaxUnackedMessagesPerSubscription(ns),
                () -> n.removeMaxUnackedMessagesPerSubscription(ns));
        policy("autoTopicCreation", THREE_PARTITIONS, v -> n.setAutoTopicCreation(ns, v),
                () -> n.getAutoTopicCreation(ns), () -> n.removeAutoTopicCreation(ns));
        policy("autoSubscriptionCreation", NO_SUBSCRIPTIONS,
                v -> n.setAutoSubscriptionCreation(ns, v),
                () -> n.getAutoSubscriptionCreation(ns),
                () -> n.removeAutoSubscriptionCreation(ns));
        policy("delayedDelivery", DELAYED, v -> n.setDelayedDeliveryMessages(ns, v),
                () -> n.getDelayedDelivery(ns), () -> n.removeDelayedDeliveryMessages(ns));
        policy("inactiveTopicPolicies", INACTIVE, v -> n.setInactiveTopicPolicies(ns, v),
                () -> n.getInactiveTopicPolicies(ns), () -> n.removeInactiveTopicPolicies(ns));
        policy("compactionThreshold", 5000L, v -> n.setCompactionThreshold(ns, v),
                () -> n.getCompactionThreshold(ns), () -> n.removeCompactionThreshold(ns));
        policy("subscriptionExpirationTime", 4, v -> n.setSubscriptionExpirationTime(ns, v),
                () -> n.getSubscriptionExpirationTime(ns),
                () -> n.removeSubscriptionExpirationTime(ns));
        n.setSubscriptionTypesEnabled(ns, TYPES);
        check("subscriptionTypesEnabled", TYPES, () -> n.getSubscriptionTypesEnabled(ns));
        n.removeSubscriptionTypesEnabled(ns);
        check("no types", Set.of(), () -> n.getSubscriptionTypesEnabled(ns));
        n.setSchemaCompatibilityStrategy(ns, SchemaCompatibilityStrategy.BACKWARD);
        check("schemaCompatibilityStrategy", SchemaCompatibilityStrategy.BACKWARD,
                () -> n.getPolicies(ns).schema_compatibility_strategy);
        n.setIsAllowAutoUpdateSchema(ns, false);
        check("isAllowAutoUpdateSchema", false, () -> n.getIsAllowAutoUpdateSchema(ns));
        n.setSchemaValidationEnforced(ns, true);
        check("schemaValidationEnforced", true, () -> n.getSchemaValidationEnforced(ns, true));
        n.setEncryptionRequiredStatus(ns, true);
        check("encryptionRequired", true, () -> n.getEncryptionRequiredStatus(ns));
        n.setBacklogQuota(ns, BY_SIZE);
        n.setBacklogQuota(ns, BY_AGE, BacklogQuotaType.message_age);
        check("backlogQuota",
                Map.of(BacklogQuotaType.destination_storage, BY_SIZE,
                        BacklogQuotaType.message_age, BY_AGE),
                () -> n.getBacklogQuotaMap(ns));
        n.removeBacklogQuota(ns, BacklogQuotaType.message_age);
        n.removeBacklogQuota(ns);
        check("no quotas", Map.of(), () -> n.getPolicies(ns).backlog_quota_map);
        n.setProperties(ns, Map.of("a", "b"));
        n.setProperty(ns, "c", "d");
        check("property", "d", () -> n.getProperty(ns, "c"));
        check("removed property", "d", () -> n.removeProperty(ns, "c"));
        check("properties", Map.of("a", "b"), () -> n.getProperties(ns));
        n.setNamespaceReplicationClusters(ns, Set.of("standalone"));
        check("replication", List.of("standalone"), () -> n.getNamespaceReplicationClusters(ns));
    }

    private void ofTopics(Topics topics, TopicPolicies t) throws Exception {
        topics.createPartitionedTopic(TOPIC, 2);
        String topic = TOPIC;
        policy("messageTTL of a topic", 12, v -> t.setMessageTTL(topic, v),
                () -> t.getMessageTTL(topic), () -> t.removeMessageTTL(topic));
        check("applied messageTTL", 0, () -> t.getMessageTTL(topic, true));
        policy("retention of a topic", RETENTION, v -> t.setRetention(topic, v),
                () -> t.getRetention(topic), () -> t.removeRetention(topic));
        check("applied retention", new RetentionPolicies(0, 0), () -> t.getRetention(topic, true));
        policy("persistence of a topic", PERSISTENCE, v -> t.setPersistence(topic, v),
                () -> t.getPersistence(topic), () -> t.removePersistence(topic));
        policy("deduplication of a topic", true, v -> t.setDeduplicationStatus(topic, v),
                () -> t.getDeduplicationStatus(topic), () -> t.removeDeduplicationStatus(topic));
        policy("maxProducers", 1, v -> t.setMaxProducers(topic, v),
                () -> t.getMaxProducers(topic), () -> t.removeMaxProducers(topic));
        policy("maxConsumers", 1, v -> t.setMaxConsumers(topic, v),
                () -> t.getMaxConsumers(topic), () -> t.removeMaxConsumers(topic));
        policy("maxConsumersPerSubscription of a topic", 1,
                v -> t.setMaxConsumersPerSubscription(topic, v),
                () -> t.getMaxConsumersPerSubscription(topic),
                () -> t.removeMaxConsumersPerSubscription(topic));
        policy("maxSubscriptionsPerTopic of a topic", 1,
                v -> t.setMaxSubscriptionsPerTopic(topic, v),
                () -> t.getMaxSubscriptionsPerTopic(topic),
                () -> t.removeMaxSubscriptionsPerTopic(topic));
        policy("maxUnackedMessagesOnConsumer", 1,
                v -> t.setMaxUnackedMessagesOnConsumer(topic, v),
                () -> t.getMaxUnackedMessagesOnConsumer(topic),
                () -> t.removeMaxUnackedMessagesOnConsumer(topic));
        policy("maxUnackedMessagesOnSubscription", 1,
                v -> t.setMaxUnackedMessagesOnSubscription(topic, v),
                () -> t.getMaxUnackedMessagesOnSubscription(topic),
                () -> t.removeMaxUnackedMessagesOnSubscription(topic));
        policy("delayedDelivery of a topic", DELAYED, v -> t.setDelayedDeliveryPolicy(topic, v),
                () -> t.getDelayedDeliveryPolicy(topic),
                () -> t.removeDelayedDeliveryPolicy(topic));
        policy("inactiveTopicPolicies of a topic", INACTIVE,
                v -> t.setInactiveTopicPolicies(topic, v),
                () -> t.getInactiveTopicPolicies(topic),
                () -> t.removeInactiveTopicPolicies(topic));
        policy("compactionThreshold of a topic", 5000L, v -> t.setCompactionThreshold(topic, v),
                () -> t.getCompactionThreshold(topic), () -> t.removeCompactionThreshold(topic));
        t.setBacklogQuota(topic, BY_SIZE);
        check("backlogQuota of a topic", Map.of(BacklogQuotaType.destination_storage, BY_SIZE),
                () -> t.getBacklogQuotaMap(topic));
        check("applied quotas", 2, () -> t.getBacklogQuotaMap(topic, true).size());
        t.removeBacklogQuota(topic);
        t.setSubscriptionTypesEnabled(topic, TYPES);
        check("types of a topic", TYPES, () -> t.getSubscriptionTypesEnabled(topic));
        t.removeSubscriptionTypesEnabled(topic);
        t.setSchemaCompatibilityStrategy(topic, SchemaCompatibilityStrategy.FULL);
        check("strategy of a topic", SchemaCompatibilityStrategy.FULL,
                () -> t.getSchemaCompatibilityStrategy(topic, false));
        check("a rate that is not set", null, () -> t.getPublishRate(topic));
    }

    private void refused(Namespaces n, TopicPolicies t) {
        refusal(412, () -> n.setDispatchRate(NAMESPACE,
                DispatchRate.builder().dispatchThrottlingRateInMsg(-2).ratePeriodInSecond(1).build()));
        refusal(400, () -> n.setRetention(NAMESPACE, new RetentionPolicies(5, 0)));
        refusal(412, () -> n.setMaxProducersPerTopic(NAMESPACE, -1));
        refusal(404, () -> n.setMaxProducersPerTopic("public/none", 1));
        refusal(404, () -> t.setMaxProducers(TOPIC + "-none", 1));
    }

    private void operations(Topics topics) throws Exception {
        topics.createSubscription(TOPIC, "s", MessageId.earliest);
        String part = TOPIC + "-partition-0";
        refusal(409, () -> topics.expireMessages(part, "s", 5));
        topics.trimTopic(TOPIC);
        topics.truncate(TOPIC);
        check("size of a backlog that was not asked for", -1L,
                () -> topics.getStats(part, true, false, true)
                        .getSubscriptions().get("s").getBacklogSize());
    }

    /** Nothing is set, then it is, then nothing again. */
    private <T> void policy(String name, T value, Write<T> set, Read get, Step remove)
            throws Exception {
        check(name + " at first", null, get);
        set.accept(value);
        check(name, value, get);
        remove.run();
        check(name + " at last", null, get);
    }

    private void check(String what, Object expected, Read read) throws Exception {
        Object found = read.get();
        if (!Objects.equals(expected, found)) {
            problem(what + ": expected " + expected + ", found " + found);
        }
    }

    private void refusal(int status, Step step) {
        try {
            step.run();
            problem("status " + status + " was expected, and it was done");
        } catch (PulsarAdminException e) {
            if (e.getStatusCode() != status) {
                problem("status " + status + " was expected: " + e);
            }
        } catch (Exception e) {
            problem("status " + status + " was expected: " + e);
        }
    }

    private void problem(String text) {
        problems++;
        System.out.println(text);
    }
}
