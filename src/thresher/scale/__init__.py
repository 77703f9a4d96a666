"""Many engines: on this machine, or on those of a Ray cluster."""
