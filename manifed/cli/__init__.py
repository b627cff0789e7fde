"""The command ``manifed``."""
