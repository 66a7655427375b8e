"""``make demo``: a year of flights through a topic into a Spark stream, checked to the last one."""
