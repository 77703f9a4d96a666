"""`python -m thresher`, and `accelerate launch -m thresher`."""

from thresher.cli import main

if __name__ == "__main__":
    main()
