"""The client of a broker's admin API, for the command line, Spark and jobs.

``client`` makes the calls: its class alone knows of addresses, headers, timeouts, retries and the
texts of errors. ``paths`` has the paths that its callers share. Both need only the standard
library, because each process of a Spark query pays for every import.
"""
