"""Reading a config: from a TOML file to the frozen objects that run."""
