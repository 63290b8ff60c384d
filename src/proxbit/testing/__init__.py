"""Contracts for pairs, methods and layers of your own, in any test framework or none.

>>> import torch, proxbit as pb
>>> from proxbit.testing import check_pair
>>> check_pair(pb.Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2))

Each check raises an AssertionError whose sentence names the law that broke and the values on which
it did; otherwise it returns nothing.
"""

from proxbit.testing.backends import available_backends, use_backend
from proxbit.testing.layer_laws import check_layer
from proxbit.testing.method_laws import check_method
from proxbit.testing.pair_laws import check_pair

__all__ = ["available_backends", "check_layer", "check_method", "check_pair", "use_backend"]
