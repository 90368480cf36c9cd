"""Draws the report's pictures as SVG text within an HTML page.

Equal input gives equal bytes. Text stays text and ink is pure black, so that a page's style
sheet sets the font and can turn both for a dark page; backgrounds are transparent.
"""
