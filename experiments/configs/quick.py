"""A small Transformer on CLDR phrases: a trial takes about half a minute on one CPU core.

make sweep
python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed --workdir=runs/quick
"""

from experiments.settings import default_config


def get_config():
    config = default_config()
    config.model.update(N=2, d_model=64, d_ff=256, h=4, d_k=16, d_v=16, P_drop=0.05)
    config.training.update(
        steps=600,
        schedule="paper(warmup=100)",
        # The best of a few on validation, see systems.py.
        learning_rate=0.35,
        log_every=25,
        evaluate_every=150,
        save_every=300,
    )
    config.evaluation.update(beam=1)
    return config


def sweep_heads():
    """h at constant h·d_k, as rows (A) of the paper's Table 3."""
    for h in (1, 2, 4, 8):
        yield {"model.h": h, "model.d_k": 64 // h, "model.d_v": 64 // h}


def sweep_d_k():
    """d_k at constant h, as rows (B)."""
    for d_k in (4, 8, 16):
        yield {"model.d_k": d_k}


def sweep_positions():
    """The position encoding, as row (E), and none at all."""
    for positions in ("sinusoidal", "learned", "none"):
        yield {"model.positions": positions}


def sweep_table():
    """Heads, d_k and positions around one base, each row one change."""
    base = get_config().model
    seen = {(base.h, base.d_k, base.positions)}
    yield {}
    for point in (*sweep_heads(), *sweep_d_k(), *sweep_positions()):
        row = tuple(
            point.get(f"model.{name}", base[name]) for name in ("h", "d_k", "positions")
        )
        # Each of the three sweeps has base among its points.
        if row not in seen:
            seen.add(row)
            yield point


def sweep_seed():
    for seed in (0, 1):
        yield {"seed": seed}


def sweep_further():
    """Ten seeds that `sweep_seed` has not: they check what its table says."""
    for seed in range(2, 12):
        yield {"seed": seed}
