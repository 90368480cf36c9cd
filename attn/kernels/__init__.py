"""How the attention of one head is computed."""
