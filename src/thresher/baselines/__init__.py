"""Rival ways to choose tokens, for the same trainer and the same cost model. docs/baselines.md compares them."""

from thresher.training.registry import method_named

__all__ = ["method_named"]
