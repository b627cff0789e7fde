"""From TOML to frozen objects, once."""
