"""A run's graph as a folder for stock runtimes, and the check of what was written against the engine."""
