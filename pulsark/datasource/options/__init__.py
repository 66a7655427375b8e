"""The options of ``format("pulsark")``: names, values, documentation.

``options`` checks the options of a read, ``option_values`` parses numbers, sizes and times,
``offsets`` parses positions in a topic, ``columns`` has the columns of a message, and
``option_docs`` describes each option for people. ``errors`` are for the author of the query: each
names the option and a valid value.
"""
