"""The pure core of a trial: its program, one step, its loss, lanes, and what it costs."""
