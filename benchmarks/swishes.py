"""Candidates of ``bnn++prox`` that no option of ``proxbit train`` can say, for recipes.py.

    python benchmarks/recipes.py mu method=benchmarks/swishes.py:c1,benchmarks/swishes.py:c2 ...

The strength of the sign-Swish behind the prox, constant or moving with rho, and other pairs for
binary inputs.
"""

from dataclasses import replace

from proxbit.core import pairs
from proxbit.core.methods import METHODS, Method
from proxbit.core.schedules import Constant, Linear

base = METHODS["bnn++prox"]


def swish(start: float, end: float) -> Method:
    return replace(base, name=f"mu {start} to {end}", pair=pairs.swish_of_prox(start, end))


c05, c1, c2, c23 = (swish(mu, mu) for mu in (0.5, 1, 2, 2.3))
r12, r21, r223 = swish(1, 2), swish(2, 1), swish(0.2, 2.3)
with_bnn = replace(base, input_pair=pairs.bnn, input_schedule=Constant(1))
with_plus = replace(base, input_pair=pairs.bnn_plus, input_schedule=Linear(1, 5))
with_plus2 = replace(base, input_pair=pairs.bnn_plus, input_schedule=Constant(2))
