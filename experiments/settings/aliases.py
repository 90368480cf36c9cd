"""Names by which the literature and other libraries know what has another name here.

A message names what is meant; none of them is accepted, so that equal settings have equal
texts. Where one of them is another method, as squared ReLU, it is not in these tables.
"""


def _by_name(others: dict[str, str]) -> dict[str, str]:
    """Returns {other name: what is meant} of {what is meant: its other names}."""
    return {name: meant for meant, names in others.items() for name in names.split()}


POSITIONS = _by_name(
    {
        "learned or sinusoidal": "absolute",
        "learned": "embedding learnt",
        "forget": "forgetting forgetting_transformer fox",
        "none": "no nope",
        "path": "householder",
        "rotary(scaling=ntk)": "ntk",
        "randomised": "randomized",
        "rotary": "roformer rope rotary_embedding",
        "sinusoidal": "sin sincos sine sinusoid sinusoids",
        "rotary(scaling=yarn)": "yarn",
    }
)
NORMALISERS = _by_name(
    {
        "entmax": "alpha_entmax",
        "entmax(alpha=1.5)": "entmax15",
        "off_by_one": "quiet_softmax softmax1 softmax_1 softmax_one",
        "stick_breaking": "sb",
        "scalable_softmax": "ssmax",
        "top_k": "topk",
    }
)
SCORES = _by_name(
    {
        "additive": "bahdanau concat mlp",
        "qk_norm(norm=l2)": "cos cosine",
        "dot": "dot_product",
        "bilinear": "general multiplicative",
        "softcap": "logit_softcap soft_cap",
        "dot or bilinear": "luong",
        "qk_norm": "qknorm",
        "scaled_dot": "scaled_dot_product sdpa",
    }
)
HEADS = _by_name(
    {
        "differential": "diff diff_transformer",
        "separate with model.h_kv, a divisor of model.h": "gqa",
        "separate": "mha multihead none",
        "separate with model.d_c": "mla",
        "separate with model.h_kv=1": "mqa",
        "talking": "talking_heads",
        "exclusive": "xsa",
        "multi_token": "mta",
        "blocks": "moba",
    }
)
MIXERS = _by_name(
    {
        "convolution": "cnn conv",
        "deltanet": "delta delta_net",
        "separable": "depthwise",
        "gated_deltanet": "gated_delta_net gdn",
        "gated_linear_attention": "gla",
        "attention with model.h_kv, a divisor of model.h": "gqa",
        "recurrence(cell=gru)": "gru",
        "linear_attention": "linear",
        "kda": "kimi kimi_linear",
        "mamba2": "mamba mamba_2 ssd",
        "mamba3": "mamba_3",
        "deltanet(householders=2)": "deltaproduct",
        "short": "canon short_conv short_convolution",
        "restricted": "local sliding_window swa window",
        "recurrence(cell=lstm)": "lstm",
        "attention": "mha self_attention",
        "attention with model.d_c": "mla",
        "attention with model.h_kv=1": "mqa",
        "recurrence": "rnn",
    }
)
RESIDUALS = _by_name(
    {
        "scores": "realformer residual_attention",
        "values": "resformer value_residual",
    }
)
NORMS = _by_name(
    {
        "post(kind=layer)": "layer layernorm",
        "post": "post_norm postnorm",
        "pre": "pre_norm prenorm",
        "pre(kind=rms)": "rms rmsnorm",
        "both": "sandwich",
        "attnres": "attention_residual attention_residuals attn_res",
    }
)
FEED_FORWARDS = _by_name(
    {
        "gated(activation=gelu)": "geglu",
        "gated": "glu swiglu",
        "gated(activation=relu)": "reglu",
        "silu": "swish",
    }
)
OBJECTIVES = _by_name(
    {
        "label": "classification classify",
        "continue": "language language_modelling lm",
        "translate": "seq2seq translation",
    }
)
OPTIMIZERS = _by_name(
    {
        "sgd": "gradient_descent",
        "sgd(momentum=0.9)": "momentum",
        "adamw(weight_decay=0, nesterov=True)": "nadam",
        "sgd(momentum=0.9, nesterov=True)": "nesterov",
    }
)
SCHEDULES = _by_name(
    {
        "cosine": "cosine_decay",
        "paper": "inverse_sqrt noam rsqrt transformer",
        "linear": "linear_decay",
        "constant": "none",
        "warmup_stable_decay": "trapezoidal wsd",
    }
)
VALUES = _by_name(
    {
        "bfloat16": "bf16",
        "language": "decoder gpt language_model lm",
        "transformer": "encoder_decoder",
        "float32": "f32 fp32",
        "flipflop": "flip_flop",
        "rnn with model.cell=gru": "gru",
        "huggingface": "hf hugging_face",
        "none": "identity linear",
        "induction": "induction_heads",
        "rnn with model.cell=lstm": "lstm",
        "recall": "mqar",
        "tied": "shared",
        "silu": "swish",
        "separate": "untied",
    }
)
"""Of settings whose values are words; a hint is given where the setting has that word."""
KEYS = _by_name(
    {
        "data.objective": "answers",
        "model.feed_forward": "activation",
        "model.embedding_scale": "scale_embeddings",
        "training.accumulate": "accumulation gradient_accumulation grad_accum",
        "training.batch_size": "batch",
        "evaluation.beam": "beam_size beams",
        "model.d_ff": "d_hidden ffn_dim",
        "model.N": "depth layers n_layer n_layers num_layers",
        "model.d_model": "dim embed_dim hidden_size n_embd width",
        "model.P_drop": "dropout",
        "training.precision": "dtype",
        "training.steps": "epochs num_steps train_steps",
        "model.h_kv": "gqa heads_kv kv_heads mqa n_kv_heads num_kv_heads",
        "training.clip": "grad_clip max_grad_norm",
        "training.eps_ls": "label_smoothing",
        "training.learning_rate": "lr",
        "training.schedule": "lr_schedule lr_scheduler",
        "model.h": "mha n_head n_heads num_heads",
        "model.d_c": "mla",
        "seed": "random_seed",
        "training.sequence_length": "seq_len",
        "data.vocabulary_size": "vocab vocab_size",
    }
)
"""Of settings, whatever group they are looked for in."""
OPTIONS = _by_name(
    {
        "training.optimizer=adam(b1={})": "beta_1 beta1",
        "training.optimizer=adam(b2={})": "beta_2 beta2",
        "training.optimizer=adam(eps={})": "eps",
        "training.optimizer=sgd(momentum={})": "momentum",
        "training.schedule=paper(warmup={})": "warmup warmup_steps",
        "training.optimizer=adamw(weight_decay={})": "weight_decay",
    }
)
"""What is an option of a setting's value; {} stands for its own value."""
