"""This application's Flower strategies, for a ServerApp of one's own or of a config."""
