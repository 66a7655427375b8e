"""How much of something may happen in a time: arithmetic alone, without clocks and timers.

``bucket`` has the token bucket in which all rates are kept: publishes, dispatch, subscribing.
"""
