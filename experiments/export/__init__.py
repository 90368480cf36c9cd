"""Trained models for other places: arrays in safetensors, CTranslate2, StableHLO."""

import shutil
from pathlib import Path

import attn.io
from experiments.data.vocabulary import FILE
from experiments.errors import UserError
from experiments.export.ctranslate2 import to_ctranslate2
from experiments.export.stablehlo import to_stablehlo
from experiments.inference import WEIGHTS, TrainedModel, load_model
from experiments.system.checksums import write_checksums
from experiments.system.files import write_json


def export(workdir: Path, directory: Path, form: str) -> str:
    """Writes the model in a trial's directory into another, which must be new or empty.

    Its weights are those that the trial's settings name. Returns how it is used.

    Raises:
      UserError: a directory that holds something, an unknown form, or a model that it cannot
        express, naming what; and what `load_model` raises.
    """
    if form not in FORMS:
        raise UserError(f"--format={form} is unknown; known: {', '.join(FORMS)}")
    if directory.exists() and any(directory.iterdir()):
        raise UserError(f"{directory} holds files: name a new directory")
    model = load_model(workdir)
    directory.mkdir(parents=True, exist_ok=True)
    return FORMS[form](workdir, model, directory)


def to_safetensors(workdir: Path, model: TrainedModel, directory: Path) -> str:
    """Writes arrays by their names, float32, with settings and vocabulary."""
    attn.io.save(directory / WEIGHTS, attn.io.to_arrays(model.state.variables))
    for name in ("config.json", "record.json", FILE):
        shutil.copyfile(workdir / name, directory / name)
    about = dict(
        step=int(model.state.step),
        weights=model.settings.evaluation.weights,
        exported_from=str(workdir.absolute()),
    )
    write_json(directory / "export.json", about)
    names = ("config.json", "record.json", FILE, WEIGHTS, "export.json")
    write_checksums(directory, names)
    return (
        f"launch.translate, evaluate and sample take --workdir={directory}; its arrays: "
        f"attn.io.load('{directory}/{WEIGHTS}')"
    )


FORMS = {
    "safetensors": to_safetensors,
    "ctranslate2": to_ctranslate2,
    "stablehlo": to_stablehlo,
}
"""What writes each format."""
