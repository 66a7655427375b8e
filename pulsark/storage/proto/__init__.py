"""Compiled protobuf schemas of stored records."""
