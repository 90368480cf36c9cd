"""Translation with 26 attentions since 2017, at equal parameters.

    python -m launch.sweep --config=experiments/configs/variants.py --sweep=variants --seeds=2 \
      --tune=training.learning_rate:0.18,0.35,0.7 --workdir=runs/variants

The question: which of them changes how well a small model translates, each trained at the
learning rate that is best for it? Their papers claim little here: most of them say what long
texts, stable training or a small cache gain, and that translation or perplexity loses nothing.
Linear attention and its relatives look back only: they mix the decoder's own positions, and the
rest stays softmax.

What a row's parts take in parameters the feed-forward networks give, so that all rows have
those of the base within 0.1 %. CLDR phrases; a trial takes about half a minute on one CPU core.
"""

from experiments.configs import quick

VARIANTS = {
    # What weights are made of scores by.
    "off by one": {"normaliser": "off_by_one"},
    "learned sink": {"normaliser": "sink"},
    "scalable softmax": {"normaliser": "scalable_softmax"},
    "sigmoid": {"normaliser": "sigmoid"},
    "ReLU": {"normaliser": "relu"},
    "sparsemax": {"normaliser": "sparsemax"},
    "entmax, 1.5": {"normaliser": "entmax"},
    "entmax, learned": {"normaliser": "adaptive_entmax"},
    "ASEntmax": {"normaliser": "asentmax"},
    # What a score is made of.
    "QK-norm": {"score": "qk_norm"},
    "softcap": {"score": "softcap"},
    # What heads share.
    "differential": {"heads": "differential"},
    "talking heads": {"heads": "talking"},
    "gate, head": {"gate": "head"},
    "gate, element": {"gate": "element"},
    "one head of keys": {"h_kv": 1},
    "latents of 16": {"d_c": 16},
    # Where positions come in.
    "rotary": {"positions": "rotary"},
    "ALiBi": {"positions": "alibi"},
    "T5": {"positions": "t5"},
    "KERPLE": {"positions": "kerple"},
    "FIRE": {"positions": "fire"},
    # What mixes the decoder's positions.
    "linear": {"decoder_mixing": "linear_attention"},
    "gated linear": {"decoder_mixing": "gated_linear_attention(decay=head)"},
    "DeltaNet": {"decoder_mixing": "deltanet"},
    "gated DeltaNet": {"decoder_mixing": "gated_deltanet"},
}

MORE_PARAMETERS = {
    "learned sink": 24,
    "scalable softmax": 24,
    "entmax, learned": 24,
    "ASEntmax": 72,
    "QK-norm": 768,
    "differential": 49_632,
    "talking heads": 192,
    "gate, head": 1_536,
    "gate, element": 24_576,
    "one head of keys": -36_864,
    "latents of 16": -30_720,
    "T5": 512,
    "KERPLE": 32,
    "FIRE": 792,
    "gated linear": 8_904,
    "DeltaNet": 544,
    "gated DeltaNet": 9_264,
}
"""What a variant adds to the base's parameters, as --dry_run says where d_ff stays."""


def get_config():
    return quick.get_config()


def sweep_variants(config):
    m = config.model
    # A unit of every feed-forward network: a column, a row, and a bias.
    of_unit = 2 * m.N * (2 * m.d_model + 1)
    yield {"label": "Transformer"}
    for label, settings in VARIANTS.items():
        row = {f"model.{name}": value for name, value in settings.items()}
        units = round(MORE_PARAMETERS.get(label, 0) / of_unit)
        yield {"label": label, **row, "model.d_ff": m.d_ff - units}
