"""Names by which the literature and other libraries know what has another name here.

A message names what is meant; none of them is accepted, so that equal settings have equal
texts. Where one of them is another method, as squared ReLU, it is not in these tables.
"""

POSITIONS = {
    "absolute": "learned or sinusoidal",
    "embedding": "learned",
    "forgetting": "forget",
    "forgetting_transformer": "forget",
    "fox": "forget",
    "learnt": "learned",
    "no": "none",
    "nope": "none",
    "ntk": "rotary(scaling=ntk)",
    "randomized": "randomised",
    "roformer": "rotary",
    "rope": "rotary",
    "rotary_embedding": "rotary",
    "sin": "sinusoidal",
    "sincos": "sinusoidal",
    "sine": "sinusoidal",
    "sinusoid": "sinusoidal",
    "sinusoids": "sinusoidal",
    "yarn": "rotary(scaling=yarn)",
}

NORMALISERS = {
    "alpha_entmax": "entmax",
    "entmax15": "entmax(alpha=1.5)",
    "quiet_softmax": "off_by_one",
    "sb": "stick_breaking",
    "softmax1": "off_by_one",
    "softmax_1": "off_by_one",
    "softmax_one": "off_by_one",
    "ssmax": "scalable_softmax",
}

SCORES = {
    "bahdanau": "additive",
    "concat": "additive",
    "cos": "qk_norm(norm=l2)",
    "cosine": "qk_norm(norm=l2)",
    "dot_product": "dot",
    "general": "bilinear",
    "logit_softcap": "softcap",
    "luong": "dot or bilinear",
    "mlp": "additive",
    "multiplicative": "bilinear",
    "qknorm": "qk_norm",
    "scaled_dot_product": "scaled_dot",
    "sdpa": "scaled_dot",
    "soft_cap": "softcap",
}

HEADS = {
    "diff": "differential",
    "diff_transformer": "differential",
    "gqa": "separate with model.h_kv, a divisor of model.h",
    "mha": "separate",
    "mla": "separate with model.d_c",
    "mqa": "separate with model.h_kv=1",
    "multihead": "separate",
    "none": "separate",
    "talking_heads": "talking",
}

MIXERS = {
    "cnn": "convolution",
    "conv": "convolution",
    "delta": "deltanet",
    "delta_net": "deltanet",
    "depthwise": "separable",
    "gated_delta_net": "gated_deltanet",
    "gdn": "gated_deltanet",
    "gla": "gated_linear_attention",
    "gqa": "attention with model.h_kv, a divisor of model.h",
    "gru": "recurrence(cell=gru)",
    "linear": "linear_attention",
    "local": "restricted",
    "lstm": "recurrence(cell=lstm)",
    "mha": "attention",
    "mla": "attention with model.d_c",
    "mqa": "attention with model.h_kv=1",
    "rnn": "recurrence",
    "self_attention": "attention",
    "sliding_window": "restricted",
    "swa": "restricted",
    "window": "restricted",
}

RESIDUALS = {
    "realformer": "scores",
    "residual_attention": "scores",
    "resformer": "values",
    "value_residual": "values",
}

NORMS = {
    "layer": "post(kind=layer)",
    "layernorm": "post(kind=layer)",
    "post_norm": "post",
    "postnorm": "post",
    "pre_norm": "pre",
    "prenorm": "pre",
    "rms": "pre(kind=rms)",
    "rmsnorm": "pre(kind=rms)",
    "sandwich": "both",
}

FEED_FORWARDS = {
    "geglu": "gated(activation=gelu)",
    "glu": "gated",
    "reglu": "gated(activation=relu)",
    "swiglu": "gated",
    "swish": "silu",
}

OBJECTIVES = {
    "classification": "label",
    "classify": "label",
    "language": "continue",
    "language_modelling": "continue",
    "lm": "continue",
    "seq2seq": "translate",
    "translation": "translate",
}

OPTIMIZERS = {
    "gradient_descent": "sgd",
    "momentum": "sgd(momentum=0.9)",
    "nadam": "adamw(weight_decay=0, nesterov=True)",
    "nesterov": "sgd(momentum=0.9, nesterov=True)",
}

SCHEDULES = {
    "cosine_decay": "cosine",
    "inverse_sqrt": "paper",
    "linear_decay": "linear",
    "noam": "paper",
    "none": "constant",
    "rsqrt": "paper",
    "transformer": "paper",
    "trapezoidal": "warmup_stable_decay",
    "wsd": "warmup_stable_decay",
}

VALUES = {
    "bf16": "bfloat16",
    "decoder": "language",
    "encoder_decoder": "transformer",
    "f32": "float32",
    "flip_flop": "flipflop",
    "fp32": "float32",
    "gpt": "language",
    "gru": "rnn with model.cell=gru",
    "hf": "huggingface",
    "hugging_face": "huggingface",
    "identity": "none",
    "induction_heads": "induction",
    "language_model": "language",
    "linear": "none",
    "lm": "language",
    "lstm": "rnn with model.cell=lstm",
    "mqar": "recall",
    "shared": "tied",
    "swish": "silu",
    "untied": "separate",
}
"""Of settings whose values are words; a hint is given where the setting has that word."""

MOVED = {
    "data.answers": "data.objective=write",
    "model.activation": "model.feed_forward",
    "model.scale_embeddings": "model.embedding_scale",
}
"""Settings of earlier versions, with the ones that replace them."""

KEYS = {
    "accumulation": "training.accumulate",
    "batch": "training.batch_size",
    "beam_size": "evaluation.beam",
    "beams": "evaluation.beam",
    "d_hidden": "model.d_ff",
    "depth": "model.N",
    "dim": "model.d_model",
    "dropout": "model.P_drop",
    "dtype": "training.precision",
    "embed_dim": "model.d_model",
    "epochs": "training.steps",
    "ffn_dim": "model.d_ff",
    "gradient_accumulation": "training.accumulate",
    "grad_accum": "training.accumulate",
    "gqa": "model.h_kv",
    "heads_kv": "model.h_kv",
    "grad_clip": "training.clip",
    "hidden_size": "model.d_model",
    "kv_heads": "model.h_kv",
    "label_smoothing": "training.eps_ls",
    "layers": "model.N",
    "lr": "training.learning_rate",
    "lr_schedule": "training.schedule",
    "lr_scheduler": "training.schedule",
    "max_grad_norm": "training.clip",
    "mha": "model.h",
    "mla": "model.d_c",
    "mqa": "model.h_kv",
    "n_embd": "model.d_model",
    "n_head": "model.h",
    "n_heads": "model.h",
    "n_kv_heads": "model.h_kv",
    "n_layer": "model.N",
    "n_layers": "model.N",
    "num_heads": "model.h",
    "num_kv_heads": "model.h_kv",
    "num_layers": "model.N",
    "num_steps": "training.steps",
    "random_seed": "seed",
    "seq_len": "training.sequence_length",
    "train_steps": "training.steps",
    "vocab": "data.vocabulary_size",
    "vocab_size": "data.vocabulary_size",
    "width": "model.d_model",
}
"""Of settings, whatever group they are looked for in."""

OPTIONS = {
    "beta_1": "training.optimizer=adam(b1={})",
    "beta_2": "training.optimizer=adam(b2={})",
    "beta1": "training.optimizer=adam(b1={})",
    "beta2": "training.optimizer=adam(b2={})",
    "eps": "training.optimizer=adam(eps={})",
    "momentum": "training.optimizer=sgd(momentum={})",
    "warmup": "training.schedule=paper(warmup={})",
    "warmup_steps": "training.schedule=paper(warmup={})",
    "weight_decay": "training.optimizer=adamw(weight_decay={})",
}
"""What is an option of a setting's value; {} stands for its own value."""
