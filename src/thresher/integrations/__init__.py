"""Models of other libraries, in memory, computed by thresher's engine: one added line in a script that has them."""
