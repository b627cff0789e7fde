"""Tables and figures, read from run folders."""
