"""What ``diagnose`` says below its table."""

import pytest
import torch
from torch import nn

import proxbit as pb


def linear(method: str, strength: float, size: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 100))
    nn.init.normal_(model[0].weight, std=size)
    pb.binarize(model, method, only="*")
    pb.set_strength(model, strength)
    return model


@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
def test_the_share_that_it_calls_usual_is_that_of_fresh_weights(draw):
    """Normal and uniform ones, as initializations draw them, at BNN++'s last strength."""
    w = draw(200_000)
    last = pb.METHODS["bnn++"].schedule(1.0)
    share = (pb.maps.sign_swish_slope(w / w.abs().mean(), torch.tensor(last)) < 0).float().mean()
    assert 0.5 <= round(float(share), 2) <= 0.6


def test_a_negative_backward_map_is_explained_with_its_share():
    seen = pb.diagnose(linear("bnn++", 3.0))
    share = f"{100 * seen.total.wrong_way:.3g} %"
    assert f"B < 0 ({share}): the gradient is turned round" in str(seen)
    assert "B = 0 (" not in str(seen)


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
def test_so_are_weights_that_stand_still_and_nothing_else_is():
    shown = str(pb.diagnose(linear("bnn", 1.0, size=20.0)))
    assert "B = 0 (" in shown and "do not move" in shown and "B < 0 (" not in shown
    assert "(" not in str(pb.diagnose(linear("bc", 1.0)))
