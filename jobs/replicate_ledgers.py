"""Write again what storage roots have lost of sealed ledgers.

spark-submit --properties-file conf/spark-defaults.conf jobs/replicate_ledgers.py
"""

from pulsark.jobs.replicate_ledgers import JOB
from pulsark.jobs.runner import main

if __name__ == "__main__":
    main(JOB)
