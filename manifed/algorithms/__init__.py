"""One page an algorithm, beside its paper; and what all of them are made of."""
