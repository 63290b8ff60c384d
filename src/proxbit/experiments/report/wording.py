"""The sentences that every report has."""

from __future__ import annotations

from proxbit.experiments.report.statistics import LEVEL

TITLE = "One-bit networks beside the paper's"
HOW_TO_READ = (
    "Accuracies are percentages of right answers of the hard network, whose binary weights are "
    "exactly ±scale: the mean over seeds ± their standard deviation; n is the number of seeds. "
    "Below stand the paper's figure and ours minus the paper's. In smaller presets than `paper` "
    "the networks, images and epochs are smaller (column 'here'), so that difference is no "
    "failure.",
    "Soft: the network as it trained. Hard at once: the same, made hard at that moment. Hard: the "
    "best hard network of the run. An empty cell was not run.",
    "Bold: the best one-bit method of a row, if its difference to the second is significant "
    f"(p < {LEVEL:g}). With two or more seeds on both sides that is Welch's t-test over the seeds; "
    "with fewer, the two-proportion test over the images, which knows nothing of the spread "
    "between seeds and is therefore too sure of itself.",
    "A claim holds if all its comparisons are significantly for it, does not hold if any is "
    "significantly against it, is not run without any, and is not decided otherwise. The p of its "
    "comparisons are raised by Holm's method, because among many tests some look significant by "
    "chance. Only cells that were trained alike are compared.",
)
