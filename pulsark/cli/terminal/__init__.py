"""The terminal: arguments in, tables, JSON and one-line errors out.

``arguments`` has the options that several commands share, ``login`` reads how to log in, ``output``
prints data as text of 80 columns or as JSON, and ``errors`` ends a command with one line.
``client_log`` keeps the official client's log out of the output.
"""
