"""Every size and limit that is not a setting, with its unit in the name.

Settings are what an operator may have a reason to change (`config.py`). What is here protects
the process or follows from the protocol, and changing it is a change of the program.
"""

from __future__ import annotations

# -- the event loop --------------------------------------------------------------------------

TURN_SECONDS = 0.005
"""What waits in the broker's run queue gets so much of a turn of the event loop."""

STALL_LOGGED_SECONDS = 0.25
"""All clients had to wait for so long: that is worth a line in the log."""

ENTRIES_PER_TURN_MAX = 500
"""So many entries are looked at in a row: some milliseconds."""

TOPICS_PER_TURN_MAX = 32
"""So many topics are looked at in a row where all of them are: some milliseconds at most."""

SUBSCRIPTIONS_AT_ONCE_MAX = 8
"""A topic hands new entries on to so many subscriptions at once; beyond, to each in its turn."""

CONSUMERS_LEAVING_AT_ONCE_MAX = 16
"""So many consumers of one connection leave a subscription together."""

CONSUMERS_TOLD_AT_ONCE_MAX = 64
"""So many consumers hear in a row who is the active one."""

# -- the binary protocol ---------------------------------------------------------------------

FRAME_OVERHEAD_BYTES = 10 * 1024
"""A frame may be this much larger than ``maxMessageSize``: command and message metadata."""

HANDSHAKE_FRAME_BYTES_MAX = 64 * 1024
"""Largest frame before a client has said who it is."""

COMMAND_BYTES_MAX = 1 << 20
"""Largest command of a frame, its entry apart. Parsed, it may take thirty times its bytes."""

MESSAGE_METADATA_BYTES_MAX = 1 << 20
"""Largest metadata of an entry, properties and all. Parsed, they take as much more memory."""

TOPIC_NAME_BYTES_MAX = 1024
"""Longest full name of a topic, in UTF-8."""

CLIENT_METADATA_CHARS_MAX = 1024
"""Keys and values together that a consumer may attach to itself, as in Pulsar, and a producer."""

SUBSCRIPTION_PROPERTIES_BYTES_MAX = 32 * 1024
"""Keys and values of a subscription's properties together, in UTF-8. They are stored with it."""

HANDSHAKE_SECONDS = 10.0
"""A client that has not said CONNECT by then is closed."""

REQUESTS_UNDER_WAY_MAX = 1000
"""Requests of one connection that wait for storage; above it, its socket is not read."""

REQUESTS_PER_TURN_MAX = 50
"""Requests of one connection that begin in one turn of the event loop: some milliseconds of it."""

IDS_PER_STEP_MAX = 1000
"""Message ids of one command that are handled in a row: some milliseconds of the event loop.
Clients send no more at a time, but a command has room for a hundred thousand."""

CONSUMER_NAME_CHARS_MAX = 1024
"""Longest name of a consumer. Failover hashes it a hundred times."""

PRODUCER_NAME_CHARS_MAX = 1024
"""Longest name of a producer. Deduplication keeps ten thousand of them."""

DEDUPLICATION_RETURN_SECONDS = 120.0
"""A producer that was disconnected is expected back in that time: clients try once a minute."""

DEDUPLICATION_WAIT_SECONDS = 5.0
"""A new producer waits this long until it is known what is stored of its name."""

DEDUPLICATION_BATCH_BYTES_MAX = 1 << 20
"""A batch is looked into for its last sequence id if its payload, decompressed, is not larger: that
takes some milliseconds of the event loop."""

DEDUPLICATION_BATCH_MESSAGES_MAX = 10_000
"""Nor has more messages. Clients put 1000 into one by default."""

ACK_SET_WORDS_BELIEVED_MAX = 16
"""Longest ack set, in words of 64 messages, of a batch whose size is not known. Clients put 1000
messages into a batch by default."""

BATCH_MASKS_WEIGHT_MAX = 1 << 20
"""What a cursor remembers of batches that are acknowledged in part: their words, and 8 for each.
That is a hundred thousand batches of up to 64 messages, and about 16 MiB."""

SUBSCRIPTION_NAME_CHARS_MAX = 1024
"""Longest name of a subscription."""

RECENTLY_CLOSED_PRODUCERS_MAX = 1000
"""Closed producer ids a connection remembers, to ignore publishes that were under way."""

PROBE_TIMEOUT_SECONDS = 5.0
"""How long a silent client is given to answer a ping before its place is given away."""

UNREAD_OUTPUT_BYTES_MAX = 1 << 20
"""A socket that holds more unsent bytes gets no further messages until it has drained."""

PENDING_PUBLISH_BYTES_MAX = 64 << 20
"""Bytes of one connection that wait for the journal; above it, its socket is not read."""

COUNTED_MESSAGES_MAX = 1_000_000
"""Most messages that one request of a Spark query lets the broker count."""

COUNTED_ENTRIES_MAX = 20_000
"""Most entries that it looks at for that: the next request goes on behind them."""

CURSOR_CHANGES_MAX = 100_000
"""Most changes of the cursors of a topic that a view shows: the newest."""

ADMIN_ACKS_MAX = 10_000
"""Most messages that one HTTP request acknowledges one by one."""

UNACKED_RANGES_MAX = 200_000
"""Most ranges of unacknowledged entries of a subscription that a view shows."""

QUERY_CLAIM_SECONDS = 3.0
"""A Spark query that is silent for longer has lost its subscriptions to whoever asks."""

QUERY_TOPICS_MAX = 200_000
"""Most topics that all Spark queries together follow with subscriptions."""

# -- Flight ----------------------------------------------------------------------------------

FLIGHT_LOBBY_MAX = 1024
"""Connections that have not spoken yet; beyond, the one that has waited longest is closed."""

FLIGHT_PREFACE_SECONDS = 5.0
"""A connection that has not spoken HTTP/2 by then is closed."""

FLIGHT_IDLE_SECONDS = 60.0
"""Who has been silent for so long makes room where all places are taken."""

# -- HTTP ------------------------------------------------------------------------------------

HTTP_BODY_BYTES_MAX = 1 << 20
"""Largest body of a request; a namespace's policies are far below."""

HTTP_TARGET_BYTES_MAX = 16 * 1024
"""Longest request target (path and query). A topic name's escapes triple its length."""

HTTP_HEAD_BYTES_MAX = 64 * 1024
"""Largest head of a request: it is buffered whole."""

HTTP_HEAD_TIMEOUT_SECONDS = 30.0
"""A connection that has not sent its first request by then is closed."""

HTTP_PIECE_BYTES = 64 * 1024
"""A large answer goes to the socket in pieces of about this size."""

METRICS_PER_TURN_MAX = 1000
"""So many samples are made in a row: some milliseconds of the event loop."""

HTTP_CLOSE_SECONDS = 2.0
"""How long requests under way may take to end when the process stops."""

SHOWN_PAYLOAD_BYTES_MAX = 16 << 20
"""Largest payload, decompressed, that the admin API shows: it is made on the event loop."""

ANALYZED_ENTRIES_MAX = 10_000
"""Most entries that one request counts, as Pulsar's subscriptionBacklogScanMaxEntries."""

JSON_DEPTH_MAX = 32
"""Deepest nesting of a request's JSON; the deepest that Pulsar's tools send is five."""

# -- metadata --------------------------------------------------------------------------------

METADATA_VALUE_BYTES_MAX = 1 << 20
"""Largest value in the metadata store (the interface's promise)."""

ROLE_CHARS_MAX = 256
"""Longest name of a role."""

KEPT_FIELDS_MAX = 64
"""Members of a policy that is only kept and shown."""

GRANTS_PER_NAMESPACE_MAX = 5_000
"""Most roles that a namespace names, with its topics and subscriptions: they are in its record."""

PARTITIONS_MAX = 10_000
"""Most partitions of a topic: each is a row in the metadata store and is created at once."""

NAMESPACE_BUNDLES_MAX = 1024
"""Most bundles of a namespace."""

NAME_CHARS_MAX = 255
"""Longest name of a tenant, a namespace or a cluster."""

TOPIC_PROPERTIES_MAX = 256
"""Most properties of a topic or a subscription."""

# -- schemas ---------------------------------------------------------------------------------

SCHEMA_BYTES_MAX = 512 * 1024
"""Largest definition of a schema. In base64 it still fits a value of the metadata store."""

SCHEMA_PROPERTIES_BYTES_MAX = 32 * 1024
"""Keys and values of a schema's properties together, in UTF-8."""

SCHEMA_ON_THE_LOOP_BYTES_MAX = 4096
"""A larger definition is parsed in a thread: this one holds the event loop for a millisecond."""

SCHEMA_DEPTH_MAX = 64
"""Deepest nesting of types in a definition."""

SCHEMA_COMPARISONS_MAX = 200_000
"""Pairs of types that are compared to decide about one schema, under a second. Two unions
cost the product of their lengths."""

SCHEMA_VERSIONS_MAX = 1000
"""Most versions of one topic's schema; a transitive strategy compares with all of them."""

SCHEMA_VERSIONS_BYTES_MAX = 16 << 20
"""Largest definitions of one topic's schema, all versions together."""

VALUE_TYPE_BYTES_MAX = 64 * 1024
"""Largest type of a table's column ``value``, as JSON: some hundred fields. It is part of the
table record and of commits. Fields beyond it get no columns; their messages are kept as sent."""

VALUE_FIELDS_MAX = VALUE_TYPE_BYTES_MAX // 60
"""A type with more fields would be larger. A definition in which types name each other often may
stand for more of them than could ever be counted."""

# -- configuration ---------------------------------------------------------------------------

CONFIG_FILE_BYTES_MAX = 1 << 20
"""Largest properties file."""

# -- topics ----------------------------------------------------------------------------------

UNUSED_NON_PERSISTENT_TOPIC_SECONDS = 60.0
"""A non-persistent topic that nobody has used for so long is forgotten."""

LOOKS_AT_REST_PER_SECOND = 500
"""So many topics that nobody has loaded are looked at in a second, each for 0.1 ms."""

VISITS_AT_REST_PER_SECOND = 20
"""So many of them are loaded in a second, because something is due."""

# -- subscriptions ---------------------------------------------------------------------------

TOPIC_PATTERN_MEMORY_BYTES = 1 << 20
"""Most memory that one topic pattern may take in the matcher."""

TOPIC_NAMES_PER_TURN = 1000
"""So many names of topics are looked at in a row: some milliseconds of the event loop."""

TOPIC_FEED_LINGER_SECONDS = 120.0
"""The topics of a namespace stay in memory for so long after a client asked for them. Clients that
follow a pattern by themselves ask once a minute."""

TOPIC_PATTERNS_KEPT_MAX = 32
"""Patterns of one namespace whose topics are remembered although nobody watches them."""

TOPIC_WATCHERS_PER_CONNECTION_MAX = 100
"""Most topic lists that one connection watches at the same time."""

COMPACTION_KEYS_MAX = 1_000_000
"""Most keys of a topic that a broker compacts by itself; they are in memory meanwhile."""

COMPACTED_HOLD_SECONDS = 600.0
"""A compacted ledger that another one has replaced stays for so long after the last read of a Spark
query that was planned with it."""

DECOMPRESSED_BYTES_MAX = 256 << 20
"""Largest payload that the broker decompresses."""

GREETING_SECONDS = 1.0
"""A consumer that sends no FLOW hears after this time whether it is the active one."""

READER_GRACE_SECONDS = 60.0
"""A reader that was told to connect anew and stays away this long loses its subscription."""

ARRIVAL_MARKS_MAX = 1024
"""Marks of when entries of a topic were stored (24 bytes each); those of long ago become fewer."""

CHUNKED_MESSAGES_MAX = 10_000
"""Large messages of a Shared subscription whose pieces are on their way to one consumer."""

LOOK_AHEAD_ENTRIES_MAX = 200_000
"""Entries of a Key_Shared subscription that may wait where no setting limits them."""

PUT_ASIDE_BYTES_MAX = 8 << 20
"""Bytes of entries that a subscription keeps at hand while they wait for their consumer."""

PLANNED_TOPICS_MAX = 500
"""Topics of which a Spark query asks for the plan at once."""

LEDGERS_PER_TURN_MAX = 500
"""Ledgers of one topic that are gone through before the event loop does other work."""

READS_PER_TURN_MAX = 16
"""The same where each is read from the metadata store, which may answer without a pause."""

LEDGERS_UNTIL_LARGER = 50_000
"""A topic with so many ledgers makes new ones twice as large, with twice as many four times."""

# -- the metadata store ----------------------------------------------------------------------

METADATA_SESSIONS_KEPT = 1000
"""Starts of a metadata store that it remembers, to know marks of its own past."""

METADATA_CHECK_SECONDS = 10.0
"""At a start, the metadata store's file is checked for at most so long."""

METADATA_WAL_CHECK_BYTES_MAX = 64 << 20
"""Largest write-ahead log that is checked frame by frame at a start."""

JOURNAL_END_SECONDS = 1.0
"""After so long without a write, a journal gets a small group behind the last one."""

METADATA_MARK_SECONDS = 1.0
"""A bookie notes the mark of a change of the metadata with its next group, or after so long."""

ADOPTED_LEDGER_IDS_LEFT_OUT = 1 << 20
"""Ledger ids that are left out above all seen when bookies are adopted: some may be away."""
