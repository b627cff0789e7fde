"""The papers as printed, and the checks of docs/experiments."""
