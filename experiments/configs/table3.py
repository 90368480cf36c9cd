"""Table 3 of the paper: which part of the Transformer matters, each row one change of base.

    python -m launch.sweep --config=experiments/configs/table3.py:tiny --sweep=rows --seeds=3 \
      --workdir=runs/table3-tiny
    python -m launch.sweep --config=experiments/configs/table3.py:small \
      --config.data.directory=DIR --sweep=rows --seeds=3 --workdir=runs/table3-small
    python -m launch.sweep --config=experiments/configs/table3.py --sweep=rows --dry_run

The question: do the paper's differences between rows show beside the chance of seeds, at
its sizes and at smaller ones? Read each row's verdict against base, and whether it supports
the paper's ordering. --only='base|[(]A' runs one block.

base   the paper's sizes and text, see paper.py
small  Multi30k, text as in multi30k.py: N 3, d_model 128, h 8
tiny   CLDR phrases, about half a minute a trial on one CPU core: N 3, d_model 64, h 8

Rows are reckoned from the preset's base and keep the paper's labels: "(A) h=16" has twice
the base's heads, "(C) N=2" a third of its layers. As in the paper no checkpoints are
averaged. Against the paper: big trains as long as base in small and tiny, where it would
take half of the table's time, and three times as long at the paper's sizes only; and P_drop
is 0.1 everywhere, which for Multi30k is too little for the best score.
"""

from experiments.configs import multi30k, paper, quick

PRESETS = ("base", "small", "tiny")


def get_config(preset="base"):
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
    if preset == "base":
        config = paper.get_config()
    elif preset == "small":
        config = multi30k.get_config()
        config.model.update(N=3, d_model=128, d_ff=512, h=8, d_k=16, d_v=16, P_drop=0.1)
        config.training.update(
            steps=3000,
            schedule="paper(warmup=1000)",
            learning_rate=1.0,
            evaluate_every=500,
            save_every=500,
            average=0,
        )
        config.evaluation.update(beam=4)
    else:
        config = quick.get_config()
        config.data.update(pairs=20_000)
        config.model.update(N=3, d_model=64, d_ff=256, h=8, d_k=8, d_v=8, P_drop=0.1)
        config.training.update(steps=300, evaluate_every=150, save_every=150)
    # paper.py and multi30k.py score averaged weights, and Table 3 does not.
    config.evaluation.update(weights="raw")
    return config


def sweep_rows(config):
    """The whole table."""
    yield {"label": "base"}
    for block in (sweep_A, sweep_B, sweep_C, sweep_D, sweep_E, sweep_big):
        yield from block(config)


def sweep_A(config):
    """Heads, at the same h·d_k and h·d_v."""
    m = config.model
    for label, h in (
        ("h=1", 1),
        ("h=4", m.h // 2),
        ("h=16", 2 * m.h),
        ("h=32", 4 * m.h),
    ):
        yield {
            "label": f"(A) {label}",
            "model.h": h,
            # h·d_k stays, so that all rows compute about as much (section 6.2).
            "model.d_k": m.h * m.d_k // h,
            "model.d_v": m.h * m.d_v // h,
        }


def sweep_B(config):
    """Narrower keys."""
    for label, part in (("d_k=16", 4), ("d_k=32", 2)):
        # d_v stays: the paper narrows the keys alone.
        yield {"label": f"(B) {label}", "model.d_k": config.model.d_k // part}


def sweep_C(config):
    """Fewer and more layers, narrower and wider ones."""
    m = config.model
    for label, thirds in (("N=2", 1), ("N=4", 2), ("N=8", 4)):
        # 2, 4 and 8 of the paper's 6 layers: every preset's N is divisible by 3.
        yield {"label": f"(C) {label}", "model.N": thirds * m.N // 3}
    for label, double in (("d_model=256", 1), ("d_model=1024", 4)):
        yield {
            "label": f"(C) {label}",
            "model.d_model": double * m.d_model // 2,
            # The paper keeps h and has d_k = d_v = d_model / h in these rows.
            "model.d_k": double * m.d_k // 2,
            "model.d_v": double * m.d_v // 2,
        }
    for label, double in (("d_ff=1024", 1), ("d_ff=4096", 4)):
        yield {"label": f"(C) {label}", "model.d_ff": double * m.d_ff // 2}


def sweep_D(config):
    """Less and more dropout and label smoothing."""
    for key in ("model.P_drop", "training.eps_ls"):
        for value in (0.0, 0.2):
            yield {"label": f"(D) {key.split('.')[1]}={value}", key: value}


def sweep_E(config):
    """Positions that are learned."""
    yield {"label": "(E) learned positions", "model.positions": "learned"}


def sweep_big(config):
    """Twice as wide everywhere."""
    m = config.model
    longer = {"training.steps": 300_000} if config.training.steps == 100_000 else {}
    yield {
        "label": "big",
        "model.d_model": 2 * m.d_model,
        "model.d_ff": 2 * m.d_ff,
        # With twice the heads, d_k and d_v stay as they are.
        "model.h": 2 * m.h,
        "model.P_drop": 0.3,
        **longer,
    }
