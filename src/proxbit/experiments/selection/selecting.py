"""Which method suits a model and its data: successive halving on hard accuracy, within minutes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from proxbit.experiments.selection.candidates import find_candidates
from proxbit.experiments.selection.choosing import Recommendation
from proxbit.experiments.selection.search import Look, Search
from proxbit.experiments.selection.selection_log import Request, SelectionLog
from proxbit.experiments.selection.trials import Stop, Trial
from proxbit.train.config import Config

HOLD_BACK = 0.1


def select(
    config: Config,
    *,
    minutes: float = 10.0,
    methods: Sequence[str] = (),
    own: Sequence[str] = (),
    out: str | Path | None = None,
    watch: Look | None = None,
    stop: Stop | None = None,
) -> Iterator[Trial | Recommendation]:
    """Try methods on a model and its data; yields every trial, and finally the recommendation.

    Mistakes are found at once, before the first record is asked for.

    Args:
        config: Model, data, weights and all other options of the runs. Its method is ignored; its
            epochs limit the length of a run.
        minutes: Time for everything, counted from the first record that is asked for; getting ready
            takes at most half of it.
        methods: Names to try, whatever their verdict; all admitted ones if none is named.
        own: Pairs or methods of the user, FILE.py:NAME, whatever their verdict.
        out: Folder that :func:`resume_select` can continue from; None writes nothing.
        watch: Called after every step with what is being done and the share of the time used.
        stop: Asked after every step; when it says yes, ``Interrupted`` is raised.
    """
    _check_request(config, minutes)
    began = time.monotonic()
    held = replace(config, val_split=config.val_split or HOLD_BACK)
    candidates = find_candidates(config.settings, methods, own)
    log = None if out is None else SelectionLog(out)
    if log is not None:
        log.refuse_used()
    request = Request(held, minutes, tuple(each.method for each in candidates))
    search = Search(request, candidates, log, began)
    search.probe = search.open_probe(candidates[0])
    if log is not None:  # last, so that a mistake leaves no folder
        log.create(request)
    search.pause()
    return search.follow(watch, stop)


def resume_select(
    out: str | Path, watch: Look | None = None, stop: Stop | None = None
) -> Iterator[Trial | Recommendation]:
    """Continue an interrupted selection; yields its earlier trials again."""
    log, began = SelectionLog(out), time.monotonic()
    request, records = log.open()
    with log.closed_if_refused():  # by a pair of the user's own that is gone
        candidates = find_candidates(request.config.settings, request.methods)
    search = Search(request, candidates, log, began)
    search.take_up(records)
    search.pause()
    return search.follow(watch, stop)


def _check_request(config: Config, minutes: float) -> None:
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes is a number above 0, not {minutes}")
    if config.max_steps_per_epoch is not None:
        raise ValueError(
            f"a limit of {config.max_steps_per_epoch} steps cannot be kept: the minutes limit runs"
        )
    if config.strength is not None:
        raise ValueError(f"the strength {config.strength} suits one method: leave it out")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a selection keeps its time in one process: start it without a launcher")
