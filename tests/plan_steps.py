"""What a network computes by."""

from collections.abc import Iterator

from torch import nn

from proxbit.engine.plan import Planned


def steps_of(net: nn.Module) -> Iterator[nn.Module]:
    """The steps of all plans that a network has made so far."""
    planned = vars(net).get("forward")
    for plan in planned.plans.values() if isinstance(planned, Planned) else ():
        yield from plan.steps if plan else ()
