"""Jobs: work on topics that is done now and then, by a scheduler or by hand.

One module a job, found by its name (``catalog``); each has a ``JOB`` with its parameters and what
it does. ``runner`` is the frame: flags or one YAML file in, exit code and a JSON summary line out.
``jobs/*.py`` at the top of the repository start them under spark-submit, ``pulsark jobs run`` here.
"""
