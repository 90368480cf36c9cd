"""How attention is computed, for one head."""
