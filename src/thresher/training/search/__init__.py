"""Find the cheapest model whose quality drops at most a given amount."""
