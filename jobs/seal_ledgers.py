"""Move messages from the journal into the tables of their topics.

spark-submit --properties-file conf/spark-defaults.conf jobs/seal_ledgers.py --every 20
"""

from pulsark.jobs.runner import main
from pulsark.jobs.seal_ledgers import JOB

if __name__ == "__main__":
    main(JOB)
