"""Times translation, library by library, all with the same weights."""
