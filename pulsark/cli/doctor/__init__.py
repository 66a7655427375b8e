"""``pulsark doctor``: finds missing or damaged parts and says what to do about them."""
