"""Pictures, and the pages of docs/pairs that are made from them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import proxbit as pb
from proxbit.cli.root import app
from proxbit.theory import galleries, pictures

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "pairs"
STARTS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


@pytest.mark.slow
def test_every_page_and_picture_is_current():
    script = ROOT / "tools" / "write_pair_pages.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_method_and_every_pair_has_a_page_with_a_small_picture():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    for key in pb.METHODS:
        assert f"`{key}`" in text
    for name, value in vars(pb).items():
        if isinstance(value, pb.Pair):
            assert f"`pb.{name}`" in text
    for page in PAGES.glob("*.md"):
        if page.name != "README.md":
            assert page.with_suffix(".svg").stat().st_size < 60_000


def test_links_of_the_pages_lead_somewhere():
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("suffix", STARTS)
@pytest.mark.parametrize("pair", [pb.bnn, pb.bnn_plus], ids=["admitted", "refused"])
def test_a_picture_is_an_image_and_the_same_twice(pair, suffix, tmp_path):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in (first, second):
        pictures.draw(pair, 5.0, path)
    assert first.read_bytes().startswith(STARTS[suffix])
    assert first.read_bytes() == second.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_a_png_shows_more_than_one_colour(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pictures.draw(pb.prox_connect(), 0.3, tmp_path / "pc.png", smoothing=2.0)
    with image.open(tmp_path / "pc.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
        assert picture.width >= 1000
    for accent in (pictures.FORWARD, pictures.BACKWARD, pictures.INK):
        assert tuple(bytes.fromhex(accent[1:])) in colours


def test_a_jump_is_a_break_with_a_dot_and_a_ring(tmp_path):
    pictures.draw(pb.binary_connect, 1.0, tmp_path / "bc.svg")
    text = (tmp_path / "bc.svg").read_text(encoding="utf-8")
    lines = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="([^"]*)"', text)
    forward = [d for d, style in lines if pictures.FORWARD.lower() in style]
    assert len(forward) == 2
    for line in forward:
        heights = {point.split()[2] for point in re.findall(r"[ML] \S+ \S+", line)}
        assert len(heights) == 1, "a piece of the sign is level"


@pytest.mark.slow
def test_the_gallery_shows_every_pair_with_its_verdict(tmp_path):
    galleries.gallery(tmp_path / "all.svg")
    text = (tmp_path / "all.svg").read_text(encoding="utf-8")
    for shown in galleries.CATALOGUE:
        assert f">{shown.label}<" in text
    words = [">admitted<", ">refused<"]
    assert [text.count(word) for word in words] == [len(galleries.CATALOGUE) - 4, 4]


def test_a_gallery_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one pair"):
        galleries.gallery(tmp_path / "all.svg", shown=())


def test_the_linear_quantizer_has_a_panel_for_each_choice_of_its_shifts(tmp_path):
    """Each half of a panel starts at varrho, and is flat within rho of 1: the pictures tell."""
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        galleries.draw_linear_quantizer(path)
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text(encoding="utf-8")
    for rho, varrho in ((0, 0.2), (0.2, 0.2), (0.2, 0)):
        assert f">{galleries.RHO} = {rho:g}, {galleries.VARRHO} = {varrho:g}<" in text
    drawn = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="([^"]*)"', text)
    halves = [d for d, style in drawn if pictures.FORWARD.lower() in style]
    heights = [[float(y) for y in re.findall(r"[ML] \S+ (\S+)", d)] for d in halves]
    assert len(heights) == 6 and all(y[1] == y[2] for y in heights)
    jumps = [
        abs(a[0] - b[0]) / abs(a[1] - b[1]) for a, b in (heights[:2], heights[2:4], heights[4:])
    ]
    assert jumps == pytest.approx([0.2, 0.2, 0], abs=1e-3)
    assert text.count(">p₂⁺<") == 2


@pytest.mark.parametrize("panels", [(), ((0.2, 2.0),), ((-1.0, 0.0),)])
def test_a_panel_that_cannot_be_is_refused(panels, tmp_path):
    with pytest.raises(ValueError, match="a panel is two shifts from 0 to 1"):
        galleries.draw_linear_quantizer(tmp_path / "a.svg", panels)


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"plots need matplotlib: pip install proxbit\[plot\]"):
        pictures.draw(pb.bnn, 1.0, tmp_path / "bnn.png")


def test_the_look_of_the_user_is_left_as_it_was(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    pictures.draw(pb.bnn, 1.0, tmp_path / "bnn.svg")
    assert dict(matplotlib.rcParams) == before


# The command line --------------------------------------------------------------------------------


def proxbit(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_check_draws_where_it_is_told(tmp_path):
    result = proxbit("check", "bnn+", "--strength", 5, "--plot", tmp_path / "x.png")
    assert result.exit_code == 3
    assert f"drawn at strength 5: {tmp_path / 'x.png'}" in result.stdout
    assert (tmp_path / "x.png").read_bytes().startswith(STARTS[".png"])


@pytest.mark.parametrize("words", [["pq"], ["pq", "--strength", "0.1:0.4"]])
def test_a_method_refused_by_its_rule_has_a_picture_of_its_pair(words, tmp_path):
    assert proxbit("check", *words, "--plot", tmp_path / "x.svg").exit_code == 3
    assert (tmp_path / "x.svg").exists()


def test_json_stays_json_beside_a_picture(tmp_path):
    result = proxbit("check", "bnn", "--json", "--plot", tmp_path / "x.svg")
    assert result.exit_code == 0
    assert __import__("json").loads(result.stdout)["admitted"]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("x.pdf", "a picture ends in .png or .svg, not"),
        ("x", "a picture ends in .png or .svg, not"),
        ("none/x.png", "there is no folder"),
        ("folder.png", "it is a folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence(file, said, tmp_path):
    (tmp_path / "folder.png").mkdir()
    result = proxbit("check", "bnn", "--plot", tmp_path / file)
    assert result.exit_code == 2
    assert said in result.stderr and result.stderr.count("\n") == 1 and not result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_nothing_is_left_behind_when_the_disk_refuses(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    (tmp_path / "x.svg").write_text("the picture of yesterday")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ValueError, match="No space left on device"):
        pictures.draw(pb.bnn, 1.0, tmp_path / "x.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["x.svg"]
    assert (tmp_path / "x.svg").read_text() == "the picture of yesterday"
