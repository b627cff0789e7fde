"""A bundle by somebody who is not to be trusted."""
