"""How often a report's verdicts are false, found and missed, by simulation."""
