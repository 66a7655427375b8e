"""Erase the messages that a condition finds, for good.

    spark-submit --properties-file conf/spark-defaults.conf jobs/erase_messages.py \\
        --topic orders --where "key = 'x'"
"""

from pulsark.jobs.erase_messages import JOB
from pulsark.jobs.runner import main

if __name__ == "__main__":
    main(JOB)
