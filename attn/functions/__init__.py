"""Functions of the scores of one head, with gradients of their own where that pays."""
