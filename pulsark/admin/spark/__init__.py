"""The routes that Spark, jobs and notebooks use; they are not part of Pulsar's API.

``segments`` gives a query its ranges, ``queries`` claims its subscription,
``views`` shows topics and cursors as tables, ``time_travel`` shows past versions. ``bulk_publish``,
``sealing`` and ``tables`` serve jobs and the command line; ``background_work`` runs work
that takes longer than a request.
"""
