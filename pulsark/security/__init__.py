"""Who a client is, and what it may do.

Start with ``principal``, the result of a login, and ``logins``, which accepts or refuses clients.
``providers`` asks the configured providers in order: ``tokens``, ``passwords``, ``certificates``
and ``openid`` are built in, and ``provider`` is the interface for others. ``keys`` reads keys
from the places that settings name.

``decisions`` decides what a principal may do, as a pure function. ``operations`` has what each
operation needs, ``facts`` what a decision is based on (settings, tenants, namespaces), and
``known_facts`` keeps these facts in memory. ``grants`` changes the permissions of roles in a
namespace's policies. ``audit`` is a room of its own, the record of who did what; ``token_ids``
names tokens there.

``plain_listener`` and ``tls_listener`` accept connections, with certificates from ``tls``.
``trials``, ``failures`` and ``fair_worker`` keep failed logins of one address from disturbing
others, and ``complaints`` warns the operator of them. ``broker_calls`` signs calls between brokers.

Failed credentials never make a client anonymous. Providers import their cryptographic libraries, so
a broker without authentication does not load them.
"""
