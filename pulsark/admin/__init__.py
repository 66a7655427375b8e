"""The HTTP side: admin API, lookup and metrics.

Nothing of FastAPI or uvicorn is imported before the first connection: only `server.py` may be
imported at the start of a broker.
"""
