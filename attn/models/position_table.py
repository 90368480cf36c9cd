"""The table of a model's position encodings, as a Linen module.

The table lives in its own variable collection, "positions", because whether it is trained
is a property of the experiment and not of the program: trials with different encodings
can share a compiled program.
"""

import flax.linen as nn
from jaxtyping import Array, Float, Int

from attn import platforms
from attn.lookup import rows
from attn.positions import Positions


class PositionTable(nn.Module):
    """Looks positions up in variable "table" (length, d_model) of collection "positions".

    An rng named "positions" is given in training, for positions that are drawn.
    """

    positions: Positions
    length: int
    d_model: int

    @nn.compact
    def __call__(self, positions: Int[Array, "*B N"]) -> Float[Array, "*B N D"]:
        def initial_table():
            # The table is no parameter, but at init it is drawn with the same rng.
            key = self.make_rng("params")
            return self.positions.table(key, self.length, self.d_model)

        table = self.variable("positions", "table", initial_table).value
        key = self.make_rng("positions") if self.has_rng("positions") else None
        places = self.positions.places(positions, self.length, key)
        return rows(table, places, platforms.sums_rows_by_product())
