"""Which backend computes: what is built, what this CPU has, and what was asked for."""

from collections.abc import Callable

import pytest

from proxbit.kernels import inference as kernels
from proxbit.kernels import library

pytestmark = pytest.mark.skipif(library.opened() is None, reason="the kernels are not built here")


class Elsewhere:
    """The library on a machine that lacks one of its backends."""

    used: bytes | None = b""

    def pb_backends(self) -> bytes:
        return b"wide narrow portable "

    def pb_supports(self, name: bytes) -> bool:
        return name != b"wide"

    def pb_use_isa(self, name: bytes | None) -> int:
        self.used = name
        return 0


def test_a_backend_that_this_cpu_lacks_names_those_it_has() -> None:
    said = r"PROXBIT_KERNELS is 'wide', and this CPU lacks .* it has narrow, portable"
    with pytest.raises(ValueError, match=said):
        library._use(Elsewhere(), "wide")


def test_an_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'narow'.*'narrow'.*auto, wide, narrow, portable, torch"):
        library._use(Elsewhere(), "narow")


@pytest.mark.parametrize(("asked", "used"), [("narrow", b"narrow"), ("auto", None)])
def test_the_choice_reaches_the_library(asked: str, used: bytes | None) -> None:
    elsewhere = Elsewhere()
    library._use(elsewhere, asked)
    assert elsewhere.used == used


def test_every_backend_can_be_chosen_and_left(use_kernels: Callable[[str], None]) -> None:
    built, supported, chosen = library.backends()
    assert set(supported) <= set(built) and chosen in supported and "portable" in supported
    for name in (*supported, "torch"):
        use_kernels(name)
        assert kernels.isa() == library.backends().chosen == name
    use_kernels("auto")
    assert kernels.isa() == next(n for n in supported if not n.startswith("emulated"))
