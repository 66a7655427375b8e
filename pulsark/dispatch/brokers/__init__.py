"""The brokers that share the work: who is there, how busy each is, and who should take a bundle.

Start with ``registry``: it announces this broker, and follows the others. ``load`` is what a broker
says of itself, ``placement`` chooses by it (both pure), and ``leader`` elects the broker that does
what one of them has to do for all. Which broker *has* a bundle is the business of
``dispatch.topics.ownership``; nothing here decides about that.
"""
