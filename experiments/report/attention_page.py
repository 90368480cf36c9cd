"""Renders one page with the attention of a model to sentences, as launch.translate shows it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.html import render
from experiments.report.packed_attention import packed
from experiments.report.trial_outputs import examples_of


def attention_page(
    title: str, records: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> str:
    """Returns a page of what `attention_maps.attention_of` computes of a model's sentences."""
    maps = [packed(title, examples_of(title, records, arrays))]
    data = {"spots": {}, "attention": maps, "beside": None}
    return render(
        "attention_page.html.j2",
        ("attention.js",),
        title=title,
        maps=maps,
        maps_note="",
        references=False,
        data=data,
    )
