"""Runs the points of a sweep: expands, checks, estimates, schedules and watches them."""
