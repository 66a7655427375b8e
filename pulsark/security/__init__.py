"""Who a client is, and what it may do.

Start with ``principal``, what a login comes to, and ``logins``, which lets clients in or not.
``providers`` asks each way to log in that is configured, in order: ``tokens``, ``passwords``,
``certificates`` and ``openid`` are built in, and ``provider`` says what one of a user has.
``keys`` reads keys from wherever a setting says they are.

What it may do is decided in ``decisions``, a pure function: ``operations`` says what each operation
needs, ``facts`` what there is to know of settings, tenants and namespaces, ``known_facts`` keeps
that in memory, and ``grants`` changes the permissions of roles in a namespace's policies.

``audit`` is a room of its own: what is noted of who did what. ``token_ids`` names tokens there.

Nothing here knows a socket: the ports take credentials and answer. Failed credentials never make
anybody anonymous. Libraries of cryptography are imported only when a provider needs them, so a
broker without authentication does not load them.
"""
