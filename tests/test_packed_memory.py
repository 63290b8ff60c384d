"""A packed network owns what its kernels read, whatever happens to tensors of others."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import proxbit as pb
from proxbit.engine.forms import EXACT, Kernel, PackedForm, lay_out
from proxbit.engine.packed_layers import PackedConv2d
from proxbit.kernels import inference as kernels


def network(task):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardtanh(),
        nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.BatchNorm2d(16), nn.Hardtanh(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(64, 24), nn.LayerNorm(24), nn.Linear(24, 5),
    )  # fmt: skip
    pb.binarize(net, "react", task)  # with learned thresholds: a shift is a tensor too
    for name, p in net.named_parameters():
        if name.endswith("shift"):
            nn.init.normal_(p, std=0.1)
    return pb.harden(net)


@pytest.fixture(params=["BW", "BWA", "BWAA"])
def pair(request):
    hard = network(request.param).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        net = pb.pack(hard, x)
        return hard, net, x, net(x)


def _idle(net, x):
    """What a worker gets."""


def _spawned(hard, net, x):
    worker = torch.multiprocessing.get_context("spawn").Process(target=_idle, args=(net, x))
    worker.start()
    worker.join()


def _loaded(hard, net, x):
    net.load_state_dict(copy.deepcopy(net.state_dict()))


ACTS = {
    "hard.share_memory": lambda hard, net, x: hard.share_memory(),
    "net.share_memory": lambda hard, net, x: net.share_memory(),
    "spawn": _spawned,
    "pickle": lambda hard, net, x: pickle.dumps(net),
    "deepcopy": lambda hard, net, x: copy.deepcopy(net),
    "load_state_dict": _loaded,
    "to and back": lambda hard, net, x: net.to(torch.float64).to(torch.float32),
}


@pytest.mark.parametrize("act", ACTS)
def test_no_act_on_shared_memory_changes_an_answer(pair, act):
    hard, net, x, before = pair
    ACTS[act](hard, net, x)
    junk = [torch.full((4096,), float("nan")) for _ in range(64)]  # into memory that was freed
    with torch.no_grad():
        after = net(x)
    del junk
    if act == "to and back":  # float64 and back may round norms that were folded
        torch.testing.assert_close(after, before)
    else:
        assert torch.equal(after, before)


def test_what_is_sent_to_a_process_holds_no_kernel(pair):
    _, net, x, before = pair
    state = [layer.__getstate__() for _, layer in pb.engine.packed.packed_layers(net)]
    assert all(each["_kernel"] is each["_operands"] is each["_dense"] is None for each in state)
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(net))(x), before)


OUTSIDE = """
import torch, proxbit as pb
from torch import nn
torch.manual_seed(0)
for task in ("BW", "BWA", "BWAA"):
    net = nn.Sequential(nn.Linear(8, 16), nn.Hardtanh(), nn.Linear(16, 16), nn.Linear(16, 3))
    pb.binarize(net, "bnn", task)
    hard, x = pb.harden(net).eval(), torch.randn(2, 8)
    packed = pb.pack(hard, x)
    with torch.inference_mode():
        inside = packed(x)
    outside = packed(x)
    assert torch.equal(inside, outside)
"""


@pytest.mark.parametrize("kernels", ["torch", "portable"])
def test_packed_networks_compute_inside_and_outside_of_inference_mode(kernels):
    environment = os.environ | {"PROXBIT_KERNELS": kernels}
    command = [sys.executable, "-W", "ignore", "-c", OUTSIDE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Lengths ---------------------------------------------------------------------------------------


def _grouped(**changes):
    """The records of a small grouped convolution with thresholds, some of them changed."""
    net = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(64, 3))
    pb.binarize(net, "react", "BWA", only="0")
    hard = pb.harden(net).eval()
    packed = pb.pack(hard)[0]
    weight = packed.packed("weight")
    return replace(weight, **changes), hard[0]


@pytest.mark.parametrize("length", [1, 8, 15, 17, 32])
def test_thresholds_that_do_not_fit_the_groups_of_a_layer_are_refused(length):
    weight, conv = _grouped(shift=torch.zeros(length))
    with pytest.raises(ValueError, match=f"{length} thresholds, and its layer has 16"):
        PackedConv2d(weight, conv, EXACT)


@pytest.mark.parametrize("part", ["scales", "biases", "thresholds", "panels", "bounds 1"])
def test_a_kernel_refuses_tensors_behind_whose_end_it_would_read(part):
    if kernels.library() is None:
        pytest.skip("the kernels are not built here")
    form = PackedForm(4, 16, 2, binary=True)
    laid = lay_out(torch.zeros(8, 2, dtype=torch.uint8), form)
    whole = {
        "panels": laid, "scales": torch.ones(8), "biases": torch.zeros(8),
        "thresholds": torch.zeros(32), "bounds 0": torch.zeros(8, dtype=torch.int32),
        "bounds 1": torch.zeros(8, dtype=torch.int32),
        "bounds 2": torch.zeros(8, dtype=torch.uint8),
    }  # fmt: skip

    def made(given):
        *first, low, high, flip = given.values()
        return Kernel(form, *first, (low, high, flip))

    made(whole)
    for wrong in (whole[part].flatten()[:-1], torch.cat([whole[part].flatten()] * 2)):
        with pytest.raises(ValueError, match=f"{part}, not {wrong.numel()}"):
            made(whole | {part: wrong})


THREADS = """
import resource
import numpy as np
from proxbit.kernels import inference as kernels

lib = kernels.library()
lib.pb_use_team(None)  # threads of our own, not torch's
x = np.random.default_rng(0).standard_normal((4096, 1024)).astype(np.float32)
one, many = (np.zeros((4096, 128), np.uint8) for _ in range(2))

def signs(out, threads):
    return lib.pb_sign_rows(x.ctypes.data, 4096, 1024, 1024, None, out.ctypes.data, 128, threads)

assert signs(one, 1) == 0
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (20 << 20), resource.RLIM_INFINITY))
assert signs(many, 64) == 0
assert (one == many).all()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_machine_without_threads_to_spare_computes_with_those_it_has():
    if kernels.library() is None:
        pytest.skip("the kernels are not built here")
    command = [sys.executable, "-W", "ignore", "-c", THREADS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
