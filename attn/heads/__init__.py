"""Heads: how the heads of an attention interact.

A value says it; a user's own is a frozen dataclass, a subclass of `Heads`, in any file,
which `attn.contract.check_heads` holds to the contract. B batch (any leading axes),
N queries, M keys, H heads, K = d_k, V = d_v, T entries of a cache.
"""

from attn.heads.base import Heads, Separate
from attn.heads.blocks import BlockHeads
from attn.heads.differential import Differential, differential
from attn.heads.exclusive import Exclusive, without_own
from attn.heads.indexed import IndexedHeads
from attn.heads.multi_token import MultiToken
from attn.heads.native_sparse import NativeSparse
from attn.heads.talking import TalkingHeads, talking_heads

__all__ = [
    "HEADS",
    "BlockHeads",
    "Differential",
    "Exclusive",
    "Heads",
    "IndexedHeads",
    "MultiToken",
    "NativeSparse",
    "Separate",
    "TalkingHeads",
    "differential",
    "talking_heads",
    "without_own",
]

HEADS = {
    "separate": Separate,
    "differential": Differential,
    "talking": TalkingHeads,
    "exclusive": Exclusive,
    "blocks": BlockHeads,
    "indexed": IndexedHeads,
    "native_sparse": NativeSparse,
    "multi_token": MultiToken,
}
"""The classes of this package by name."""
