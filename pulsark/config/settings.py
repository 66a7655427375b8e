"""The settings of a process: one immutable, typed model.

Names and defaults are those of Pulsar's ``broker.conf`` wherever Pulsar has such a key, so
field names are in its camel case. ``sources`` fills a model from a properties file, the
environment and flags; ``keys`` knows what a text means.

A plain dataclass and not a pydantic model: pydantic adds 13 MiB and 60 ms to a process whose
idle memory and start are part of the promise, and a setting needs no more than five types.
The classes that ``Settings`` inherits are never made by themselves, and have no generated methods:
with so many fields these are large, and each class would have its own of all before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.checks import check_together
from pulsark.config.policies import PolicySettings
from pulsark.config.several_brokers import BROKER_NUMBERS, BROKERS_MAX
from pulsark.config.spec import SCHEMA_COMPATIBILITY_STRATEGIES, port, setting
from pulsark.private_files import ACCESSES

_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(PolicySettings):
    """Every setting of a Pulsark process. Build it with ``config.sources.load_settings``."""

    # -- identity and addresses --------------------------------------------------------------

    clusterName: str = setting("standalone", "", "Name of the cluster this broker belongs to")
    dataDir: str = setting(
        "data", "path", "Directory that holds everything a standalone stores", own=True
    )
    dataDirectoryAccess: str = setting(
        "owner",
        "",
        "Who may read what this process stores: its user alone (owner), or also the group of the "
        "files (group). The metadata store and locks are for the user in any case. Existing files "
        "follow at the next start",
        choices=ACCESSES,
        own=True,
    )
    bookies: int = setting(
        1,
        "count",
        "Embedded bookies of a standalone; of `pulsark cluster`, which has 3 by default, "
        "those of BookKeeper",
        ge=1,
        le=16,
        own=True,
    )
    standaloneBrokers: int = setting(
        1,
        "count",
        "Brokers of a standalone. With several, each is a process, and one more process has the "
        "bookies. Also those of `pulsark cluster`, which has 2 by default",
        ge=1,
        le=BROKERS_MAX,
        own=True,
    )
    processStartTimeoutSeconds: int = setting(
        600,
        "s",
        "With several brokers: how long one, or the process of the bookies, may take until it is "
        "ready. One that takes longer is killed and started again; at the first start, all stop",
        ge=1,
        own=True,
    )
    brokerShutdownTimeoutMs: int = setting(
        60_000,
        "ms",
        "How long `pulsark broker`, or a standalone with one broker, may take to stop in order. If "
        "it takes longer it ends as if it were killed: what is confirmed stays, the next start "
        "recovers it. Where one command starts several brokers, each has 20 s",
        ge=1,
    )
    standalonePersistentOnlyBrokers: tuple[str, ...] = setting(
        (),
        "list",
        "Numbers of the standalone's brokers that serve only persistent topics; 0 is the first",
        choices=BROKER_NUMBERS,
        own=True,
    )
    standaloneNonPersistentOnlyBrokers: tuple[str, ...] = setting(
        (),
        "list",
        "Numbers of the standalone's brokers that serve only non-persistent topics; 0 is the first",
        choices=BROKER_NUMBERS,
        own=True,
    )
    bindAddress: str = setting(
        "localhost",
        "",
        "Address of the interface the ports listen on; localhost is this machine only, 0.0.0.0 is "
        "every interface",
    )
    insecure: bool = setting(
        False,
        "",
        "Serve other machines without authentication: everyone who reaches bindAddress can read, "
        "change and delete everything",
        own=True,
    )
    advertisedAddress: str = setting(
        "localhost", "", "Host name or address that the broker announces to clients"
    )
    brokerServicePort: int | None = port(6650, "Port of the binary protocol")
    brokerServicePortTls: int | None = port(None, "Port of the binary protocol over TLS")
    webServicePort: int | None = port(8080, "Port of the HTTP admin API, lookup and metrics")
    webServicePortTls: int | None = port(None, "Port of HTTPS")
    flightServicePort: int | None = port(
        8815, "Port of Arrow Flight, where Spark reads entries", own=True
    )
    flightServicePortTls: int | None = port(None, "Port of Arrow Flight over TLS", own=True)
    flightMaxConnections: int = setting(
        256,
        "count",
        "Most Flight connections; beyond, an idle one is closed, or the new one is refused",
        ge=1,
        le=10_000,
        own=True,
    )
    flightMaxConnectionsPerIp: int = setting(
        0, "count", "Most Flight connections from one address; 0: no limit", ge=0, own=True
    )
    flightMaxCalls: int = setting(
        512,
        "count",
        "Most Flight calls at a time, each of which has a thread; beyond, the connection with "
        "most calls is closed",
        ge=1,
        le=100_000,
        own=True,
    )
    maxHttpServerConnections: int = setting(
        2048, "count", "Most HTTP connections", ge=1, le=100_000
    )

    webServiceAllowedHosts: tuple[str, ...] = setting(
        (),
        "",
        "Host names under which HTTP is served, beside localhost, advertisedAddress and IP "
        "addresses, and whose web pages may use it; *: any",
        own=True,
    )

    adminForwardTimeoutSeconds: int = setting(
        120,
        "s",
        "Longest silence of another broker to which a request was forwarded",
        ge=1,
        own=True,
    )
    brokerClientTrustCertsFilePath: str = setting(
        "",
        "path",
        "PEM file with the CAs of other brokers' certificates, if they serve only HTTPS; empty: "
        "those of the system",
    )

    # -- connections -------------------------------------------------------------------------

    maxMessageSize: int = setting(
        5_242_880, "bytes", "Largest message a client may publish", ge=1024, le=_BYTES_MAX - 65_536
    )
    keepAliveIntervalSeconds: int = setting(
        30,
        "s",
        "A silent connection is pinged after this time, and closed after twice this time",
        ge=1,
    )
    maxPendingPublishRequestsPerConnection: int = setting(
        1000, "count", "A connection with this many unanswered publishes is not read further", ge=1
    )
    maxMessagePublishBufferSizeInMB: int = setting(
        256,
        "MB",
        "Memory for unanswered publishes of all connections together; above it no connection with "
        "producers is read until it is half of that. 0 or -1: no limit",
        ge=-1,
        le=1_048_576,
    )
    maxUnreadOutputBufferSizeInMB: int = setting(
        128,
        "MB",
        "Memory for sent data that clients have not read, on all connections together; above it,"
        " a client gets no message before it has read the earlier ones. 0 or -1: no limit",
        ge=-1,
        le=1_048_576,
        own=True,
    )
    brokerMaxConnections: int = setting(
        0, "count", "Most connections of clients; more are refused. 0: no limit", ge=0
    )
    brokerMaxConnectionsPerIp: int = setting(
        0, "count", "Most connections from one address; more are refused. 0: no limit", ge=0
    )
    maxProducersPerConnection: int = setting(
        10_000, "count", "Most producers of one connection; 0: no limit", ge=0, own=True
    )
    maxConsumersPerConnection: int = setting(
        10_000, "count", "Most consumers of one connection; 0: no limit", ge=0, own=True
    )

    # -- topics and subscriptions ------------------------------------------------------------

    allowAutoTopicCreation: bool = setting(
        True, "", "A topic is created when a client first produces to or subscribes to it"
    )
    allowAutoTopicCreationType: str = setting(
        "non-partitioned",
        "",
        "Kind of the topics that are created automatically",
        choices=("partitioned", "non-partitioned"),
    )
    defaultNumPartitions: int = setting(
        1, "count", "Partitions of a topic that is created automatically", ge=1, le=10_000
    )
    maxNumPartitionsPerPartitionedTopic: int = setting(
        0, "count", "Most partitions a topic may have; 0: no limit but the built-in one", ge=0
    )
    maxTopicsPerNamespace: int = setting(
        0,
        "count",
        "Most topics of a namespace, each partition counts, and most with a schema; 0: no limit",
        ge=0,
    )
    allowAutoSubscriptionCreation: bool = setting(
        True, "", "A subscription is created when a consumer first uses it"
    )
    enablePersistentTopics: bool = setting(True, "", "This broker serves persistent topics")
    enableNonPersistentTopics: bool = setting(True, "", "This broker serves non-persistent topics")
    maxConcurrentNonPersistentMessagePerConnection: int = setting(
        1000,
        "count",
        "Most unanswered publishes of a connection to non-persistent topics; more are dropped",
        ge=1,
    )
    subscriptionTypesEnabled: tuple[str, ...] = setting(
        ("Exclusive", "Shared", "Failover", "Key_Shared"),
        "list",
        "Types of subscription that consumers may use",
        choices=("Exclusive", "Shared", "Failover", "Key_Shared"),
    )
    subscriptionKeySharedEnable: bool = setting(True, "", "Key_Shared subscriptions are allowed")
    subscriptionKeySharedUseConsistentHashing: bool = setting(
        True, "", "Key_Shared assigns keys by consistent hashing instead of splitting ranges"
    )
    subscriptionKeySharedConsistentHashingReplicaPoints: int = setting(
        100, "count", "Points of a consumer on the ring of consistent hashing", ge=1, le=10_000
    )
    keySharedLookAheadMsgInReplayThresholdPerConsumer: int = setting(
        2000,
        "count",
        "Most entries per consumer that wait for a busy key while Key_Shared reads on; 0: no limit",
        ge=0,
    )
    keySharedLookAheadMsgInReplayThresholdPerSubscription: int = setting(
        20_000,
        "count",
        "Most entries of a Key_Shared subscription that wait while it reads on; 0: no limit",
        ge=0,
    )
    dispatcherMaxRoundRobinBatchSize: int = setting(
        20, "count", "Entries a consumer of a Shared subscription gets in a row in its turn", ge=1
    )
    enableBrokerSideSubscriptionPatternEvaluation: bool = setting(
        True, "", "The broker evaluates topic patterns, and tells clients of new topics at once"
    )
    scalableTopicsEnabled: bool = setting(
        True, "", "Clients of Pulsar 5 (the V5 API) may use topics"
    )
    subscriptionPatternMaxLength: int = setting(
        50, "characters", "Longest topic pattern that the broker evaluates", ge=1, le=1000
    )
    activeConsumerFailoverDelayTimeMillis: int = setting(
        1000, "ms", "Wait before a new active consumer of a Failover subscription starts", ge=0
    )
    activeConsumerFailoverConsistentHashing: bool = setting(
        False,
        "",
        "The active consumer of a partition is chosen by consistent hashing instead of the "
        "partition's number",
    )
    acknowledgmentAtBatchIndexLevelEnabled: bool = setting(
        False, "", "Messages of a batch are acknowledged one by one"
    )
    maxUnackedMessagesPerConsumer: int = setting(
        50_000, "count", "A consumer with more unacknowledged messages waits; 0: no limit", ge=0
    )
    maxUnackedMessagesPerSubscription: int = setting(
        200_000,
        "count",
        "A subscription with more unacknowledged messages waits; 0: no limit",
        ge=0,
    )
    maxUnackedMessagesPerBroker: int = setting(
        0,
        "count",
        "With more unacknowledged messages on the broker, subscriptions with many of them wait; "
        "0: no limit",
        ge=0,
    )
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: float = setting(
        0.16,
        "",
        "The share of maxUnackedMessagesPerBroker that one subscription may then have",
        ge=0,
        le=1,
    )
    brokerDeduplicationEnabled: bool = setting(
        False, "", "A message that a producer sends again is not stored again"
    )
    schemaCompatibilityStrategy: str = setting(
        "FULL",
        "",
        "What a new schema of a topic must be compatible with, unless its namespace has a policy",
        choices=SCHEMA_COMPATIBILITY_STRATEGIES,
    )
    systemTopicSchemaCompatibilityStrategy: str = setting(
        "ALWAYS_COMPATIBLE",
        "",
        "The same for the broker's own topics",
        choices=SCHEMA_COMPATIBILITY_STRATEGIES,
    )
    isAllowAutoUpdateSchemaEnabled: bool = setting(
        True, "", "Producers and consumers may register new schemas; the admin API always may"
    )
    isSchemaValidationEnforced: bool = setting(
        False, "", "A producer without a schema is refused if the topic has one"
    )
    brokerServiceCompactionMonitorIntervalInSeconds: int = setting(
        60, "s", "Time between two searches for topics above their compaction threshold", ge=1
    )
    topicCompactionRetainNullKey: bool = setting(
        False, "", "Compaction keeps messages that have no key"
    )
    defaultNumberOfNamespaceBundles: int = setting(
        4,
        "count",
        "Bundles of a namespace that is created without a number of bundles",
        ge=1,
        le=1024,
    )
    defaultNamespaceBundleSplitAlgorithm: str = setting(
        "range_equally_divide",
        "",
        "Where a bundle is cut that is split: range_equally_divide (in its middle), "
        "topic_count_equally_divide (as many topics on both sides) or flow_or_qps_equally_divide "
        "(as much goes on on both sides)",
        choices=(
            "range_equally_divide",
            "topic_count_equally_divide",
            "flow_or_qps_equally_divide",
        ),
    )
    forceDeleteTenantAllowed: bool = setting(
        False, "", "A tenant may be deleted together with its namespaces (force=true)"
    )
    forceDeleteNamespaceAllowed: bool = setting(
        False, "", "A namespace may be deleted together with its topics (force=true)"
    )

    # -- load of several brokers ---------------------------------------------------------------

    loadBalancerEnabled: bool = setting(
        True, "", "With several brokers bundles are split and moved by themselves at all"
    )
    loadBalancerMaxNumberOfBundlesInBundleLoadReport: int = setting(
        10,
        "count",
        "A broker tells of so many of its bundles how busy it is with them",
        ge=1,
        le=100,
    )
    loadBalancerSheddingEnabled: bool = setting(
        True, "", "A broker that is clearly busier than the others gives bundles to less busy ones"
    )
    loadBalancerSheddingIntervalMinutes: int = setting(1, "min", "It is looked at this often", ge=1)
    loadBalancerSheddingGracePeriodMinutes: int = setting(
        30, "min", "A bundle that was moved stays for this time at least", ge=0
    )
    loadBalancerBrokerThresholdShedderPercentage: int = setting(
        10,
        "%",
        "A broker is clearly busier if it is busy for so much more of the time than all on average",
        ge=1,
        le=100,
    )
    loadBalancerAutoBundleSplitEnabled: bool = setting(
        True, "", "With several brokers, bundles in which too much goes on are split"
    )
    loadBalancerAutoUnloadSplitBundlesEnabled: bool = setting(
        True, "", "The parts of such a bundle go to the brokers that are chosen for them"
    )
    loadBalancerNamespaceBundleMaxTopics: int = setting(
        1000, "count", "Loaded topics from which on a bundle is split; 0: any number is right", ge=0
    )
    loadBalancerNamespaceBundleMaxSessions: int = setting(
        1000, "count", "The same for producers and consumers", ge=0
    )
    loadBalancerNamespaceBundleMaxMsgRate: int = setting(
        30000, "1/s", "The same for messages, in and out", ge=0
    )
    loadBalancerNamespaceBundleMaxBandwidthMbytes: int = setting(
        100, "MB/s", "The same for bytes, in and out", ge=0
    )
    loadBalancerNamespaceMaximumBundles: int = setting(
        128, "count", "Bundles of a namespace that has this many are not split by themselves", ge=1
    )

    # -- statistics --------------------------------------------------------------------------

    statsUpdateFrequencyInSecs: int = setting(
        60, "s", "Rates are averages over at least this time", ge=1
    )
    exposeTopicLevelMetricsInPrometheus: bool = setting(
        True, "", "/metrics has series per topic and subscription, not only per namespace"
    )
    exposeConsumerLevelMetricsInPrometheus: bool = setting(
        False, "", "/metrics has series per consumer"
    )
    exposeProducerLevelMetricsInPrometheus: bool = setting(
        False, "", "/metrics has series per producer"
    )
    splitTopicAndPartitionLabelInPrometheus: bool = setting(
        False, "", "/metrics labels a partition by its topic and a partition label"
    )

    # -- the process -------------------------------------------------------------------------

    statusFilePath: str = setting(
        "",
        "path",
        "/status.html says OK only while there is this file, so that a broker can be taken out of "
        "a load balancer; empty: once the broker has started",
    )
    logLevel: str = setting(
        "WARNING",
        "",
        "Least severe messages that are logged",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        own=True,
    )
    logFormat: str = setting(
        "text",
        "",
        "Format of log lines: text for people, or one JSON object per line for programs",
        choices=("text", "json"),
        own=True,
    )

    def __post_init__(self) -> None:
        check_together(self)
