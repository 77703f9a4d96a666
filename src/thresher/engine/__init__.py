"""Packed inference that really drops tokens: no padding, and every layer works on what is left."""
