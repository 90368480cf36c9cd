"""How time and memory grow: over tokens, trials, pairs and devices."""
