"""Lets Spark find the format ``pulsark``: it imports every package named ``pyspark_*``.

An error here would switch off the discovery of all such packages on the machine, so a broken
installation only leaves a warning and Spark says that it does not know the format.
"""

import warnings

try:
    from pulsark.datasource.source import PulsarkSource as DefaultSource
except ImportError as error:
    warnings.warn(f"the format 'pulsark' is not available: {error}", stacklevel=2)
else:
    __all__ = ["DefaultSource"]
