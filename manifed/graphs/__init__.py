"""Communication graphs of decentralised learning: how they are made, weighed and measured."""
