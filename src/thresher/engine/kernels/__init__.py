"""GPU kernels, one operation per file, each beside a readable twin in plain torch with the same signature.

Row counts live on the device: every kernel is launched for the capacity of its buffers, reads how many rows are live,
and its surplus programs leave at once. Rows past the live count are never read, and never written.
"""
