# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention by hand
#
# From three tokens to multi-head attention: each formula in a few lines of numpy, and
# beside it the library's function, which has to give the same.

# %% [markdown]
# Where attn is not installed, as in Colab, `ATTN` is a wheel: one that was uploaded here
# (`make wheel` leaves it in `dist/`), its path or its address; or the folder of a clone.
# JAX stays as the runtime has it. `DEVICE = "tpu"` or `"gpu"` tells where there is none.

# %% tags=["parameters"]
ATTN = "attn-*.whl"
DEVICE = "any"
SMALL = False  # a run of seconds, to see whether all works

# %%
from importlib.util import find_spec

if not find_spec("launch"):
    get_ipython().run_line_magic("pip", f"install --quiet --no-deps {ATTN}")

# %%
from launch.notebooks.environment import start

devices = start(DEVICE)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attn

# %% [markdown]
# ## Three tokens
#
# "I love AI": each token has a query, a key and a value of four numbers. A token asks
# with its query, is asked by its key, and gives its value.

# %%
tokens = ["I", "love", "AI"]
Q = np.array([[2, 0, 1, -1], [-1, 2, 0, 1], [0, -1, 2, 0]], np.float32)
K = np.array([[-1, 0, 2, 1], [1, -1, 0, 2], [2, 1, -1, 0]], np.float32)
V = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [3, 1, 2, 1]], np.float32)

# %% [markdown]
# How well does each query fit each key? The scores are dot products, divided by
# $\sqrt{d_k}$ so that they do not grow with the number of dimensions (section 3.2.1 of
# "Attention Is All You Need").

# %%
d_k = Q.shape[-1]
scores = Q @ K.T / np.sqrt(d_k)
scores

# %% [markdown]
# A softmax makes weights of them that are positive and sum to one: what part of its
# attention a token gives to each.


# %%
def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))  # the largest becomes 1: nothing overflows
    return e / e.sum(-1, keepdims=True)


weights = softmax(scores)
weights.round(2)

# %% [markdown]
# Each token gets the mean of the values, by its weights. That is all of attention:
# $\mathrm{softmax}(QK^\top/\sqrt{d_k})\,V$.

# %%
weights @ V

# %% [markdown]
# The library's function takes arrays (length, heads, d), here of one head, and gives the same.

# %%
q, k, v = (jnp.asarray(x)[:, None] for x in (Q, K, V))  # one head
out, kept = attn.attention(q, k, v, return_weights=True)
np.testing.assert_allclose(out[:, 0], weights @ V, rtol=1e-5)
np.testing.assert_allclose(kept[0], weights, rtol=1e-5)
out[:, 0]


# %%
def show(weights, queries, keys, titles=None):
    """A picture for each head of weights (heads, queries, keys)."""
    figure, axes = plt.subplots(
        1, len(weights), figsize=(2.6 * len(weights) + 1, 2.9), squeeze=False
    )
    for i, (ax, one) in enumerate(zip(axes[0], np.asarray(weights))):
        ax.imshow(one, vmin=0, vmax=1, cmap="Blues")
        ax.set(
            xticks=range(len(keys)),
            xticklabels=keys,
            yticks=range(len(queries)),
            yticklabels=queries if i == 0 else [],
            title=titles[i] if titles else "",
        )
        ax.tick_params(axis="x", rotation=60)
    figure.tight_layout()
    plt.show()


show(kept, tokens, tokens)

# %% [markdown]
# ## Temperature
#
# Scores may be divided by a temperature $T$ before the softmax. A small one sharpens the
# weights towards the best key, and in the limit is hard attention; a large one makes them
# equal, and each token gets the plain mean. $\sqrt{d_k}$ is such a temperature.


# %%
def at_temperature(T):
    return softmax(scores / T)


temperatures = (0.1, 0.5, 1.0, 2.0, 10.0)
show(
    [at_temperature(T) for T in temperatures],
    tokens,
    tokens,
    [f"T = {T}" for T in temperatures],
)
np.testing.assert_allclose(at_temperature(1e3), 1 / 3, atol=2e-3)

# %% [markdown]
# With ipywidgets, which Colab has, move it yourself. From which temperature on does "love"
# give its best key less than half of its attention?


# %%
def slide(draw, **ranges):
    """Shows a slider or menu for each argument of `draw`, where ipywidgets is installed."""
    try:
        import ipywidgets
    except ImportError:
        print("no sliders here: pip install ipywidgets")
    else:
        ipywidgets.interact(draw, **ranges)


slide(lambda T: show([at_temperature(T)], tokens, tokens), T=(0.1, 5.0, 0.1))

# %% [markdown]
# ## What may be seen
#
# A mask says which keys a query sees. It is a description, not an array; `picture` draws
# it. A decoder's queries see themselves and what came before:

# %%
mask = attn.Mask.causal()
print(mask.picture(3, 3))
out, kept = attn.attention(q, k, v, mask=mask, return_weights=True)
hidden = np.where(np.tri(3), scores, -np.inf)
np.testing.assert_allclose(kept[0], softmax(hidden), rtol=1e-5)
show(kept, tokens, tokens)

# %% [markdown]
# Masks combine with `&`: a window of one key to each side, of which two are real.

# %%
print((attn.Mask.window(1, 1) & attn.Mask.padding(jnp.array(2))).picture(3, 3))

# %% [markdown]
# ## Other scores
#
# What is compared is a value of its own, with parameters: dot product, scaled or not,
# bilinear $q^\top W k$, additive $v^\top\tanh(W_q q + W_k k)$. Without the division by
# $\sqrt{d_k}$ the softmax gets sharper as $d_k$ grows, and its gradient vanishes:


# %%
def sharpness(score, d_k, key=jax.random.key(0)):
    """The mean of the largest weight among 16 random keys."""
    q_key, k_key = jax.random.split(key)
    q = jax.random.normal(q_key, (200, 16, 1, d_k))
    k = jax.random.normal(k_key, (200, 16, 1, d_k))
    _, weights = attn.attention(q, k, k, score=score, return_weights=True)
    return float(weights.max(-1).mean())


sizes = [1, 4, 16, 64, 256]
for name, score in (("q·k", attn.Dot()), ("q·k / √d_k", attn.ScaledDot())):
    plt.plot(sizes, [sharpness(score, d_k) for d_k in sizes], marker="o", label=name)
plt.xscale("log", base=2)
plt.xlabel("d_k")
plt.ylabel("largest weight, mean")
plt.legend()
plt.show()

# %% [markdown]
# ## Hard attention
#
# In place of the mean, one value: that of the best key, or of a random one, drawn with the weights.

# %%
best, index = attn.argmax_attention(q, k, v)
drawn, at, log_prob = attn.sampled_attention(q, k, v, key=jax.random.key(1))
print(
    "best:", [tokens[i] for i in index[:, 0]], " drawn:", [tokens[i] for i in at[:, 0]]
)

# %% [markdown]
# ## Several heads
#
# A head has matrices of its own that make queries, keys and values of d_k and d_v numbers
# from vectors of d_model. The heads' outputs stand side by side and are multiplied by
# $W_O$. By hand, head by head:

# %%
d_model = 8
h = 2
d_k = 4
d_v = 3
x = jax.random.normal(jax.random.key(2), (3, d_model))
module = attn.MultiHeadAttention(attn.config.Attention(d_model, h, d_k, d_v))
variables = module.init(jax.random.key(3), x[None], attn.Context())
p = variables["params"]
print({name: value.shape for name, value in p.items()})

heads = []
for i in range(h):
    q_i, k_i, v_i = (x @ p[name][:, i] for name in ("w_q", "w_k", "w_v"))
    heads.append(softmax(np.asarray(q_i @ k_i.T / np.sqrt(d_k))) @ v_i)
by_hand = np.concatenate(heads, axis=-1) @ np.asarray(p["w_o"]).reshape(
    h * d_v, d_model
)

(out, _), kept = module.apply(variables, x[None], attn.Context(), mutable=["weights"])
np.testing.assert_allclose(out[0], by_hand, rtol=1e-4, atol=1e-5)
by_head = kept["weights"]["weights"][0]
show(by_head, tokens, tokens, [f"head {i + 1}" for i in range(h)])

# %% [markdown]
# Choose a head, and what a token asks: its weights, and what it gets of each value.


# %%
def look(head, token):
    i = tokens.index(token)
    share = np.asarray(by_head[head - 1, i])
    plt.figure(figsize=(4, 1.8))
    plt.bar(tokens, share)
    plt.ylim(0, 1)
    plt.title(f"head {head}: what {token!r} looks at")
    plt.show()


look(1, "love")
slide(look, head=range(1, h + 1), token=tokens)

# %% [markdown]
# ## Where a token stands
#
# Attention knows nothing of order: with the tokens in another order each gets the same as before.

# %%
order = np.array([2, 0, 1])
np.testing.assert_allclose(
    module.apply(variables, x[None, order], attn.Context())[0],
    out[:, order],
    rtol=1e-4,
    atol=1e-5,
)

# %% [markdown]
# So positions are added to the embeddings: sines and cosines of many wavelengths (section
# 3.5). A step to the right is a rotation of each pair, so that the product of two
# positions depends on their distance alone.

# %%
table = attn.sinusoidal(60, 64)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2))
left.imshow(table.T, aspect="auto", cmap="RdBu")
left.set(xlabel="position", ylabel="dimension")
right.plot(table @ table[30])
right.set(xlabel="position", ylabel="product with position 30")
figure.tight_layout()

# %% [markdown]
# Next: `ablation.ipynb` trains whole tables of models that differ in one such thing, and
# says which differences are real.
