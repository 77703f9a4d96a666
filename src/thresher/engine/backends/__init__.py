"""Ways to compute a packed layer: `reference` is the readable truth, the others are fast and must agree with it."""
