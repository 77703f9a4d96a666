"""Texts to token ids, the same for training, evaluation and the engine: flat arrays, an error for a bad text."""
