"""Requests of many clients through one engine: queue, batches, deadlines; `http/` is the skin over it."""
