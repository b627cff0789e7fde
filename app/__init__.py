"""The Flower application: its two apps, and the engines that run them from the command line."""
