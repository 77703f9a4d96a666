"""One file for each family of clients."""
