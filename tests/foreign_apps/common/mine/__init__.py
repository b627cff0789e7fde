"""Learns which of two classes a row is in."""
