"""Jobs: maintenance and copying of topics, run by a scheduler or by hand.

One module per job; ``catalog`` finds it by name. Each has a ``JOB``: its parameters and its work.
``runner`` is the frame: it takes flags or one YAML file, and ends with an exit code and one line of
JSON. ``jobs/*.py`` at the top of the repository run under spark-submit; ``pulsark jobs run`` runs
the same jobs here.
"""
