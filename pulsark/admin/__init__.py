"""The HTTP port: admin API, lookup and metrics.

``server`` listens, and imports FastAPI at the first connection (``uvicorn_app``); ``app`` collects
the routes. ``pulsar`` has the routes of Pulsar's admin API, ``spark`` those of the data source,
``http`` what both share. Routes parse the request, call the broker and answer; they decide nothing.

Nothing of FastAPI or uvicorn is imported before the first connection: at the start of a broker
only ``server`` may be imported.
"""
