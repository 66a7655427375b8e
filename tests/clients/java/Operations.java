import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import org.apache.pulsar.client.admin.Bookies;
import org.apache.pulsar.client.admin.BrokerStats;
import org.apache.pulsar.client.admin.Brokers;
import org.apache.pulsar.client.admin.Clusters;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.Schemas;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.common.naming.TopicVersion;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.AutoFailoverPolicyData;
import org.apache.pulsar.common.policies.data.AutoFailoverPolicyType;
import org.apache.pulsar.common.policies.data.NamespaceIsolationData;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;

/**
 * Does with Pulsar's admin client what operators and tools do, all policies apart.
 *
 * <p>Argument: the HTTP address of a broker. Prints a line for everything that is not as it should
 * be, and ends with 1 if there is any.
 */
public final class Operations {
    private static final String CLUSTER = "standalone";
    private static final String NAMESPACE = "public/java-operations";
    private static final String TOPIC = "persistent://" + NAMESPACE + "/t";
    private static final String PARTITIONED = "persistent://" + NAMESPACE + "/p";
    private static final Set<AuthAction> BOTH = Set.of(AuthAction.produce, AuthAction.consume);

    private int problems;

    private interface Read {
        Object get() throws Exception;
    }

    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Operations operations = new Operations();
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[0]).build()) {
            admin.namespaces().createNamespace(NAMESPACE);
            operations.topics(admin);
            operations.permissions(admin.namespaces(), admin.topics());
            operations.namespaces(admin);
            operations.schemas(admin.schemas());
            operations.clusters(admin.clusters());
            operations.brokers(admin.brokers());
            operations.rest(admin);
            admin.topics().delete(TOPIC);
            admin.topics().deletePartitionedTopic(PARTITIONED);
            admin.namespaces().deleteNamespace(NAMESPACE);
        }
        System.exit(operations.problems == 0 ? 0 : 1);
    }

    private void topics(PulsarAdmin admin) throws Exception {
        Topics topics = admin.topics();
        topics.createNonPartitionedTopic(TOPIC);
        refusal(409, () -> topics.createNonPartitionedTopic(TOPIC));
        topics.createPartitionedTopic(PARTITIONED, 2);
        topics.updatePartitionedTopic(PARTITIONED, 3);
        topics.createMissedPartitions(PARTITIONED);
        check("partitions", 3, () -> topics.getPartitionedTopicMetadata(PARTITIONED).partitions);
        check("partitioned topics", List.of(PARTITIONED),
                () -> topics.getPartitionedTopicList(NAMESPACE));
        check("topics", 4, () -> topics.getList(NAMESPACE).size());
        for (String topic : List.of(TOPIC, PARTITIONED)) {
            topics.createSubscription(topic, "s/x", MessageId.earliest);
            check("subscriptions", List.of("s/x"), () -> topics.getSubscriptions(topic));
            topics.skipAllMessages(topic, "s/x");
            topics.resetCursor(topic, "s/x", System.currentTimeMillis());
            refusal(409, () -> topics.expireMessages(topic, "s/x", 5));
            topics.updateSubscriptionProperties(topic, "s/x", Map.of("k", "v"));
            check("properties", Map.of("k", "v"),
                    () -> topics.getSubscriptionProperties(topic, "s/x"));
            topics.updateProperties(topic, Map.of("a", "b"));
            check("properties of a topic", Map.of("a", "b"), () -> topics.getProperties(topic));
            topics.unload(topic);
            topics.truncate(topic);
        }
        check("stats", Set.of("s/x"), () -> topics.getStats(TOPIC).getSubscriptions().keySet());
        check("stats of partitions", 3,
                () -> topics.getPartitionedStats(PARTITIONED, true).getPartitions().size());
        check("internal stats", "LedgerOpened", () -> topics.getInternalStats(TOPIC).state);
        check("internal stats of partitions", 3,
                () -> topics.getPartitionedInternalStats(PARTITIONED).partitions.size());
        topics.getInternalInfo(TOPIC);
        topics.getLastMessageId(TOPIC);
        topics.resetCursor(TOPIC, "s/x", MessageId.earliest);
        topics.skipMessages(TOPIC, "s/x", 1);
        refusal(405, () -> topics.skipMessages(PARTITIONED, "s/x", 1));
        check("peek", 0, () -> topics.peekMessages(TOPIC, "s/x", 1).size());
        check("backlog", 0L, () -> topics.getBacklogSizeByMessageId(TOPIC, MessageId.earliest));
        check("analysis", 0L,
                () -> topics.analyzeSubscriptionBacklog(TOPIC, "s/x", Optional.empty())
                        .getEntries());
        check("compaction", "NOT_RUN", () -> topics.compactionStatus(TOPIC).status.name());
        check("offloading", "NOT_RUN", () -> topics.offloadStatus(TOPIC).getStatus().name());
        refusal(501, () -> topics.triggerOffload(TOPIC, MessageId.latest));
        topics.getReplicatedSubscriptionStatus(TOPIC, "s/x");
        check("bundle", true, () -> admin.lookups().getBundleRange(TOPIC).startsWith("0x"));
        check("lookup", true, () -> admin.lookups().lookupTopic(TOPIC).startsWith("pulsar://"));
        refusal(404, () -> topics.getStats(TOPIC + "-none"));
        refusal(404, () -> topics.getStats(PARTITIONED));
        refusal(404, () -> topics.delete(TOPIC + "-none"));
        refusal(409, () -> topics.delete(PARTITIONED));
    }

    private void permissions(Namespaces namespaces, Topics topics) throws Exception {
        namespaces.grantPermissionOnNamespace(NAMESPACE, "r/o", BOTH);
        check("permissions", Map.of("r/o", BOTH), () -> namespaces.getPermissions(NAMESPACE));
        topics.grantPermission(TOPIC, "other", Set.of(AuthAction.consume));
        check("permissions on a topic",
                Map.of("r/o", BOTH, "other", Set.of(AuthAction.consume)),
                () -> topics.getPermissions(TOPIC));
        topics.revokePermissions(TOPIC, "other");
        refusal(412, () -> topics.revokePermissions(TOPIC, "other"));
        namespaces.revokePermissionsOnNamespace(NAMESPACE, "r/o");
        check("permissions at last", Map.of(), () -> namespaces.getPermissions(NAMESPACE));
        namespaces.grantPermissionOnSubscription(NAMESPACE, "s", Set.of("a"));
        check("permissions on subscriptions", Map.of("s", Set.of("a")),
                () -> namespaces.getPermissionOnSubscription(NAMESPACE));
        namespaces.revokePermissionOnSubscription(NAMESPACE, "s", "a");
    }

    private void namespaces(PulsarAdmin admin) throws Exception {
        Namespaces namespaces = admin.namespaces();
        check("namespaces", true, () -> namespaces.getNamespaces("public").contains(NAMESPACE));
        check("bundles", 4, () -> namespaces.getBundles(NAMESPACE).getNumBundles());
        String bundle = admin.lookups().getBundleRange(TOPIC);
        namespaces.clearNamespaceBacklog(NAMESPACE);
        namespaces.clearNamespaceBacklogForSubscription(NAMESPACE, "s/x");
        namespaces.clearNamespaceBundleBacklog(NAMESPACE, bundle);
        namespaces.clearNamespaceBundleBacklogForSubscription(NAMESPACE, bundle, "s/x");
        namespaces.unsubscribeNamespaceBundle(NAMESPACE, bundle, "s/x");
        check("subscriptions", List.of(), () -> admin.topics().getSubscriptions(TOPIC));
        namespaces.unsubscribeNamespace(NAMESPACE, "s/x");
        check("subscriptions", List.of(), () -> admin.topics().getSubscriptions(PARTITIONED));
        namespaces.unloadNamespaceBundle(NAMESPACE, bundle);
        namespaces.unload(NAMESPACE);
        check("positions", true,
                () -> namespaces.getTopicHashPositions(NAMESPACE, bundle, List.of(TOPIC))
                        .getTopicHashPositions().containsKey(TOPIC));
        namespaces.splitNamespaceBundle(NAMESPACE, bundle, false, null);
        check("bundles after a split", 5, () -> namespaces.getBundles(NAMESPACE).getNumBundles());
        refusal(412, () -> namespaces.splitNamespaceBundle(NAMESPACE, bundle, false, null));
        namespaces.setNamespaceAntiAffinityGroup(NAMESPACE, "g");
        check("group", "g", () -> namespaces.getNamespaceAntiAffinityGroup(NAMESPACE));
        check("namespaces of a group", List.of(NAMESPACE),
                () -> namespaces.getAntiAffinityNamespaces("public", CLUSTER, "g"));
        namespaces.deleteNamespaceAntiAffinityGroup(NAMESPACE);
        namespaces.setMaxTopicsPerNamespace(NAMESPACE, 4);
        check("most topics", 4, () -> namespaces.getMaxTopicsPerNamespace(NAMESPACE));
        refusal(412, () -> admin.topics().createNonPartitionedTopic(TOPIC + "-more"));
        namespaces.removeMaxTopicsPerNamespace(NAMESPACE);
        admin.topicPolicies().setMaxMessageSize(TOPIC, 1000);
        check("size", 1000, () -> admin.topicPolicies().getMaxMessageSize(TOPIC));
        admin.topicPolicies().removeMaxMessageSize(TOPIC);
        refusal(409, () -> namespaces.deleteNamespace(NAMESPACE));
        refusal(404, () -> namespaces.clearNamespaceBacklog("public/none"));
    }

    private void schemas(Schemas schemas) throws Exception {
        PostSchemaPayload payload = new PostSchemaPayload("STRING", "", Map.of());
        refusal(404, () -> schemas.getSchemaInfo(TOPIC));
        schemas.createSchema(TOPIC, payload);
        check("version", 0L, () -> schemas.getSchemaInfoWithVersion(TOPIC).getVersion());
        check("type", "STRING", () -> schemas.getSchemaInfo(TOPIC, 0).getType().name());
        check("versions", 1, () -> schemas.getAllSchemas(TOPIC).size());
        check("version of a schema", 0L, () -> schemas.getVersionBySchema(TOPIC, payload));
        check("compatibility", true,
                () -> schemas.testCompatibility(TOPIC, payload).isCompatibility());
        schemas.deleteSchema(TOPIC);
        refusal(404, () -> schemas.getSchemaInfo(TOPIC));
    }

    private void clusters(Clusters clusters) throws Exception {
        check("clusters", List.of(CLUSTER), () -> clusters.getClusters());
        check("domains", Map.of(), () -> clusters.getFailureDomains(CLUSTER));
        refusal(404, () -> clusters.getFailureDomain(CLUSTER, "d"));
        refusal(404, () -> clusters.getNamespaceIsolationPolicies(CLUSTER));
        NamespaceIsolationData isolation = NamespaceIsolationData.builder()
                .namespaces(List.of("none/.*"))
                .primary(List.of("nobody"))
                .secondary(List.of())
                .autoFailoverPolicy(AutoFailoverPolicyData.builder()
                        .policyType(AutoFailoverPolicyType.min_available)
                        .parameters(Map.of("min_limit", "1", "usage_threshold", "100"))
                        .build())
                .build();
        clusters.createNamespaceIsolationPolicy(CLUSTER, "p", isolation);
        check("isolation", isolation, () -> clusters.getNamespaceIsolationPolicy(CLUSTER, "p"));
        check("isolation of all", Map.of("p", isolation),
                () -> clusters.getNamespaceIsolationPolicies(CLUSTER));
        check("brokers in isolation", List.of(),
                () -> clusters.getBrokersWithNamespaceIsolationPolicy(CLUSTER).get(0)
                        .getNamespaceRegex());
        check("one of them", true,
                () -> clusters.getBrokerWithNamespaceIsolationPolicy(CLUSTER, "nobody")
                        .isPrimary());
        clusters.deleteNamespaceIsolationPolicy(CLUSTER, "p");
        check("no isolation", Map.of(), () -> clusters.getNamespaceIsolationPolicies(CLUSTER));
        refusal(412,
                () -> clusters.updatePeerClusterNames(CLUSTER, new LinkedHashSet<>(List.of("c"))));
        refusal(404, () -> clusters.getCluster("none"));
    }

    private void brokers(Brokers brokers) throws Exception {
        List<String> active = brokers.getActiveBrokers();
        check("brokers", active, () -> brokers.getActiveBrokers(CLUSTER));
        check("leader", active.get(0), () -> brokers.getLeaderBroker().getBrokerId());
        check("bundles", true,
                () -> brokers.getOwnedNamespaces(CLUSTER, active.get(0)).size() > 0);
        brokers.healthcheck(TopicVersion.V2);
        brokers.backlogQuotaCheck();
        brokers.getRuntimeConfigurations();
        brokers.getInternalConfigurationData();
        check("dynamic settings", true,
                () -> brokers.getDynamicConfigurationNames().contains("maxTenants"));
        check("changed settings", Map.of(), () -> brokers.getAllDynamicConfigurations());
        brokers.updateDynamicConfiguration("maxTenants", "500");
        check("changed settings", Map.of("maxTenants", "500"),
                () -> brokers.getAllDynamicConfigurations());
        brokers.deleteDynamicConfiguration("maxTenants");
        refusal(412, () -> brokers.updateDynamicConfiguration("maxMessageSize", "5"));
        refusal(412, () -> brokers.deleteDynamicConfiguration("maxMessageSize"));
        check("version", true, () -> brokers.getVersion().startsWith("4.0"));
    }

    private void rest(PulsarAdmin admin) throws Exception {
        Bookies bookies = admin.bookies();
        check("bookies", true, () -> !bookies.getBookies().getBookies().isEmpty());
        check("racks", 0, () -> bookies.getBookiesRackInfo().size());
        BrokerStats stats = admin.brokerStats();
        stats.getTopics();
        stats.getMetrics();
        stats.getMBeans();
        stats.getLoadReport();
        stats.getAllocatorStats("default");
        check("groups", List.of(), () -> admin.resourcegroups().getResourceGroups());
        check("quota", 40.0, () -> admin.resourceQuotas().getDefaultResourceQuota().getMsgRateIn());
        check("tenants", true, () -> admin.tenants().getTenants().contains("public"));
        check("tenant", Set.of(CLUSTER),
                () -> admin.tenants().getTenantInfo("public").getAllowedClusters());
    }

    private void check(String what, Object expected, Read read) {
        try {
            Object found = read.get();
            if (!Objects.equals(expected, found)) {
                problem(what + ": expected " + expected + ", found " + found);
            }
        } catch (Exception e) {
            problem(what + ": " + e);
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
