"""Notebooks: each a readable source NAME.py, in jupytext's percent format, and
NAME.ipynb, run and stored by `make notebooks`.

attention_by_hand   from three tokens to multi-head attention
ablation            a sweep on the devices at hand, with its report
own_residual        a variant that two layers share, and what it learns
own_score           a score in eight lines, held to the contract and compared
own_text            one's own parallel files, from the text to a translator
"""
