"""``pulsark doctor``: what is missing or damaged, and what to do about it."""
