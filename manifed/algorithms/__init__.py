"""The algorithms of the papers, one module each, and the base classes that they derive from."""
