"""Times a training step of the Transformer, library by library."""
