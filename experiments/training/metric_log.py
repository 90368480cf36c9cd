"""Metrics on their way out: to metrics.jsonl, to the screen, and to trackers if asked."""

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric, summary
from experiments.evaluation.perplexity import LOSSES
from experiments.training.run_dir import RunDir
from experiments.training.trackers import Trackers
from experiments.trial.step import is_finite

_TRAIN = {
    "perplexity": "step {step:6d}  loss {loss:6.3f}  perplexity {perplexity:8.2f}  "
    "{tokens_per_second:7.0f} tokens/s",
    "cross_entropy": "step {step:6d}  loss {loss:6.3f}  cross-entropy {cross_entropy:6.3f}  "
    "{tokens_per_second:7.0f} labels/s",
}
"""The text of a line of training, by the metric of the objective's loss."""


class Log:
    """Writes one line for all the steps since the last: means, and speeds over that time.

    The first steps of a process are no part of speeds, as they are compiled then.

    `clock()` gives the seconds of a line, `say` gets it as text; `peak` is what the devices
    can do, in FLOP/s, or None where that is not known; `trackers` get each line; `noted`
    what another log had `noted`; `loss_metric` is that of the objective. A validation line
    has the scores of each of `metrics`, and `scored` says how the texts were made. With `skip`
    a line counts the steps whose loss or gradient was not finite, and its means are of the
    others; without any others it waits.
    """

    def __init__(
        self,
        run_dir: RunDir,
        clock: Callable[[], float],
        say: Callable[[str], None],
        peak: float | None = None,
        trackers: Trackers | None = None,
        noted: Mapping[str, Any] = MappingProxyType({}),
        skip: bool = False,
        metrics: Sequence[Metric] = METRICS,
        scored: str = "",
        loss_metric: str = "perplexity",
    ):
        self._run_dir = run_dir
        self._clock = clock
        self._say = say
        self._peak = peak
        self._trackers = trackers
        self._skip = skip
        self._metrics = metrics
        self._scored = scored
        self._loss_metric = loss_metric
        self._flops = noted.get("flops", 0)
        before = {
            name: np.array(values, np.float32)
            for name, values in noted.get("metrics", {}).items()
        }
        self._steps = [before] if before else []
        # The time since the last line goes on, as its steps do.
        self._since = time.perf_counter() - noted.get("seconds", 0)
        self._noted_at = time.perf_counter()
        # Tokens, FLOPs and seconds of first steps since the last line, here and before.
        self._first = tuple(noted.get("first", (0, 0, 0.0)))
        self._is_first = True

    def noted(self) -> dict[str, Any]:
        """Returns what is noted since the last line, as JSON has it."""
        if not self._steps:
            return {}
        return dict(
            metrics={name: x.tolist() for name, x in self._joined().items()},
            flops=self._flops,
            seconds=time.perf_counter() - self._since,
            first=list(self._first),
        )

    def steps(
        self,
        last: int,
        metrics: Mapping[str, np.ndarray],
        flops: float | None,
        due: bool,
    ) -> None:
        """Notes the metrics (n,) of the n steps up to `last`; writes a line if one is due.

        A line has no FLOPs where those of one of its steps are unknown (None).
        """
        self._steps.append(metrics)
        is_known = flops is not None and self._flops is not None
        self._flops = self._flops + flops if is_known else None
        now = time.perf_counter()
        if self._is_first:
            self._is_first = False
            spent = now - self._noted_at
            own = (float(metrics["tokens"].sum()), flops or 0, spent)
            self._first = tuple(map(operator.add, self._first, own))
            self._since += spent
        self._noted_at = now
        if due:
            self._train(last)

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes a line of validation scores."""
        of_text = [metric for metric in self._metrics if metric.split == "test"]
        others = [metric for metric in self._metrics if metric not in of_text]
        text = f"step {step:6d}  validation: {summary(scores, others)}"
        if texts := summary(scores, of_text):
            text += f";  {self._scored}: {texts}"
        self._write(dict(step=step, split="validation", **scores), text)
        # An evaluation, since the last steps, is no part of the speed of training.
        now = time.perf_counter()
        self._since += now - self._noted_at
        self._noted_at = now

    def result(self, result: Mapping[str, Any]) -> None:
        """Tells trackers the numbers of a trial that ends; result.json has them."""
        if self._trackers:
            self._trackers.result(result, self._clock())

    def skipped(self) -> int:
        """Counts the steps, in all lines and since, whose updates were left out."""
        noted = int((~is_finite(self._joined())).sum()) if self._steps else 0
        return noted + sum(line.get("skipped", 0) for line in self._run_dir.metrics())

    def _rate(self, amount, which, seconds):
        """Returns an amount a second, without that of first steps if there are others."""
        first, spent = self._first[which], self._first[2]
        if amount > first:
            return float((amount - first) / seconds)
        return float(amount / (seconds + spent))

    def _joined(self):
        joined = {}
        for name in self._steps[0]:
            joined[name] = np.concatenate([steps[name] for steps in self._steps])
        return joined

    def _train(self, step):
        steps = self._joined()
        tokens = steps["tokens"].sum()
        seconds = time.perf_counter() - self._since
        counted = is_finite(steps) | (not self._skip)
        if not counted.any():
            return
        steps = {name: x[counted] for name, x in steps.items()}
        # By tokens, as a step's loss is a mean over its own.
        loss = np.average(steps["loss"], weights=steps["tokens"])
        nll = np.array([np.average(steps["nll"], weights=steps["tokens"])], float)
        line = dict(
            step=step,
            split="train",
            loss=float(loss),
            **{self._loss_metric: float(LOSSES[self._loss_metric](nll, np.ones(1)))},
            learning_rate=float(steps["learning_rate"][-1]),
            grad_norm=float(steps["grad_norm"][-1]),
            tokens_per_second=self._rate(tokens, 0, seconds),
        )
        if self._flops is not None:
            line["flops"] = int(self._flops)
        if self._skip:
            line["skipped"] = int((~counted).sum())
        if self._peak and self._flops is not None:
            line["mfu"] = self._rate(self._flops, 1, seconds) / self._peak
        mfu = f"  {line['mfu']:.1%} of peak" if "mfu" in line else ""
        self._write(line, _TRAIN[self._loss_metric].format(**line) + mfu)
        self._steps = []
        self._flops = 0
        self._first = (0, 0, 0.0)
        self._since = time.perf_counter()

    def _write(self, line, text):
        line["seconds"] = self._clock()
        self._run_dir.append_metrics(line)
        if self._trackers:
            self._trackers.write(line)
        self._say(text)
