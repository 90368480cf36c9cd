"""The loop: one trial from its settings to its result, in a directory that says everything about it.

Each turn of the loop: evaluate, save, next batch, step, log one step late so that the device never waits for the host.
On a second call in the same directory a finished trial returns its result, an unfinished one goes on from its newest
checkpoint, and a directory of other settings is refused.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import evaluation, population, trial
from experiments.batches import Batches
from experiments.checkpoints import Checkpoints, shapes
from experiments.prepared import Prepared
from experiments.records import Directory
from experiments.settings import Settings


class Compiled(NamedTuple):
    """A program's functions, compiled when first called."""

    init: Callable
    step: Callable
    loss_sums: Callable
    search: Callable
    weights: Callable


@functools.lru_cache(maxsize=8)
def compiled(program: trial.Program, strategy: str, most: int) -> Compiled:
    """The functions of `program`, shared by every trial of this process that has it."""

    def fixed(function, *first):
        return functools.partial(function, program, *first)

    return Compiled(
        jax.jit(trial.initial_variables, static_argnums=0),
        population.distribute(fixed(trial.step), strategy=strategy),
        jax.jit(fixed(trial.loss_sums)),
        jax.jit(fixed(evaluation.greedy_search, most)),
        jax.jit(fixed(evaluation.attention_weights)),
    )


class Trial(NamedTuple):
    """One trial's parts, put together."""

    settings: Settings
    prepared: Prepared
    program: trial.Program
    functions: Compiled


def run(settings: Settings, prepared: Prepared, workdir: str | Path, *, name: str = "trial", point: dict | None = None,
        say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Trains, evaluates, and returns the result that `result.json` in `workdir` then holds.

    `say` gets a line for each log and evaluation. Raises DeviceError for rows that do not fit the devices,
    WorkdirError for a directory of another trial.
    """
    population.check_rows(settings.training.rows, jax.local_device_count())
    directory = Directory(workdir)
    if finished := directory.open(settings):
        return finished
    vocabulary = prepared.vocabulary()
    program = trial.program(settings, vocabulary.size, prepared.length(settings))
    functions = compiled(program, settings.training.strategy, settings.evaluation.max_pieces)
    one = Trial(settings, prepared, program, functions)
    directory.describe(name, point or {}, settings, prepared, program.length)
    state, batches = _train(one, directory, say)
    result = _result(one, state, batches, directory)
    directory.finish(result)
    return result


def _train(one: Trial, directory, say):
    """Builds what the loop needs, as it was left by an interrupted run. Returns the final state and the batches."""
    settings = one.settings.training
    batches = Batches(one.prepared.train, rows=settings.rows, row_pieces=settings.row_pieces, seed=one.settings.seed)
    state = population.on_all_devices(trial.initial_state(one.program, one.settings, one.functions.init))
    with Checkpoints(directory.path / "checkpoints") as checkpoints:
        if checkpoints.latest() is not None:
            state, data = checkpoints.restore(shapes(state))
            batches.set_state(data)
        log = _Log(directory, directory.resume(int(state.step)), say)
        return _loop(one, state, batches, checkpoints, directory, log), batches


def _loop(one: Trial, state, batches, checkpoints, directory, log):
    settings = one.settings.training
    hyper = population.on_all_devices(trial.hyper(one.settings))
    step = int(state.step)
    while True:
        last = step == settings.steps
        if step and (last or step % settings.evaluate_every == 0) and not directory.evaluated(step):
            log.flush()
            log.validation(step, evaluate(one, state))
        if step and (last or step % settings.save_every == 0):
            log.flush()
            checkpoints.save(step, state, batches.get_state())
        if last:
            return state
        state, metrics = one.functions.step(state, hyper, next(batches))
        step += 1
        log.step(step, metrics, due=step % settings.log_every == 0 or step == settings.steps)


def evaluate(one: Trial, state) -> dict[str, float]:
    """Perplexity on the whole validation set, scores of the translations of its first sentences."""
    settings, heldout = one.settings.evaluation, one.prepared.validation
    ppl = evaluation.perplexity(one.functions.loss_sums, state, heldout.ids, settings.rows, one.program.length)
    n = settings.sentences
    translations = _translate(one, state, heldout.ids.source[:n])
    return dict(perplexity=ppl, **evaluation.score(translations, heldout.text.target[:n])._asdict())


def _translate(one, state, sources):
    return evaluation.translate(one.functions.search, state, one.prepared.vocabulary(), sources,
                                one.settings.evaluation.rows, one.program.length)


def _result(one: Trial, state, batches, directory):
    """Scores the test set, writes the translations and examples, and returns what result.json will hold."""
    test, vocabulary = one.prepared.test, one.prepared.vocabulary()
    translations = _translate(one, state, test.ids.source)
    directory.write_text("translations.txt", "".join(line + "\n" for line in translations))
    records, arrays = evaluation.examples(one.functions.weights, state, vocabulary, test, translations,
                                          one.settings.evaluation.examples, one.program.length)
    if one.settings.model.positions == "none":
        del arrays["positions"]
    directory.write_examples(records, arrays)
    validation, speed = directory.last("validation"), directory.speed()
    return dict(status="finished", parameters=trial.parameters(one.settings, state), steps=int(state.step),
                perplexity=validation["perplexity"], **evaluation.score(translations, test.text.target)._asdict(),
                test_sentences=len(translations), seconds=directory.last("validation")["seconds"],
                tokens_per_second=speed, real_tokens=batches.real_tokens)


_TRAIN_LINE = "step {step:6d}  loss {loss:6.3f}  perplexity {perplexity:8.2f}  {tokens_per_second:7.0f} tokens/s"
_VALIDATION_LINE = "step {step:6d}  validation: perplexity {perplexity:.3f}  BLEU {bleu:.1f}  exact {exact_match:.1%}"


class _Log:
    """Metrics on their way to metrics.jsonl: means over the steps since the last line."""

    def __init__(self, directory, clock, say):
        self._directory, self._clock, self._say = directory, clock, say
        self._steps, self._due = [], None
        self._since = time.perf_counter()

    def step(self, step, metrics, due):
        """Notes a dispatched step. What is due from the step before is written now, while this one runs."""
        self.flush()
        self._steps.append(metrics)
        if due:
            self._due = step

    def flush(self):
        if self._due is None:
            return
        each = jax.device_get(self._steps)
        pieces = np.array([m["pieces"] for m in each])
        seconds = time.perf_counter() - self._since
        mean = {name: float(np.average([m[name] for m in each], weights=pieces)) for name in ("loss", "nll")}
        line = dict(step=self._due, split="train", loss=mean["loss"], perplexity=float(np.exp(mean["nll"])),
                    learning_rate=float(each[-1]["learning_rate"]), grad_norm=float(each[-1]["grad_norm"]),
                    tokens_per_second=float(pieces.sum() / seconds), seconds=self._clock())
        self._write(line, _TRAIN_LINE)
        self._steps, self._due = [], None
        self._since = time.perf_counter()

    def validation(self, step, scores):
        line = dict(step=step, split="validation", **scores, seconds=self._clock())
        self._write(line, _VALIDATION_LINE)
        self._since = time.perf_counter()

    def _write(self, line, text):
        self._directory.append_metrics(line)
        self._say(text.format(**line))
