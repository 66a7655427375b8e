"""Commands that call a running broker: over HTTP, and with the official client.

One module per group of commands; ``access`` logs in and makes the calls for all of them.
``messages`` produces and consumes with the official Python client. Commands print with
``cli.terminal`` and decide nothing: the broker checks names, values and permissions.
"""
