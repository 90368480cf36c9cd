"""Statistics of tables of runs: pure functions over arrays, which know no files or pages.

variance_stabilising   scales on which all scores of a metric vary alike
resampling             scores on resampled test sets, and what sentences add to variances
least_squares          means of rows, with the effects of seeds taken out
spreads                the standard deviation of every row over seeds, learned from all
contrasts              differences of rows to a base, with joint intervals and p-values
differences            the same in a metric's own units, with what more seeds would show
sequential             a table judged several times, with seeds where they decide
summary                means and intervals of a few values; Holm's correction
"""
