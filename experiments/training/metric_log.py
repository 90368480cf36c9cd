"""Metrics on their way out: to metrics.jsonl, to whoever watches, and to TensorBoard where that is asked for."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.trial.step import is_finite

_TRAIN = "step {step:6d}  loss {loss:6.3f}  perplexity {perplexity:8.2f}  {tokens_per_second:7.0f} tokens/s"


_VALIDATION = "step {step:6d}  validation: perplexity {perplexity:.3f}"


_TRANSLATIONS = "  BLEU {bleu:.1f}  exact {exact_match:.1%}"


class Log:
    """One line for all the steps since the last line: means, and speeds over the time between.

    `peak` is what the devices can do, in FLOP/s, or None where that is not known; `board` a `Board` or None; `noted`
    what another log had noted. With `skip` a line counts the steps whose loss or gradient was no number, and is of the
    others; without any others it waits for the next.
    """

    def __init__(
        self,
        directory,
        clock,
        say,
        peak: float | None = None,
        board=None,
        noted: Mapping[str, Any] = MappingProxyType({}),
        skip: bool = False,
    ):
        self._directory, self._clock, self._say, self._peak, self._board = (
            directory,
            clock,
            say,
            peak,
            board,
        )
        self._skip, self._flops = skip, noted.get("flops", 0)
        before = {
            name: np.array(values, np.float32)
            for name, values in noted.get("metrics", {}).items()
        }
        self._steps = [before] if before else []
        self._since = time.perf_counter() - noted.get("seconds", 0)

    def noted(self) -> dict[str, Any]:
        """What is noted since the last line, as JSON has it."""
        if not self._steps:
            return {}
        return dict(
            metrics={name: x.tolist() for name, x in self._each().items()},
            flops=self._flops,
            seconds=time.perf_counter() - self._since,
        )

    def steps(self, last, metrics, flops, due):
        """Notes the metrics (n,) of the n steps up to `last`, and writes a line if one is due there."""
        self._steps.append(metrics)
        self._flops += flops
        if due:
            self._train(last)

    def skipped(self) -> int:
        """Steps in all lines and noted since, whose updates were left out."""
        noted = int((~is_finite(self._each())).sum()) if self._steps else 0
        return noted + sum(line.get("skipped", 0) for line in self._directory.metrics())

    def _each(self):
        return {
            name: np.concatenate([steps[name] for steps in self._steps])
            for name in self._steps[0]
        }

    def _train(self, step):
        each = self._each()
        tokens, seconds = each["tokens"].sum(), time.perf_counter() - self._since
        numbers = is_finite(each) | (not self._skip)
        if not numbers.any():
            return
        each = {name: x[numbers] for name, x in each.items()}
        mean = {
            name: float(np.average(each[name], weights=each["tokens"]))
            for name in ("loss", "nll")
        }
        line = dict(
            step=step,
            split="train",
            loss=mean["loss"],
            perplexity=float(np.exp(mean["nll"])),
            learning_rate=float(each["learning_rate"][-1]),
            grad_norm=float(each["grad_norm"][-1]),
            tokens_per_second=float(tokens / seconds),
        )
        if self._skip:
            line["skipped"] = int((~numbers).sum())
        if self._peak:
            line["mfu"] = self._flops / seconds / self._peak
        self._write(line, _TRAIN)
        self._steps, self._flops = [], 0
        self._since = time.perf_counter()

    def validation(self, step, scores):
        self._write(
            dict(step=step, split="validation", **scores),
            _VALIDATION + (_TRANSLATIONS if "bleu" in scores else ""),
        )
        self._since = time.perf_counter()

    def _write(self, line, text):
        line["seconds"] = self._clock()
        self._directory.append_metrics(line)
        if self._board:
            self._board.write(line)
        mfu = f"  {line['mfu']:.1%} of peak" if "mfu" in line else ""
        self._say(text.format(**line) + mfu)


class Board:
    """The lines of metrics.jsonl as TensorBoard's scalars, "train/loss" and so on. Needs tensorboardX.

    `step` is the newest of `lines`, written before: an event file that is there already has them, and what it has of
    later steps, which a resumed run writes again, is withdrawn.
    """

    def __init__(self, directory: Path, step: int, lines: list[dict]):
        import tensorboardX

        begun = any(directory.glob("events.*"))
        # The step in the name: a run that resumes within the same second must not write over its own file.
        self._writer = tensorboardX.SummaryWriter(
            str(directory),
            purge_step=step + 1 if begun else None,
            filename_suffix=f".{step:09d}",
        )
        for line in () if begun else lines:
            self.write(line)

    def write(self, line: dict) -> None:
        for name, value in line.items():
            if name not in ("step", "split"):
                self._writer.add_scalar(f"{line['split']}/{name}", value, line["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
