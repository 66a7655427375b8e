"""Keep the latest message of each key, of any number of keys.

spark-submit jobs/compact_topic.py --topic prices
"""

from pulsark.jobs.compact_topic import JOB
from pulsark.jobs.runner import main

if __name__ == "__main__":
    main(JOB)
