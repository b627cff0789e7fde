"""This application's Flower clients: a ClientApp from a problem, a client update and a shard."""
