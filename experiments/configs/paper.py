"""The models of "Attention Is All You Need" (Vaswani et al. 2017), every setting as
sections 3, 5 and 6.1 state it.

    python -m launch.train --config=experiments/configs/paper.py --config.data.directory=DIR \
      --workdir=runs/base
    python -m launch.train --config=experiments/configs/paper.py:big \
      --config.data.directory=DIR --workdir=runs/big
    python -m launch.sweep --config=experiments/configs/table3.py --sweep=rows --dry_run

DIR holds WMT 2014 English-German: train.en, train.de, newstest2013.* and newstest2014.*,
plain or .gz. What the paper leaves open: how sentences are put into batches (here: packed,
in sequences of 256 tokens) and what happens to longer pairs (here: dropped and counted).

What the sections of the paper say, and the code that does it:

3.1    N = 6 layers in each stack, d_model = 512
       attn/config.py: `N: int`, `d_model: int`
3.1    LayerNorm(x + Sublayer(x))
       attn/nn/norms.py: `self.norm(x) if self.value.after`
3.2.1  softmax(QKᵀ/√d_k) V
       attn/scores.py: `d_k**-0.5`
3.2.2  h = 8 heads, d_k = d_v = 64, Concat(head_1, …) W_O, no biases
       attn/config.py: `h: int`, `d_k: int`, `biases: bool`
       attn/nn/attention.py: `self.w_o`
3.2.3  the decoder does not see what follows
       experiments/trial/program.py: `Mask.causal()`
3.3    max(0, xW_1 + b_1) W_2 + b_2, d_ff = 2048
       attn/config.py: `d_ff: int`
       attn/nn/layers.py: `Linear(self.d_ff`
3.4    one matrix for both embeddings and the output; embeddings × √d_model
       attn/config.py: `embeddings: str`
       attn/config.py: `self.d_model**0.5`
3.5    sin and cos interleaved, wavelengths to 10000 · 2π
       attn/positions/tables.py: `def sinusoidal`
5.1    batches of about 25,000 + 25,000 tokens; 37,000 tokens in the vocabulary
       experiments/configs/paper.py: `batch_size=104`, `vocabulary_size=37_000`
5.1    sentences of about equal length in a batch
       experiments/configs/wmt14_ende.py: `bucket_by_length`
5.2    100,000 steps; big 300,000
       experiments/configs/paper.py: `steps=100_000`, `steps=300_000`
5.3    Adam, β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹
       experiments/optim.py: `b1: float = 0.9, b2: float = 0.98, eps: float = 1e-9`
5.3    d_model^−0.5 · min(step^−0.5, step · 4000^−1.5)
       experiments/optim.py: `jnp.minimum(step**-0.5`
5.4    dropout 0.1 on each sub-layer's output, and on embedding + position
       experiments/settings/schema.py: `P_drop: float`
       attn/nn/norms.py: `self.drop(y, ctx)`
5.4    label smoothing 0.1
       experiments/settings/schema.py: `eps_ls: float`
       experiments/objectives/loss.py: `eps_ls / vocabulary`
6.1    the last 5 checkpoints averaged, for big 20
       experiments/configs/paper.py: `average=5`, `average=20`
6.1    beam 4, length penalty α = 0.6 (Wu et al. 2016), at most input length + 50
       experiments/settings/schema.py: `beam: int`, `alpha: float`, `max_extra: int`
6.2    the rows of Table 3, without averaging
       experiments/configs/table3.py: `def sweep_rows`

The parameters of every row of Table 3 equal the closed formula (base: 44.10 M without
embeddings); `python -m launch.bench fidelity` holds model and gradients to PyTorch's
`nn.Transformer` of the same weights, in float64 to 10⁻¹².

Not run here: base took its authors 12 hours on 8 GPUs.
"""

from experiments.settings import default_config

MODELS = ("base", "big")


def get_config(model="base"):
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    # The settings' own defaults are those of base.
    config = default_config(corpus="files")
    config.data.update(
        directory="wmt14",
        validation="newstest2013",
        test="newstest2014",
        vocabulary_size=37_000,
        max_length=256,
    )
    # 104 rows of 256 tokens are 26,600; packed they hold about 25,000 real ones on each side.
    config.training.update(
        batch_size=104,
        sequence_length=256,
        steps=100_000,
        log_every=100,
        evaluate_every=1500,
    )
    # The last 5 checkpoints, 10 minutes apart: 1,500 steps of 0.4 s.
    config.training.update(save_every=1500, average=5)
    config.evaluation.update(
        max_length=306, weights="average", beam=4, alpha=0.6, max_extra=50
    )
    if model == "big":
        config.model.update(d_model=1024, d_ff=4096, h=16, P_drop=0.3)
        # The last 20, 10 minutes apart: 600 steps of 1 s.
        config.training.update(
            steps=300_000, evaluate_every=3000, save_every=600, average=20
        )
    return config


def sweep_seed():
    for seed in (0, 1, 2):
        yield {"seed": seed}
