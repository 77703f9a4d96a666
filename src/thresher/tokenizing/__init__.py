"""Texts to token ids, the same for training, evaluation and the engine: flat arrays, an error for a bad text.

And back: what tokens of long texts say, in characters of these texts.
"""
