"""The dispatcher: serves producers and consumers over TCP.

``server`` accepts connections, ``connection`` speaks the protocol, ``broker`` owns topics,
``topic`` and the subscription modules decide who gets what.
"""
