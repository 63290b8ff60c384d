"""Tracing leaves nothing behind and disturbs nobody: loads beside forwards."""

import copy
import threading

import pytest
import torch
from torch import nn

import proxbit as pb
from proxbit.util.tracing import trace


class Token(nn.Module):
    """A model that calls a method of a parameter with the size of its input."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.second(self.first(x)) + self.token


def test_nothing_is_patched_while_a_model_is_traced(monkeypatch):
    notes = []
    monkeypatch.setattr(Token, "forward", _noting(Token.forward, notes))
    assert trace(Token(), (nn.Linear,)) is not None
    assert notes == [(nn.Module.__call__, nn.Module.__getattr__)]


def _noting(forward, notes):
    def noted(self, x):
        notes.append((nn.Module.__call__, nn.Module.__getattr__))
        return forward(self, x)

    return noted


def test_the_graph_has_the_leaves_in_order_and_the_model_stays_as_it_is():
    model = Token()
    x = torch.randn(2, 3, 4)
    before = model(x)
    graph = trace(model, (nn.Linear,))
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    assert calls == ["first", "second.0", "second.1"]
    assert torch.equal(model(x), before)
    assert isinstance(model.token, nn.Parameter) and "forward" not in model.first.__dict__


def test_what_asks_for_numbers_cannot_be_traced():
    class Asking(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    assert trace(Asking(), ()) is None


@pytest.mark.slow
def test_packing_and_loading_disturb_no_forward_of_another_thread(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.Hardtanh(), nn.Linear(32, 32), nn.Linear(32, 4))
    skeleton = copy.deepcopy(net)
    pb.binarize(net, "bnn", "BWA")
    hard, x = pb.harden(net).eval(), torch.randn(4, 16)
    pb.save(pb.pack(hard), tmp_path / "net.safetensors")
    other = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    failures, counts, over = [], [], threading.Event()

    def serve():
        done = 0
        with torch.no_grad():
            expected = other(x)
            while not over.is_set():
                try:
                    assert torch.equal(other(x), expected)
                    done += 1
                except Exception as error:
                    failures.append(error)
                    return
        counts.append(done)

    servers = [threading.Thread(target=serve) for _ in range(2)]
    for server in servers:
        server.start()
    for _ in range(10):
        pb.pack(hard)
        pb.load(tmp_path / "net.safetensors", skeleton)
    over.set()
    for server in servers:
        server.join()
    assert not failures and min(counts) > 10
