"""Copy a topic into a Delta table, each message once.

    spark-submit --properties-file conf/spark-defaults.conf jobs/topic_to_delta.py \\
        --topic orders --table /lake/orders --checkpoint /lake/_checkpoints/orders
"""

from pulsark.jobs.runner import main
from pulsark.jobs.topic_to_delta import JOB

if __name__ == "__main__":
    main(JOB)
