"""Every size and limit that is not a setting, with its unit in the name.

Settings are what an operator may have a reason to change (`config/settings.py`). What is here
protects the process or follows from the protocol, and changing it is a change of the program.
Rooms with many bounds of their own have them in a `limits.py` of their own.
"""

from __future__ import annotations

# -- the event loop --------------------------------------------------------------------------

TURN_SECONDS = 0.005
"""Time of an event-loop turn for work in the broker's run queue."""

INTAKE_SECONDS = 4 * TURN_SECONDS
"""Time of a turn for commands that have just arrived. Connections that read later in the turn
postpone even their first command."""

POSTPONED_SECONDS = TURN_SECONDS / 2
"""Time of a turn for postponed commands."""

LIGHT_READ_BYTES = 2048
"""A read of a connection that brings no more is light: a small message, a few commands. While many
clients wait for a later turn, those with more to do have a line of their own."""

CROWDED_CLIENTS = 16
"""So many clients that wait for a later turn are many."""

REQUESTS_SECONDS = TURN_SECONDS
"""Time of a turn for the steps of requests, those over HTTP and those of the binary protocol that
wait for something. Later steps get the following turns."""

STALL_LOGGED_SECONDS = 0.25
"""Stalls of the event loop at least this long are logged."""

ENTRIES_PER_TURN_MAX = 500
"""Entries inspected in one turn: a few milliseconds."""

TOPICS_PER_TURN_MAX = 32
"""Topics inspected in one turn of a walk over all topics: a few milliseconds at most."""

SUBSCRIPTIONS_PER_TURN_MAX = 50
"""Subscriptions of one topic that are taken up in one turn: a few milliseconds."""

CURSORS_PER_TURN_MAX = 8
"""Cursors of one topic that are shown in one turn: each may have a thousand ranges."""

SUBSCRIPTIONS_AT_ONCE_MAX = 8
"""Subscriptions to which a topic hands new entries at once; the others follow in later turns."""

CONSUMERS_LEAVING_AT_ONCE_MAX = 16
"""Consumers of one connection that leave a subscription together."""

SLOTS_PLANNED_AT_ONCE_MAX = 200
"""Slots of a Key_Shared subscription that are planned anew in one turn, after consumers came or
went: about a millisecond."""

CONSUMERS_TOLD_AT_ONCE_MAX = 64
"""Consumers notified of the new active consumer in one turn."""

# -- the binary protocol ---------------------------------------------------------------------

BOOKIE_FRAME_OVERHEAD_BYTES = 10 * 1024
"""Bookies of Apache BookKeeper take frames this much larger than ``maxMessageSize``, as Pulsar has
it."""

FRAME_OVERHEAD_BYTES = BOOKIE_FRAME_OVERHEAD_BYTES - 64
"""A client's frame may be this much larger: command and message metadata. It leaves room for what
frames of bookies have beside an entry: one that does not fit would fail at all of them."""

HANDSHAKE_FRAME_BYTES_MAX = 64 * 1024
"""Largest frame before a client has said who it is."""

FIELDS_COUNTED_BYTES = 1 << 20
"""Commands and message metadata above this size are parsed only if they have few fields: parsed,
each takes thirty times its bytes. The frame alone limits their size, as in Pulsar."""

FIELDS_OF_LARGE_MAX = 5000
"""Most fields of such a command or such metadata: counting them takes ten milliseconds at most,
also where each has a number of ten bytes."""

COMMAND_TEXTS_MAX = 5000
"""Most texts, or pairs of texts, in one list of a command: reading them takes three milliseconds.
Clients send a few properties."""

TOPIC_NAME_BYTES_MAX = 1024
"""Longest full name of a topic, in UTF-8."""

CLIENT_METADATA_CHARS_MAX = 1024
"""Total length of keys and values in the metadata of a consumer, as in Pulsar, or of a producer."""

KEY_RANGES_MAX = 256
"""Ranges of hashes that one consumer names; they take about 16 bytes each while it is connected."""

SUBSCRIPTION_PROPERTIES_BYTES_MAX = 32 * 1024
"""Keys and values of a subscription's properties together, in UTF-8. They are stored with it."""

HANDSHAKE_SECONDS = 10.0
"""A client that has not sent CONNECT within this time is disconnected."""

HANDOVER_LOBBY_MAX = 1024
"""Clients of a port that brokers share that have not sent CONNECT; beyond, the oldest is closed."""

HANDOVER_WAITING_MAX = 1024
"""Clients that wait to be passed on to one other broker; beyond, one has to try again."""

HANDOVER_SENDERS_MAX = 64
"""Processes that pass clients on to one broker."""

REQUESTS_UNDER_WAY_MAX = 1000
"""Requests of one connection that wait for storage. Above it, the socket is not read."""

REQUESTS_CROWDED_MAX = 10
"""The same while the steps of many requests wait for the event loop."""

REQUESTS_WAITING_CROWDED = 200
"""Waiting steps of all requests from which on there are many."""

REQUESTS_BYTES_MAX = 32 << 20
"""Bytes of the large requests of all connections that are under way, or four of the largest. A role
holds at most as much as it leaves free; above that they are refused."""

REQUEST_COUNTED_BYTES = 4096
"""A request of more bytes is a large one."""

REQUESTS_PER_TURN_MAX = 10
"""Requests of one connection started in one turn: a few milliseconds of the next one."""

IDS_PER_STEP_MAX = 1000
"""Message ids of one command handled in one step: a few milliseconds.
Clients send no more at a time, but a command has room for a hundred thousand."""

CONSUMER_NAME_CHARS_MAX = 1024
"""Longest name of a consumer. Failover hashes it a hundred times."""

PRODUCER_NAME_CHARS_MAX = 1024
"""Longest name of a producer. Deduplication keeps ten thousand of them."""

DEDUPLICATION_RETURN_SECONDS = 120.0
"""A disconnected producer is expected back within this time: clients retry once a minute."""

DEDUPLICATION_WAIT_SECONDS = 5.0
"""Longest wait of a new producer for what is stored under its name."""

DEDUPLICATION_BATCH_BYTES_MAX = 1 << 20
"""Largest decompressed batch that is searched for its last sequence id: a few milliseconds."""

DEDUPLICATION_BATCH_MESSAGES_MAX = 10_000
"""Most messages of a batch that is searched. Clients put 1000 into one by default."""

ACK_SET_WORDS_BELIEVED_MAX = 16
"""Longest ack set, in words of 64 messages, of a batch whose size is not known. Clients put 1000
messages into a batch by default."""

BATCH_MASKS_WEIGHT_MAX = 1 << 20
"""Weight of partly acknowledged batches that a cursor remembers: their words, plus 8 for each.
That is a hundred thousand batches of up to 64 messages, and about 16 MiB."""

SUBSCRIPTION_NAME_CHARS_MAX = 1024
"""Longest name of a subscription."""

SUBSCRIBE_RATES_REMEMBERED_MAX = 10_000
"""Most consumers of a broker whose subscribe rates are counted; the oldest is forgotten."""

SUBSCRIPTION_RATES_MAX = 500
"""Most subscriptions of a topic with a dispatch rate of their own: one value of the metadata store
has them all."""

RECENTLY_CLOSED_PRODUCERS_MAX = 1000
"""Closed producer ids that a connection remembers, to ignore publishes still under way."""

RECENTLY_CLOSED_CONSUMERS_MAX = 1000
"""Ids of consumers that a connection remembers after the broker closed them."""

CONSUMER_RETURN_SECONDS = 5.0
"""Time for which a request waits for its consumer, which the broker closed, to subscribe again."""

PROBE_TIMEOUT_SECONDS = 5.0
"""Time a silent client has to answer a ping before it loses its place."""

UNREAD_OUTPUT_BYTES_MAX = 1 << 20
"""Unsent bytes of a socket above which it gets no messages until it has drained."""

UNREAD_OUTPUT_BYTES_COUNTED = 64 << 10
"""A socket with fewer unsent bytes than this does not count towards the limit of all."""

RECEIVED_BYTES_MAX = 32 << 20
"""What all connections together read in one turn and may have to carry out in later ones."""

RECEIVED_BYTES_MIN = 4 * 1024
"""Least that one connection may read at a time, however many there are."""

LARGE_FRAMES_BYTES_MAX = 64 << 20
"""Large frames of all connections together that have not arrived whole, or four of the largest. A
client holds at most as much as it leaves free; above that its connections are not read."""

LARGE_FRAME_SECONDS = 30.0
"""A large frame that has not arrived within this time ends its connection if others wait."""

PENDING_PUBLISH_BYTES_MAX = 64 << 20
"""Bytes of one connection that wait for the journal. Above it, the socket is not read."""

PUBLISH_OVERHEAD_BYTES = 256
"""Memory of a waiting publish beside its data."""

READ_WHILE_FULL_BYTES = 4096
"""Largest read from a connection with producers just before it is paused."""

COUNTED_MESSAGES_MAX = 1_000_000
"""Most messages that the broker counts for one request of a Spark query."""

COUNTED_ENTRIES_MAX = 20_000
"""Most entries inspected for one such request; the next request continues behind them."""

CURSOR_CHANGES_MAX = 100_000
"""Most changes of a topic's cursors that a view shows, newest first."""

ADMIN_ACKS_MAX = 10_000
"""Most messages that one HTTP request acknowledges individually."""

UNACKED_RANGES_MAX = 200_000
"""Most ranges of unacknowledged entries that one answer of the view of cursors has."""

UNACKED_BYTES_MAX = 20 << 20
"""Most bytes of those ranges in one answer, as JSON. It is built whole, and a client's share of
``HTTP_ANSWERS_BYTES_MAX`` has room for it."""

HISTORY_BYTES_PER_TURN = 32 << 10
"""Bytes of the history of cursors that are replayed in one turn: some milliseconds."""

RUNS_PER_TURN_MAX = 200
"""Runs of unacknowledged entries of a subscription looked up in one turn: some milliseconds."""

UNACKED_INDEXES_MAX = 200_000
"""Most indexes in batches that one answer of the view of cursors lists. Masks take less room."""

QUERY_CLAIM_SECONDS = 3.0
"""A Spark query that is silent for longer loses its subscriptions to any query that asks."""

QUERY_TOPICS_MAX = 200_000
"""Most topics and places that all Spark queries together hold. A role holds at most as much as it
leaves free."""

ENDED_TOPICS_MAX = 10_000
"""Deleted topics of which a broker remembers the last entry, for Spark queries that read them."""

# -- Flight ----------------------------------------------------------------------------------

FLIGHT_LOBBY_MAX = 1024
"""Connections that have not spoken yet. Above it, the oldest of them is closed."""

FLIGHT_PREFACE_SECONDS = 5.0
"""A connection that has not spoken HTTP/2 within this time is closed."""

FLIGHT_CALLS_MAX = 64
"""Calls under way on one connection: each has a thread."""

FLIGHT_CHUNKS_BYTES_MAX = 256 << 20
"""Bytes that all calls together read at a time; a call holds what it sends and what comes next.
Each call reads at least one entry and 64 KiB."""

FLIGHT_READS_MAX = 16
"""Flight calls that read entries at a time; the others wait for them."""

FLIGHT_REQUEST_BYTES_MAX = 20 * 1024
"""Largest request: a ticket, and some bytes around it."""

FLIGHT_REQUESTS_BYTES_MAX = 256 * 1024
"""Most bytes of requests that one connection has begun and not ended."""

FLIGHT_LOGIN_SURE_SECONDS = 1.0
"""A connection whose client has not logged in has this time in any case; then it may be cut for
another one. One of an address with many such connections has not even that."""

FLIGHT_COPY_BYTES_MIN = 16 * 1024
FLIGHT_COPY_BYTES_MAX = 256 * 1024
"""What a Flight connection is copied through: at first, and at most for what the server sends. A
client sends little, and over TLS 16 KiB at a time."""

FLIGHT_IDLE_SECONDS = 60.0
"""A connection silent for longer makes room when all places are taken."""

# -- HTTP ------------------------------------------------------------------------------------

HTTP_BODY_BYTES_MAX = 1 << 20
"""Largest request body; a namespace's policies are far below."""

HTTP_TARGET_BYTES_MAX = 16 * 1024
"""Longest request target (path and query). A topic name's escapes triple its length."""

HTTP_HEAD_BYTES_MAX = 64 * 1024
"""Largest head of a request: it is buffered whole."""

HTTP_HEAD_TIMEOUT_SECONDS = 30.0
"""A connection that has not sent its first request within this time is closed."""

HTTP_LOBBY_MIN = 256
"""Connections that may send the head of their first request, although all places are taken."""

HTTP_PROBES_MAX = 16
"""Connections of addresses that failed to log in too often that may still send a probe."""

HTTP_REQUEST_SECONDS = 60.0
"""A request that has not arrived completely within this time ends its connection."""

HTTP_UNREAD_SECONDS = 60.0
"""A client that reads nothing of its answer for this long is disconnected."""

HTTP_PIECE_BYTES = 64 * 1024
"""Large answers go to the socket in pieces of about this size."""

SCRAPE_PIECE_BYTES = 16 * 1024
"""Pieces in which metrics go to a client that takes no gzip; one is in memory for each."""

SCRAPE_REUSE_SECONDS_MAX = 1.0
"""Longest time for which built metrics are given out again; else for as long as building took."""

SCRAPES_BYTES_MAX = 32 << 20
"""Bytes of built metrics, compressed, that clients still read although there are newer ones.
Beyond, the connections that read the oldest are closed."""

METRICS_PER_TURN_MAX = 1000
"""Samples rendered in one turn: a few milliseconds."""

CALLS_TO_A_PEER_MAX = 64
"""Calls of one broker to another at a time; each may hold a request's body."""

PARTS_AT_ONCE_MAX = 8
"""Partitions, or brokers, that one request works on at a time; each may hold an answer."""

PEER_ANSWER_BYTES_MAX = 32 << 20
"""Largest answer of another broker that is merged with others."""

HTTP_CLOSE_SECONDS = 2.0
"""Time for requests under way to end when the process stops."""

HTTP_LAST_SECONDS = 1.0
"""The same for those that are told that it is too late."""

SHOWN_PAYLOAD_BYTES_MAX = 16 << 20
"""Largest decompressed payload that the admin API shows: it is rendered on the event loop."""

ANALYZED_ENTRIES_MAX = 10_000
"""Most entries one backlog analysis counts, like Pulsar's subscriptionBacklogScanMaxEntries."""

JSON_ON_THE_LOOP_BYTES_MAX = 8 * 1024
"""Larger JSON of a request is parsed in a thread, one body at a time. One of this size takes three
milliseconds at most."""

JSON_TEXT_CHARACTERS_MAX = 32 * 1024
"""Longest text in the JSON of a request that is JSON itself."""

JSON_VALUES_MAX = 30_000
"""Most values of a request's JSON: the parser holds the interpreter for about 10 ms."""

HTTP_ANSWERS_BYTES_MAX = 64 << 20
"""Bytes of all HTTP answers together that clients have not read. A role holds at most as much as it
leaves free; above that its requests get 503."""

HTTP_BODIES_BYTES_MAX = 32 << 20
"""Bytes of all request bodies together, shared out in the same way."""

HTTP_READS_BYTES_MAX = 8 << 20
"""Bytes of requests that all connections together have read and not parsed yet, or whose request
has not taken them."""

HTTP_READ_BYTES_MIN = 2 * 1024
HTTP_READ_BYTES_MAX = 16 * 1024
"""What one connection may read at a time: its part of ``HTTP_READS_BYTES_MAX``, within these."""

HTTP_UNSENT_BYTES_MAX = 16 * 1024
"""Unsent bytes of an HTTP connection above which its answer waits."""

JSON_DEPTH_MAX = 32
"""Deepest nesting of a request's JSON; the deepest that Pulsar's tools send is five."""

# -- metadata --------------------------------------------------------------------------------

METADATA_VALUE_BYTES_MAX = 1 << 20
"""Largest value in the metadata store; part of the store's contract."""

METADATA_COMMIT_CHANGES_MAX = 100
"""Most changes of one commit of the metadata store; part of its contract. etcd takes 128 with what
the store adds to them."""

METADATA_COMMIT_BYTES_MAX = METADATA_VALUE_BYTES_MAX + (64 << 10)
"""Most bytes of all values of one commit: the largest value, and the small ones with it."""

METADATA_PAGE_MAX = 1000
"""Most names in one page of a listing of the metadata store; part of its contract."""

KEPT_FIELDS_MAX = 64
"""Most members of a policy that is stored and shown, but has no effect."""

GRANTS_PER_NAMESPACE_MAX = 5_000
"""Most roles granted in a namespace, with its topics and subscriptions: one record holds them."""

METADATA_RETRY_SECONDS = 1.0
METADATA_RETRY_SECONDS_MAX = 30.0
"""What changed and could not be read is read again after this time, then after twice as long."""

PARTITIONS_MAX = 10_000
"""Most partitions of a topic: all are created at once, each a row in the metadata store."""

ISOLATION_PATTERNS_MAX = 500
"""Most regular expressions in all isolation policies of a cluster: a namespace is matched with them
in milliseconds."""

ISOLATION_PATTERN_CHARS_MAX = 200
"""Longest of them."""

BOOKIE_TEXT_CHARS_MAX = 300
"""Longest id, group, rack or host name of a bookie whose rack is set."""

NAMESPACE_BUNDLES_MAX = 1024
"""Most bundles of a namespace."""

NAME_CHARS_MAX = 255
"""Longest name of a tenant, a namespace or a cluster."""

TOPIC_PROPERTIES_MAX = 256
"""Most properties of a topic, a namespace or a subscription."""

TOPIC_PROPERTIES_BYTES_MAX = 32 * 1024
"""Most bytes of the keys and values of a topic's or namespace's properties, in UTF-8. They stay
in memory."""

# -- schemas ---------------------------------------------------------------------------------

SCHEMA_BYTES_MAX = 512 * 1024
"""Largest schema definition. In base64 it still fits a value of the metadata store."""

SCHEMA_PROPERTIES_BYTES_MAX = 32 * 1024
"""Total size of keys and values of a schema's properties, in UTF-8."""

SCHEMA_ON_THE_LOOP_BYTES_MAX = 4096
"""Larger definitions are parsed in a thread: one of this size takes a millisecond."""

SCHEMA_DEPTH_MAX = 64
"""Deepest nesting of types in a definition."""

SCHEMA_COMPARISONS_MAX = 200_000
"""Pairs of types compared to decide about one schema: under a second. Two unions
cost the product of their lengths."""

SCHEMA_VERSIONS_MAX = 1000
"""Most versions of one topic's schema; a transitive strategy compares with all of them."""

SCHEMA_VERSIONS_BYTES_MAX = 16 << 20
"""Total size of one topic's schema in bytes: definitions and properties of all versions together,
also of those before a deletion."""

VALUE_TYPE_BYTES_MAX = 64 * 1024
"""Largest type of a table's column ``value``, as JSON: some hundred fields. The table
record and commits contain it. Fields beyond it get no columns; their messages are kept as sent."""

VALUE_FIELDS_MAX = VALUE_TYPE_BYTES_MAX // 60
"""Fields that fit such a type. Types that refer to each other could expand to
more fields than can be counted, so counting stops here."""

# -- payloads --------------------------------------------------------------------------------
# The table process and Spark's executors share these. A payload beyond them has no typed value: it
# is kept as it was sent. They count bytes and values, never seconds, so that every reader decides
# alike.

VALUE_DEPTH_MAX = 100
"""Deepest nesting of records, arrays and maps in one payload; Protobuf's own parsers stop there."""

VALUE_ITEMS_MAX = 1 << 20
"""Most values in one payload, at all depths. Decoded one by one, each takes up to 300 bytes."""

VALUE_CELLS_MAX = 1 << 23
"""Most cells of columns that the objects of one payload may fill: 8 bytes each, at least."""

VALUE_CELLS_PER_BYTE = 16
VALUE_CELLS_FREE = 1 << 16
"""Cells allowed for each byte of a payload, beside those allowed for any. Two bytes can be an empty
object, which fills a cell in every column of its record."""

EMPTY_ITEMS_MAX = 1000
"""Most values without bytes within one value of a schema, such as nulls and empty records. Types
that refer to each other could make it any number."""

ROW_PAYLOAD_BYTES_MAX = 64 << 20
"""Largest decompressed payload of an entry that is taken apart into rows."""

ROW_BATCH_MESSAGES_MAX = 100_000
"""Most messages of a batch that is taken apart. Clients put 1000 into one by default."""

ROW_GROUP_CELLS_MAX = 1 << 24
"""About the most cells of one row group: rows times columns."""

FORM_SAMPLE_BYTES_MAX = 128 << 10
"""Bytes of messages from which the form of a topic's JSON is learned."""

# -- the log ---------------------------------------------------------------------------------

LOG_WINDOW_SECONDS = 60.0
"""Time for which the lines of a cause are counted."""

LOG_LINES_OF_CAUSE_MAX = 5
"""Warnings and errors that one cause, such as one topic with one template, writes in that time."""

LOG_LINES_OF_LASTING_CAUSE_MAX = 1
"""The same of a cause that wrote too much in the time before, beside its summary."""

LOG_LINES_OF_KIND_MAX = 50
"""Warnings and errors of one template in that time, whatever they are about."""

LOG_LINES_OF_LASTING_KIND_MAX = 10
"""The same of a template that wrote too much in the time before."""

LOG_CAUSES_MAX = 2000
"""Causes whose lines are counted; beyond, the oldest count ends early. About 1 MiB."""

# -- configuration ---------------------------------------------------------------------------

CONFIG_FILE_BYTES_MAX = 1 << 20
"""Largest properties file."""

# -- brokers ---------------------------------------------------------------------------------

FEATURE_LEVEL_CHECK_SECONDS = 60.0
"""How often a broker reads the feature level of its cluster."""

FEATURE_LEVEL_WAIT_SECONDS = 600.0
"""All brokers have run for this long before the level is raised: until then an upgrade can be
taken back."""

# -- topics ----------------------------------------------------------------------------------

UNUSED_NON_PERSISTENT_TOPIC_SECONDS = 60.0
"""An unused non-persistent topic is forgotten after this time."""

UNLOADED_LOOKS_PER_SECOND = 500
"""Unloaded topics inspected per second; each takes 0.1 ms."""

UNLOADED_VISITS_PER_SECOND = 20
"""Unloaded topics loaded per second because something is due."""

# -- subscriptions ---------------------------------------------------------------------------

PATTERN_MEMORY_BYTES = 1 << 20
"""Most memory that one regular expression of somebody else may take in the matcher."""

TOPIC_NAMES_PER_TURN = 1000
"""Topic names inspected in one turn: a few milliseconds."""

TOPIC_FEED_LINGER_SECONDS = 120.0
"""Time that the topic list of a namespace stays in memory after a client asked for it.
Clients that follow a pattern by themselves ask once a minute."""

TOPIC_PATTERNS_KEPT_MAX = 32
"""Patterns of one namespace whose matches stay in memory while nobody watches them."""

TOPIC_LISTS_ENCODED_BYTES_MAX = 32 << 20
"""Most bytes of topic lists, as they go over the wire, that are kept for other clients."""

TOPIC_WATCHERS_PER_CONNECTION_MAX = 100
"""Most topic lists that one connection watches at a time."""

COMPACTION_KEYS_MAX = 1_000_000
"""Most keys of a topic that a broker compacts without Spark; they are held in memory."""

COMPACTIONS_MAX = 2
"""Topics that a broker compacts at a time, one of each tenant: some 150 bytes for each key."""

COMPACTION_BATCH_BYTES_MAX = 16 << 20
"""Largest decompressed batch that is compacted; larger ones stay whole. Three copies are held.
Clients put 128 KiB into a batch by default."""

COMPACTION_BATCH_MESSAGES_MAX = 100_000
"""Most messages of such a batch. Clients put 1000 into one by default."""

COMPACTED_HOLD_SECONDS = 600.0
"""Time that a replaced compacted ledger stays after the last read of a Spark query that was
planned with it."""

DECOMPRESSED_BYTES_MAX = 256 << 20
"""Largest payload that the broker decompresses."""

GREETING_SECONDS = 1.0
"""A consumer that sends no FLOW hears after this time whether it is active."""

READER_GRACE_SECONDS = 60.0
"""A reader that was told to reconnect loses its subscription after this time."""

ARRIVAL_SAMPLES_MAX = 1024
"""Samples of when a topic's entries were stored (24 bytes each); older ones are thinned out."""

CHUNKED_MESSAGES_MAX = 10_000
"""Most chunked messages of a Shared subscription on their way to one consumer."""

CHUNK_UUID_CHARS_MAX = 64
"""Characters of a chunked message's id that are kept; of longer ones a digest is."""

LOOK_AHEAD_ENTRIES_MAX = 200_000
"""Waiting entries of a Key_Shared subscription when no setting limits them."""

PUT_ASIDE_BYTES_MAX = 8 << 20
"""Bytes of entries that a subscription keeps in memory while they wait for their consumer."""

PLANNED_TOPICS_MAX = 500
"""Topics in one planning request of a Spark query."""

LEDGERS_PER_TURN_MAX = 500
"""Ledgers of one topic inspected in one turn."""

READS_PER_TURN_MAX = 16
"""Metadata reads in one turn: the store may answer without a pause."""

LEDGERS_UNTIL_LARGER = 50_000
"""A topic with this many ledgers makes new ones twice as large, with twice as many four times."""

# -- the metadata store ----------------------------------------------------------------------

METADATA_SESSIONS_KEPT = 1000
"""Starts that a metadata store remembers, to recognise marks of its own past."""

METADATA_CHECK_SECONDS = 10.0
"""Longest check of the metadata store's file at a start."""

METADATA_CHANGES_KEPT = 5000
"""Changes kept for other processes on the same file. One that is further behind reads everything
again."""

METADATA_WAL_CHECK_BYTES_MAX = 64 << 20
"""Largest write-ahead log that is checked frame by frame at a start."""

JOURNAL_END_SECONDS = 1.0
"""A journal without writes for this long gets a small group behind the last one."""

METADATA_MARK_SECONDS = 1.0
"""A bookie notes the mark of a metadata change with its next group, or after this time."""

ADOPTED_LEDGER_IDS_LEFT_OUT = 1 << 20
"""Ledger ids skipped above all known ones when bookies are adopted: some may be away."""
