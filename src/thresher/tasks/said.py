"""Differences in quality in words, so that a minus sign need not be read as a gain."""


def drop_or_gain(drop: float) -> str:
    """A drop of the score, 0.01 for one point, as "drop 1.00 points", and a negative one as "gain 1.00 points"."""
    return f"{'gain' if round(100 * drop, 2) < 0 else 'drop'} {abs(100 * drop):.2f} points"
