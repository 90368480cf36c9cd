"""Checks of a custom score, normaliser, positions, heads, residual or mixer.

    for row in attn.contract.check_score(Cosine):
        print(row.what, "ok" if row.ok else row.detail)

Each function returns all its rows, whatever fails. B batch, N queries, M keys, H heads,
K = d_k, V = d_v, D = d_model.
"""

from attn.contract.common import Row
from attn.contract.heads import check_heads
from attn.contract.mixers import check_mixer
from attn.contract.normalisers import check_normaliser
from attn.contract.positions import check_positions
from attn.contract.residuals import check_residual
from attn.contract.scores import check_score

__all__ = [
    "Row",
    "check_heads",
    "check_mixer",
    "check_normaliser",
    "check_positions",
    "check_residual",
    "check_score",
]
