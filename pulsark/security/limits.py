"""Bounds of logins, certificates and decisions. `pulsark.limits` says what belongs here."""

from __future__ import annotations

# -- files and tokens ------------------------------------------------------------------------

CRL_FILE_BYTES_MAX = 16 << 20
"""Largest file of revocation lists."""

KEY_FILE_BYTES_MAX = 1 << 20
"""Largest file with a key, with users or with an issuer's keys."""

TOKEN_BYTES_MAX = 64 * 1024
"""Longest token: it is verified on the event loop, and a connected client's frames are large."""

TOKEN_KEYS_MAX = 8
"""Most keys that may verify tokens: a forged token costs one verification for each of them."""

TOKEN_HEADER_CHARS_MAX = 8 * 1024
"""Longest header of a token, in base64."""

TOKEN_ID_CHARS_MAX = 128
"""Longest ``jti`` by which the audit and the log name a token."""

ROLE_CHARS_MAX = 256
"""Longest name of a role."""

ISSUER_RETRY_SECONDS = 5.0
"""Pause before an issuer's keys are fetched again after a failure."""

# -- passwords and failed logins -------------------------------------------------------------

PASSWORD_BYTES_MAX = 256
"""Longest password: the time of hashing grows with it."""

PASSWORDS_REMEMBERED_MAX = 10_000
"""Verified passwords that are accepted again without hashing."""

PASSWORDS_REMEMBERED_SECONDS = 60.0
"""Time for which a verified password is remembered."""

LOGINS_WAITING_MAX = 1000
"""Passwords in the queue for hashing. When it is full, the address with most of them loses its
newest."""

FAILED_LOGINS_PER_SECOND_MAX = 10
"""Failed logins of one address that are answered at once in a second; later ones are delayed."""

FAILED_LOGIN_DELAY_SECONDS = 1.0
"""Delay of the answer to those failed logins."""

FAILED_LOGINS_DELAYED_MAX = 256
"""Failed logins over HTTP and Flight that wait at a time; further ones are answered at once."""

TRIALS_MAX = 10_000
"""Addresses with a recent failed login that are remembered."""

COMPLAINT_SECONDS = 60.0
"""Each cause of failed logins is logged as a warning at most once in this time."""

COMPLAINT_ADDRESSES_MAX = 5
"""Addresses that a warning names of the failures since the warning before."""

# -- connected clients -----------------------------------------------------------------------

EXPIRY_LOOKED_AT_SECONDS = 3600.0
"""Longest pause between two comparisons of a credential's expiry with the wall clock, which may
be set."""

REFRESH_SECONDS_MIN = 1.0
"""Shortest time between two refreshes of the credentials of one connection."""

FACTS_KEPT_MAX = 200_000
"""Most tenants, namespaces and grants that are cached for decisions."""

REVOKED_AGAIN_SECONDS = 10.0
"""A changed grant is checked once more after this time: creating a producer or consumer takes
less."""

REVISITED_PER_TURN_MAX = 100
"""Producers and consumers whose permission is checked again in one turn of the event loop."""

# -- accepting -------------------------------------------------------------------------------

LISTEN_BACKLOG = 1024
"""Connections that the system keeps for a port until they are accepted."""

ACCEPTS_PER_TURN_MAX = 4
"""Connections that a port without TLS accepts in one turn: each costs about 0.1 milliseconds, and
its login the double."""

REFUSED_PER_TURN_MAX = 32
"""Connections that are refused in one turn: each costs about 0.015 milliseconds."""

REFUSED_PAUSE_SECONDS = 0.01
"""Pause of a port that has refused a connection, so that a flood costs a tenth of a core."""

ACCEPT_PAUSE_SECONDS = 1.0
"""Pause after a connection could not be accepted, because no descriptor is free for example."""

DESCRIPTORS_RESERVED_MAX = 1024
"""File descriptors that connections leave to storage and to the process's own calls; a third of a
small limit."""

STRANGERS_RELIEVED = 32
"""Connections without a login that are closed when no descriptor is left to accept another."""

STRANGERS_RELIEVED_PAUSE_SECONDS = 0.05
"""Pause until the next attempt then: the closed ones give their descriptors back meanwhile."""

# -- TLS -------------------------------------------------------------------------------------

TLS_HANDSHAKE_SECONDS = 10.0
"""A connection whose TLS handshake takes longer is closed."""

TLS_HANDSHAKE_SURE_SECONDS = 1.0
"""A handshake that takes longer makes room for others when too many are under way."""

TLS_HANDSHAKES_MAX = 256
"""TLS handshakes under way on one port. Beyond, the oldest such handshake is closed, or else the
newest."""

TLS_HANDSHAKES_PER_ADDRESS_MAX = 16
"""TLS handshakes of one address under way on one port."""

TLS_ACCEPTS_PER_TURN_MAX = 16
"""Connections that a TLS port accepts in one turn: each costs up to three milliseconds."""

TLS_CLOSE_SECONDS = 5.0
"""A closed TLS connection waits this long for the client's close notice."""
