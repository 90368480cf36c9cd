"""The settings of a trial: a ConfigDict becomes frozen, checked dataclasses."""

from experiments.settings.corpora import (
    CORPORA,
    CldrData,
    Data,
    FilesData,
    HuggingFaceData,
    OutsideData,
    TextData,
    TfdsData,
    TsvData,
)
from experiments.settings.fields import SettingsError
from experiments.settings.model import (
    MODELS,
    LanguageModel,
    Model,
    RNNModel,
    TransformerModel,
)
from experiments.settings.resolve import (
    check_key,
    default_config,
    known_fields,
    override,
    plain,
    resolve,
    settings_named,
    with_all_settings,
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
    "Data",
    "Evaluation",
    "FilesData",
    "HuggingFaceData",
    "LanguageModel",
    "Model",
    "Outside",
    "OutsideData",
    "OutsideError",
    "RNNModel",
    "Settings",
    "SettingsError",
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
    "with_all_settings",
    "without_scoring",
]
