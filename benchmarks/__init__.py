"""Measurements: Pulsark beside Apache Pulsar, and its parts alone."""
