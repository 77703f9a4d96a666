"""The routes that clients of other servers call already, over the queue and engines of `serving`."""
