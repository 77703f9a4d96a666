"""What stays is not looked at again: a server's share of Python's garbage collection."""

import gc


def keep_what_stays() -> None:
    """Take all that is there now out of the collector's sight.

    The libraries and a model are hundreds of thousands of objects. Under load the collector would look through all of
    them again and again, and no request goes on meanwhile. Who replaces a run calls gc.unfreeze before: what is out of
    sight is never freed where it stands in a circle.
    """
    gc.collect()
    gc.freeze()
