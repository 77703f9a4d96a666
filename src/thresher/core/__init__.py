"""Pure tensor maths of learned token pruning; knows torch and nothing else."""
