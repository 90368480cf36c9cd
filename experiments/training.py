"""The loop: one trial from its settings to its result, in a directory that says everything about it.

Each turn of the loop: evaluate, save, next batch, step, log one step late so that the device never waits for the host.
On a second call in the same directory a finished trial returns its result, an unfinished one goes on from its newest
checkpoint, and a directory of other settings is refused.
"""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from attn import NoPositions
from experiments import evaluation, flops, population, trial
from experiments.batches import Batches
from experiments.checkpoints import Checkpoints
from experiments.evaluation import Search
from experiments.logbook import Board, Log
from experiments.prepared import Prepared
from experiments.records import Directory
from experiments.settings import Settings


class Compiled(NamedTuple):
    """A program's functions, compiled when first called."""

    init: Callable
    step: Callable
    piece_losses: Callable
    greedy: Callable
    search: Callable
    weights: Callable


@functools.lru_cache(maxsize=8)
def compiled(program: trial.Program, strategy: str, how: Search) -> Compiled:
    """The functions of `program`, shared by every trial of this process that has it."""

    def fixed(function, *first):
        return functools.partial(function, program, *first)

    return Compiled(
        jax.jit(trial.initial_variables, static_argnums=0),
        population.distribute(fixed(trial.step), strategy=strategy),
        jax.jit(fixed(trial.piece_losses)),
        greedy := jax.jit(fixed(evaluation.search, how._replace(beam=1), ())),
        greedy if how.beam == 1 else jax.jit(fixed(evaluation.search, how, ())),
        jax.jit(fixed(evaluation.attention_weights)),
    )


class Trial(NamedTuple):
    """One trial's parts, put together."""

    settings: Settings
    prepared: Prepared
    program: trial.Program
    functions: Compiled


def run(settings: Settings, prepared: Prepared, workdir: str | Path, *, name: str = "trial", point: dict | None = None,
        say: Callable[[str], None] = lambda line: None, tensorboard: bool = False) -> dict[str, Any]:
    """Trains, evaluates, and returns the result that `result.json` in `workdir` then holds.

    `say` gets a line for each log and evaluation; `tensorboard` puts their numbers into `workdir`/tensorboard too.
    Raises DeviceError for rows that do not fit the devices, WorkdirError for a directory of another trial.
    """
    t, e = settings.training, settings.evaluation
    population.check_rows(t.rows, jax.local_device_count(), t.accumulate)
    directory = Directory(workdir)
    if finished := directory.open(settings):
        return finished
    vocabulary = prepared.vocabulary()
    program = trial.program(settings, vocabulary.size, prepared.length(settings))
    functions = compiled(program, t.strategy, Search(e.beam, e.alpha, e.max_pieces, e.extra))
    one = Trial(settings, prepared, program, functions)
    directory.describe(name, point or {}, settings, prepared, program.length)
    with Checkpoints(directory.path / "checkpoints", keep=max(2, t.average)) as checkpoints:
        state, batches = _train(one, directory, checkpoints, say, tensorboard)
        result = _result(one, state, batches, checkpoints, directory)
    directory.finish(result)
    return result


def _train(one: Trial, directory, checkpoints, say, tensorboard):
    """Builds what the loop needs, as it was left by an interrupted run. Returns the final state and the batches."""
    settings = one.settings.training
    batches = Batches(one.prepared.train, rows=settings.rows, row_pieces=settings.row_pieces, seed=one.settings.seed)
    state = population.on_all_devices(trial.initial_state(one.program, one.settings, one.functions.init))
    if checkpoints.latest() is not None:
        state, data = checkpoints.restore(state)
        batches.set_state(data)
    step = int(state.step)
    clock = directory.resume(step)
    board = Board(directory.path / "tensorboard", step, directory.metrics()) if tensorboard else None
    with contextlib.closing(board) if board else contextlib.nullcontext():
        log = Log(directory, clock, say, _peak(settings), board)
        return _loop(one, state, batches, checkpoints, directory, log), batches


def _peak(settings):
    """FLOP/s of all devices together, or None where that is not known."""
    one = flops.peak(jax.local_devices()[0].device_kind, settings.precision)
    return one and one * jax.local_device_count()


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
        batch = next(batches)
        state, metrics = one.functions.step(state, hyper, batch)
        step += 1
        work = flops.of_a_step(one.program.shape, one.program.vocabulary, batch)
        log.step(step, metrics, work, due=step % settings.log_every == 0 or step == settings.steps)


def evaluate(one: Trial, state) -> dict[str, float]:
    """Perplexity on the whole validation set, scores of the greedy translations of its first sentences."""
    n, heldout = one.settings.evaluation.sentences, one.prepared.validation
    translations = _translate(one, state, one.functions.greedy, heldout.ids.source[:n])
    return dict(perplexity=_perplexity(one, state), **_score(one, translations, heldout.text.target[:n]))


def _perplexity(one, state):
    return evaluation.perplexity(one.functions.piece_losses, state, one.prepared.validation.ids,
                                 one.settings.evaluation.rows, one.program.length)


def _translate(one, state, search, sources):
    found = evaluation.translate(search, state, one.prepared.vocabulary(), sources, one.settings.evaluation.rows,
                                 one.program.length)
    return [best[0].text for best in found]


def _score(one, translations, references):
    data = one.settings.data
    return evaluation.score(translations, references, data.target if data.tokenized else "")


def _result(one: Trial, state, batches, checkpoints, directory):
    """Scores all the weights there are, keeps what the trial's own translate, and returns what result.json holds."""
    t, chosen = one.settings.training, one.settings.evaluation.weights
    beside = {}
    for name in ("raw", *(name for name in ("average", "ema") if getattr(t, name))):
        weights, steps = checkpoints.weights(name, state, t.average)
        beside[name], translations = _scores(one, weights, steps)
        if name == chosen:
            _keep(one, weights, translations, directory)
    own = beside[chosen]
    return dict(status="finished", parameters=trial.parameters(one.settings, state), steps=int(state.step),
                perplexity=own["validation"]["perplexity"], **own["test"],
                test_sentences=len(one.prepared.test.text.target), seconds=directory.last("validation")["seconds"],
                tokens_per_second=directory.speed(), real_tokens=batches.real_tokens, beside=beside)


def _scores(one, state, steps):
    """What one set of weights is worth, and its translations of the test set; `steps` are those it comes from."""
    validation, test = one.prepared.validation, one.prepared.test
    of_validation, of_test = (_translate(one, state, one.functions.search, side.ids.source)
                              for side in (validation, test))
    scores = dict(steps=steps, validation=dict(perplexity=_perplexity(one, state),
                                               **_score(one, of_validation, validation.text.target)),
                  test=_score(one, of_test, test.text.target))
    return scores, of_test


def _keep(one, state, translations, directory):
    """Writes the translations of the test set, and a few examples of where attention looks."""
    directory.write_text("translations.txt", "".join(line + "\n" for line in translations))
    records, arrays = evaluation.examples(one.functions.weights, state, one.prepared.vocabulary(), one.prepared.test,
                                          translations, one.settings.evaluation.examples, one.program.length)
    if isinstance(trial.table(one.settings), NoPositions):
        del arrays["positions"]
    directory.write_examples(records, arrays)
