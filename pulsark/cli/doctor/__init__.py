"""``pulsark doctor``: finds missing or damaged parts and says what to do about them.

``data_dir`` checks a stopped data directory, part by part (``metadata``, ``bookies``, ``journal``,
``roots``, ``tables``), and ``accepting`` gives up a damaged part. ``security`` shows what the
settings leave open, ``spark`` what Spark lacks. Each check returns ``finding``s with the next step.

Nothing but ``accepting`` changes any file.
"""
