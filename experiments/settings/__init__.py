"""The settings of a trial: a ConfigDict becomes frozen, checked dataclasses."""

from attn.config import MODELS, LanguageModel, Model
from attn.config import RNN as RNNModel
from attn.config import Transformer as TransformerModel
from experiments.settings.corpora import (
    CORPORA,
    CldrData,
    CsvData,
    Data,
    FilesData,
    HuggingFaceData,
    JsonLinesData,
    OutsideData,
    TableData,
    TextData,
    TfdsData,
    TsvData,
)
from experiments.settings.fields import SettingsError
from experiments.settings.resolve import (
    check_key,
    default_config,
    known_fields,
    override,
    plain,
    resolve,
    settings_named,
)
from experiments.settings.schema import (
    SCORING,
    WEIGHTS,
    Evaluation,
    Settings,
    Training,
    digest,
    without_scoring,
)
from experiments.settings.tasks import TASKS, TaskData
from experiments.settings.user_code import Outside, OutsideError, load_text

__all__ = [
    "CORPORA",
    "MODELS",
    "SCORING",
    "TASKS",
    "WEIGHTS",
    "CldrData",
    "CsvData",
    "Data",
    "Evaluation",
    "FilesData",
    "HuggingFaceData",
    "JsonLinesData",
    "LanguageModel",
    "Model",
    "Outside",
    "OutsideData",
    "OutsideError",
    "RNNModel",
    "Settings",
    "SettingsError",
    "TableData",
    "TaskData",
    "TextData",
    "TfdsData",
    "Training",
    "TransformerModel",
    "TsvData",
    "check_key",
    "default_config",
    "digest",
    "known_fields",
    "load_text",
    "override",
    "plain",
    "resolve",
    "settings_named",
    "without_scoring",
]
