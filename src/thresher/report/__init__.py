"""Records to figures; needs no torch."""
