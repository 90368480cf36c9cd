"""Times attention: what it takes forward and with gradients, library by library."""
