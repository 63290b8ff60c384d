"""The arithmetic of a selection: rungs, steps, noise, and what is recommended."""

from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.experiments.selection.candidates import Candidate
from proxbit.experiments.selection.choosing import choose, is_over, ranking, train_command
from proxbit.experiments.selection.halving import (
    Pace,
    Rung,
    affordable,
    epochs_of,
    noise,
    pace_of,
    rung_share,
    rung_sizes,
)
from proxbit.experiments.selection.trials import Trial
from proxbit.train import Config

paces = st.builds(
    Pace, st.floats(1e-4, 10), st.floats(0, 60), st.shared(st.integers(1, 500), key="epoch")
)


@given(count=st.integers(1, 1000))
def test_every_rung_halves_until_two_are_left(count):
    sizes = rung_sizes(count)
    assert sizes[0] == count and sizes[-1] <= 2
    assert all(2 * b - a in (0, 1) for a, b in pairwise(sizes))


@given(rungs=st.integers(1, 8))
def test_the_shares_of_all_rungs_are_the_whole_time_and_the_last_is_three_times_another(rungs):
    left, used = 1.0, []
    for remaining in range(rungs, 0, -1):
        used.append(rung_share(remaining) * left)
        left -= used[-1]
    assert sum(used) == pytest.approx(1)
    assert all(share == pytest.approx(used[-1] / 3) for share in used[:-1])


@given(steps=st.integers(1, 5000), epoch=st.integers(1, 700))
def test_a_run_has_no_more_steps_than_planned_and_loses_less_than_one_per_epoch(steps, epoch):
    epochs, limit = epochs_of(steps, epoch)
    assert limit <= epoch
    assert steps - epochs < epochs * limit <= steps


@given(many=st.lists(paces, min_size=1, max_size=8), seconds=st.floats(0, 1e4))
def test_the_steps_that_are_planned_fit_and_one_more_does_not(many, seconds):
    steps = affordable(many, seconds, 2000)
    assert steps == 0 or sum(pace.seconds(steps) for pace in many) <= seconds
    assert steps == 2000 or sum(pace.seconds(steps + 1) for pace in many) > seconds


@given(pace=paces, steps=st.integers(1, 3000))
def test_the_pace_of_a_run_is_found_again_from_its_time(pace, steps):
    found = pace_of(pace.seconds(steps), pace.step, steps, pace.epoch_steps)
    assert found.seconds(steps) == pytest.approx(pace.seconds(steps))


def test_noise_covers_the_difference_of_equal_coins_nineteen_times_in_twenty():
    random = np.random.default_rng(1)
    for runs in (1, 3):
        draws = random.binomial(200, 0.7, (4000, 2, runs)) / 200
        inside = [abs(fmean(a) - fmean(b)) <= noise(list(a), list(b), 200) for a, b in draws]
        assert 0.94 <= fmean(inside) <= 0.995


def test_noise_sees_the_spread_of_seeds_and_never_vanishes():
    narrow, wide = [0.70, 0.70, 0.70], [0.60, 0.70, 0.80]
    assert noise(wide, wide, 10**9) > 0.1 > noise(narrow, narrow, 10**9) > 0
    assert noise([1.0], [1.0], 50) > 0


def trials_of(hard: dict[str, list[float]], rung: int, n: int = 100) -> list[Trial]:
    return [
        Trial(rung, method, seed, 40, n, value, value, 1.0, 0.01)
        for method, values in hard.items()
        for seed, value in enumerate(values)
    ]


def candidates(*names: str) -> list[Candidate]:
    return [Candidate(name, True, f"admitted: {name}") for name in names]


hards = st.dictionaries(st.sampled_from("abcdefg"), st.floats(0, 1), min_size=1)


@given(hard=hards)
def test_the_recommended_is_the_best_and_the_others_follow_by_distance(hard):
    rung = Rung(1, tuple(hard), 40, 1)
    trials = trials_of({name: [value] for name, value in hard.items()}, 1)
    choice = choose(Config(), candidates(*hard), [rung], trials, None, 1.0)
    assert hard[choice.method] == max(hard.values()) == choice.hard
    assert ranking(trials, rung)[0] == choice.method
    behind = [rival.behind for rival in choice.rivals]
    assert behind == sorted(behind) and len(behind) == len(hard) - 1
    near = {r.method for r in choice.rivals if choice.hard - hard[r.method] <= r.noise}
    assert set(choice.tied) == near


def test_a_clear_difference_is_clear_and_a_small_one_is_noise():
    rung = Rung(1, ("a", "b", "c"), 40, 3)
    hard = {"a": [0.90, 0.91, 0.90], "b": [0.89, 0.91, 0.90], "c": [0.60, 0.61, 0.60]}
    choice = choose(Config(), candidates(*hard), [rung], trials_of(hard, 1, 1000), None, 1.0)
    assert choice.method == "a" and choice.tied == ("b",)
    assert "within noise of it: b;" in str(choice) and "more than noise" in str(choice)


def test_a_rung_that_is_not_over_does_not_decide():
    rungs = [Rung(1, ("a", "b"), 40, 1), Rung(2, ("a", "b"), 80, 2)]
    trials = trials_of({"a": [0.8], "b": [0.7]}, 1) + trials_of({"a": [0.1], "b": [0.9, 0.9]}, 2)
    assert is_over(trials, rungs[0]) and not is_over(trials, rungs[1])
    choice = choose(Config(), candidates("a", "b"), rungs, trials, "the time ran out", 1.0)
    assert choice.method == "a" and choice.rung == 1 and "ended early" in str(choice)


def test_failures_and_methods_never_tried_are_told_and_never_recommended():
    rung = Rung(1, ("a", "b", "c"), 40, 1)
    failed = Trial(1, "a", 0, 0, 0, None, None, 1.0, 0.0, "the loss became nan")
    trials = [failed, *trials_of({"b": [0.1]}, 1)]
    choice = choose(Config(), candidates("a", "b", "c"), [rung], trials, "over", 1.0)
    assert choice.method == "b" and choice.untried == ("c",)
    assert "a: failed in rung 1: the loss became nan" in str(choice)
    with pytest.raises(ValueError, match="a: the loss became nan"):
        choose(Config(), candidates("a"), [rung], [failed], None, 1.0)


def test_the_command_repeats_every_option_that_is_not_the_default():
    config = Config(data="npz:my images.npz", val_split=0.1, cpu=True, distill=False, lr=0.01)
    assert train_command(config, "a b.py:x") == (
        "proxbit train --method 'a b.py:x' --data 'npz:my images.npz' --val-split 0.1 "
        "--lr 0.01 --no-distill --cpu"
    )
