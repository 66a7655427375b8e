"""Everything that all routes share.

``login`` authenticates a request, ``guard`` checks what its route needs, and ``audit`` records it.
``requests`` reads names, flags and bodies, ``paths`` has the shapes of path segments. ``errors``
turns exceptions into Pulsar's status codes and error bodies, ``streams`` sends large answers piece
by piece, and ``budgets`` bounds what all requests together take of time and memory. ``browsers``
refuses requests that another site's page made a browser send.

With several brokers, ``places`` says where a route is served. ``forwarding`` passes a request to
that broker, ``spreading`` sends parts of one to several, and ``merging`` joins their answers.

Every route names its permission and its place. No route runs before both were checked.
"""
