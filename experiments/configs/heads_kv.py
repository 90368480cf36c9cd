"""The cache of decoding against quality: fewer heads of keys and values, or latents.

    python -m launch.sweep --config=experiments/configs/heads_kv.py --sweep=cache --seeds=5 \
      --workdir=runs/heads-kv

The claims: one head of keys and values for all heads of queries costs little quality (Shazeer
2019, "Fast Transformer decoding", arXiv 1911.02150, table 1), some heads lie between one and
all (Ainslie et al. 2023, arXiv 2305.13245), and latents of which keys and values are made are
at least as good as all heads (DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434). A row's
label has the bytes that a decoder keeps of a token in a layer of float32.

As Shazeer does, what is saved in W_K and W_V is given to the feed-forward networks, so that all
rows have about the same number of parameters. CLDR phrases, eight heads of width 8; a trial
takes about half a minute on one CPU core.
"""

from experiments.configs import quick


def get_config():
    config = quick.get_config()
    config.model.update(h=8, d_k=8, d_v=8)
    return config


def sweep_cache(config):
    m = config.model
    of_head = m.d_k + m.d_v
    whole = m.d_model * m.h * of_head
    for h_kv in (m.h, 4, 2, 1):
        size = m.d_model * h_kv * of_head
        yield {
            "label": f"h_kv={h_kv}, {4 * h_kv * of_head} bytes",
            # 0 is as many as queries have, and so the base's own.
            "model.h_kv": 0 if h_kv == m.h else h_kv,
            "model.d_ff": m.d_ff + more_d_ff(m, whole - size),
        }
    for d_c in (32, 16):
        size = d_c * (m.d_model + m.h * of_head)
        yield {
            "label": f"latents of {d_c}, {4 * d_c} bytes",
            "model.d_c": d_c,
            "model.d_ff": m.d_ff + more_d_ff(m, whole - size),
        }


def more_d_ff(m, saved: int) -> int:
    """Returns the hidden units for as many parameters as three attentions have saved.

    A layer of the encoder has one attention, of the decoder two, and both one network.
    """
    return round(3 * saved / (4 * m.d_model))
