"""Trim topics and their tables as their retention says; delete old files.

spark-submit jobs/apply_retention.py --namespace public/default
"""

from pulsark.jobs.apply_retention import JOB
from pulsark.jobs.runner import main

if __name__ == "__main__":
    main(JOB)
