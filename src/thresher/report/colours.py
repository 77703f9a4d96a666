"""One scale of colours for every picture of dropped tokens: on a terminal, in an SVG image, on a page."""

SURVIVOR = "green"
FIRST, MIDDLE, LAST = (178, 34, 52), (240, 130, 40), (255, 235, 120)  # dark red, orange, bright yellow


def colour_of(layer: int, layers: int) -> tuple[int, int, int]:
    """Of a token that this layer (counted from 1) dropped: from dark red (first layer) to bright yellow (last)."""
    share = (layer - 1) / max(1, layers - 1)
    low, high = (FIRST, MIDDLE) if share < 0.5 else (MIDDLE, LAST)
    place = 2 * share if share < 0.5 else 2 * share - 1
    red, green, blue = (round(a + (b - a) * place) for a, b in zip(low, high, strict=True))
    return red, green, blue


def ink_on(colour: tuple[int, int, int]) -> str:
    """Black or white, whichever is easier to read on the colour (its luminance as sRGB weighs it)."""
    red, green, blue = colour
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 110 else "#fff"
