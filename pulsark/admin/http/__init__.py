"""What all routes share: requests, errors, large answers.

``requests`` reads names, flags and bodies, ``paths`` has the shapes of path segments; ``errors``
turns exceptions into Pulsar's status codes and error bodies; ``streams`` sends large answers piece
by piece; ``browsers`` refuses requests that a web page on another site made a browser send.
"""
