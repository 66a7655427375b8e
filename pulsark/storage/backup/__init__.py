"""A copy of a standalone's data directory at one moment, made while it runs, and back again."""
