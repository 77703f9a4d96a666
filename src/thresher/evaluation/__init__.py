"""Measuring what a pruned model gives and costs, on data it was not selected on."""
