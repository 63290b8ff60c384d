"""``proxbit pack``, ``inspect``, ``run`` and ``bench``: what they write, say and refuse."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

import proxbit as pb
from proxbit.cli.root import app
from proxbit.deploy.packed_networks import float_network
from proxbit.packfile.file import read, write
from proxbit.train.fitting import load_network
from small_net import NET, write_images

pytestmark = pytest.mark.usefixtures("light_garbage")
NETS = (
    NET
    + """
def other(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))
"""
)
OPTIONS = ["--epochs=1", "--batch-size=16", "--max-steps-per-epoch=2", "--recalibrate=1", "--cpu"]
COMMANDS = ("pack", "inspect", "run", "bench")


def said(*arguments: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == status, result.output
    return result


def refusal(*arguments: str | Path) -> str:
    """The one sentence with which a command is refused."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2 and result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("proxbit: ") and "Traceback" not in line
    return line


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 3 classes, and runs: ``known`` (resnet8, BW), ``own`` (FILE.py, BWA), ``float``."""
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NETS)
    write_images(path / "i.npz", 48)
    data = f"--data=npz:{path}/i.npz"
    for name, more in {
        "known": ["--model=resnet8"],
        "own": [f"--model={path}/net.py:net", "--task=BWA"],
        "float": [f"--model={path}/net.py:net", "--method=fp"],
    }.items():
        said("train", data, *OPTIONS, *more, "--out", path / name)
    return path


@pytest.fixture(scope="module")
def known(place: Path) -> Path:
    """A packed file that can build its network."""
    said("pack", place / "known")
    return place / "known" / "net.safetensors"


@pytest.fixture(scope="module")
def own(place: Path) -> Path:
    """A packed file whose network only its owner can build."""
    said("pack", place / "own")
    return place / "own" / "net.safetensors"


# pack


@pytest.mark.parametrize("name", ["known", "own"])
def test_train_tells_the_size_of_the_file_that_pack_writes(place, tmp_path, name):
    said("pack", place / name, "-o", tmp_path / "n")
    told = json.loads((place / name / "result.json").read_text())["bytes_packed"]
    assert told == (tmp_path / "n").stat().st_size


@pytest.mark.parametrize("name", ["known", "own"])
def test_the_file_knows_its_run_and_pack_tells_the_truth(place, tmp_path, name):
    out = tmp_path / "n.safetensors"
    printed = said("pack", place / name, "-o", out).stdout
    about, images = read(out).about, np.load(place / "i.npz")["x_train"] / 255
    assert about.labels == ("0", "1", "2") and about.input["shape"] == [3, 8, 8]
    np.testing.assert_allclose(about.input["mean"], images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(about.input["std"], images.std((0, 1, 2)), rtol=1e-6)
    assert about.architecture["name"].endswith({"known": "resnet8", "own": "net.py:net"}[name])
    hard, _ = load_network(place / name)
    held = sum(t.nbytes for t in hard.state_dict().values())
    assert f"{out.stat().st_size:,} bytes in the file, {held:,} as float32" in printed
    assert "the same decision on 16 of 16 test images" in printed


def test_smaller_rests_make_smaller_files(place, tmp_path):
    sizes = []
    for i, options in enumerate(([], ["--float-rest=float16"])):
        said("pack", place / "known", "-o", tmp_path / f"{i}", *options)
        sizes.append((tmp_path / f"{i}").stat().st_size)
    rest = sum(t.nbytes for t in read(tmp_path / "0").floats.values() if t.is_floating_point())
    assert sizes[0] - sizes[1] == pytest.approx(rest / 2, abs=200)  # offsets have fewer digits


def test_rounded_inputs_are_compared_and_change_no_bit_of_the_file(place, tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    assert "inputs of 8 bits" not in said("pack", place / "known", "-o", one).stdout
    printed = said("pack", place / "known", "-o", two, "--precision=input8").stdout
    assert "with inputs of 8 bits: the same decision on" in printed
    assert one.read_bytes() == two.read_bytes()


def test_packing_what_is_no_run_names_the_run_and_not_the_place_of_its_file(tmp_path):
    assert "is not the folder of a run" in refusal("pack", tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["PLACE/float"], ["is a float one (fp)"]),
        (["PLACE/open"], ["is not finished", "proxbit train --resume"]),
        (["PLACE"], ["is not the folder of a run"]),
        (["PLACE/none"], ["is not the folder of a run"]),
        (["PLACE/net.py"], ["is not the folder of a run"]),
        (["PLACE/known", "--float-rest=int4"], ["unknown float_rest 'int4'", "float16"]),
        (["PLACE/known", "--tables=float8"], ["unknown tables 'float8'", "int8"]),
        (["PLACE/known", "--precision=exakt"], ["did you mean 'exact'?"]),
        (["PLACE/known", "-o", "PLACE"], ["is a folder"]),
        (["PLACE/known", "-o", "PLACE/none/n"], ["there is no folder", "create it"]),
        (["PLACE/known", "-o", "PLACE/known/model.safetensors", "--force"], ["the run itself"]),
    ],
)
def test_what_cannot_be_packed_is_one_sentence_and_no_file(place, options, words, tmp_path):
    unfinished = place / "open"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "config.json").write_bytes((place / "known" / "config.json").read_bytes())
    given = [each.replace("PLACE", str(place)) for each in options]
    out = [] if "-o" in given else ["-o", tmp_path / "n"]
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    sentence = refusal("pack", *given, *out)
    assert all(word in sentence for word in words), sentence
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "n").exists()


def test_an_older_file_is_replaced_only_by_force(place, known, tmp_path):
    out = tmp_path / "n"
    out.write_text("mine")
    assert "exists" in refusal("pack", place / "known", "-o", out)
    assert out.read_text() == "mine"
    said("pack", place / "known", "-o", out, "--force")
    assert out.read_bytes() == known.read_bytes()


# inspect


@pytest.mark.parametrize("options", [[], ["--float-rest=float16", "--tables=int8"]])
def test_inspect_accounts_for_every_byte(place, tmp_path, options):
    out = tmp_path / "n"
    said("pack", place / "known", "-o", out, *options)
    found = json.loads(said("inspect", out, "--json").stdout)
    front = 8 + int.from_bytes(out.read_bytes()[:8], "little")
    assert found["bytes"] == out.stat().st_size
    assert sum(layer["bytes"] for layer in found["layers"]) == out.stat().st_size - front
    hard, _ = load_network(place / "known")
    assert found["bytes_float"] == sum(t.nbytes for t in hard.state_dict().values())
    assert found["ratio"] == pytest.approx(found["bytes_float"] / found["bytes"])
    assert (found["format"], found["method"], found["task"]) == (1, "BNN++", "BW")


def test_inspect_shows_the_header(own):
    printed = said("inspect", own).stdout
    for words in ("net.py:net, classes 3", "BNN++, BWA", "exact sums", "3: 0, 1, 2", "(3, 8, 8)",
                  "2 identity", f"{own.stat().st_size:,} bytes"):  # fmt: skip
        assert words in printed, words


def test_a_file_of_an_unknown_network_is_shown_but_not_run(known, tmp_path):
    held = read(known)
    write(
        replace(held, about=replace(held.about, architecture={"name": "martian"})), tmp_path / "n"
    )
    assert "name martian" in said("inspect", tmp_path / "n").stdout
    for command in (["run", tmp_path / "n", "x.png"], ["bench", tmp_path / "n"]):
        assert "martian" in refusal(*command)


def test_a_file_is_as_accurate_as_its_run(place, known, own):
    data = f"npz:{place}/i.npz"
    for file, more in ((known, []), (own, ["--skeleton", f"{place}/net.py:net"])):
        run = json.loads(said("evaluate", file.parent, "--json").stdout)
        found = json.loads(said("evaluate", file, "--data", data, *more, "--json").stdout)
        assert found == {"file": str(file), "part": "test", "n": run["n"], "hard": run["hard"]}


def test_what_cannot_be_evaluated_is_told(place, known):
    data = f"npz:{place}/i.npz"
    assert "if it is a packed file, give its test images as --data" in refusal("evaluate", known)
    assert "without --part" in refusal("evaluate", known, "--data", data, "--part", "validation")
    assert "leave out --data" in refusal("evaluate", place / "known", "--data", data)
    assert "8x8 images of 3 channels and 3 classes" in refusal("evaluate", known, "--data=fashion")


# Files that are not packed networks


def calls(path: Path) -> list[list[str | Path]]:
    return [["inspect", path], ["run", path, "x.png"], ["bench", path]]


@pytest.mark.parametrize("command", range(3))
def test_what_is_not_a_packed_file_is_one_sentence(tmp_path, command):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    save_file({"w": torch.zeros(3)}, tmp_path / "plain")
    for name, words in {
        "none": "there is no file", "text": "cannot read", "empty": "0 bytes",
        "plain": "not a packed network", "": "folder",
    }.items():  # fmt: skip
        assert words in refusal(*calls(tmp_path / name)[command])


@given(data=st.data())
def test_a_damaged_file_is_one_sentence(known, tmp_path_factory, data):
    content = bytearray(known.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "n"
    path.write_bytes(content)
    for command in calls(path):
        assert "cannot read" in refusal(*command)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shape": [3, 8]},
        {"shape": [3, 8, -8]},
        {"shape": [3, 10**9, 10**9]},
        {"shape": "3x8x8"},
        {"shape": [3, 8, 8], "mean": [0.5]},
        {"shape": [3, 8, 8], "mean": ["a", "b", "c"]},
        {"shape": [3, 8, 8], "std": [1, 1, 0]},
        {"shape": [3, 8, 8], "crop": 1e-9},
        None,
    ],
)
def test_an_impossible_input_is_one_sentence(own, tmp_path, given):
    held = read(own)
    write(replace(held, about=replace(held.about, input=given)), tmp_path / "n")
    sentence = refusal("run", tmp_path / "n", "x.png")
    assert ("does not say" if given is None else "the file's input is") in sentence


@pytest.mark.parametrize(
    ("shape", "words"),
    [([1, 8, 8], "does not take an input of shape (1, 1, 8, 8)"), ([5, 8, 8], "takes 5 channels")],
)
def test_an_input_that_the_network_does_not_take_is_one_sentence(
    place, known, tmp_path, shape, words
):
    pytest.importorskip("PIL")
    held = read(known)
    about = replace(held.about, input={"shape": shape})
    write(replace(held, about=about), tmp_path / "n")
    assert words in refusal("run", tmp_path / "n", picture(place, 0, tmp_path))
    assert "does not take an input of shape (1, " in refusal("bench", tmp_path / "n")


# run


def picture(place: Path, row: int, folder: Path, mode: str = "RGB") -> Path:
    """A test image of the run as a file."""
    from PIL import Image

    pixels = np.load(place / "i.npz")["x_test"][row]
    path = folder / f"{row}{mode}.png"
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.mark.parametrize("name", ["known", "own"])
def test_run_says_what_the_hard_network_says(place, name, request, tmp_path):
    pytest.importorskip("PIL")
    file = request.getfixturevalue(name)
    skeleton = ["--skeleton", f"{place}/net.py:net"] if name == "own" else []
    images = [picture(place, row, tmp_path) for row in range(6)]
    lines = said("run", file, *images, "--json", "--top=3", *skeleton).stdout.splitlines()
    hard, job = load_network(place / name)
    x = next(iter(job.loader("test", False, torch.device("cpu")).epoch(0)))[0][:6]
    with torch.inference_mode():
        shares = hard(x).softmax(1)
    for line, image, wanted in zip(lines, images, shares, strict=True):
        found = json.loads(line)
        assert found["image"] == str(image)
        assert [guess["index"] for guess in found["top"]] == wanted.argsort(
            descending=True
        ).tolist()
        given = [guess["share"] for guess in found["top"]]
        np.testing.assert_allclose(given, wanted.sort(descending=True).values, atol=1e-5)
        assert all(guess["label"] == str(guess["index"]) for guess in found["top"])


def test_run_prints_the_best_classes_first(place, known, tmp_path):
    pytest.importorskip("PIL")
    image = picture(place, 0, tmp_path)
    head, *rows = said("run", known, image, "--top=2").stdout.splitlines()
    assert head == str(image) and len(rows) == 2
    first, second = (float(row.split(" %")[0]) for row in rows)
    assert first >= second and first + second <= 100.1


def test_classes_without_names_are_numbered(place, known, tmp_path):
    pytest.importorskip("PIL")
    held = read(known)
    write(replace(held, about=replace(held.about, labels=None)), tmp_path / "n")
    image = picture(place, 0, tmp_path)
    found = json.loads(said("run", tmp_path / "n", image, "--json").stdout)
    assert {guess["label"] for guess in found["top"]} == {"class 0", "class 1", "class 2"}


def test_images_that_cannot_be_read_are_named_and_the_others_go_on(place, known, tmp_path):
    pytest.importorskip("PIL")
    good = [picture(place, row, tmp_path) for row in (0, 1)]
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "cut.png").write_bytes(good[0].read_bytes()[:60])
    bad = [tmp_path / "text.png", tmp_path / "none.png", tmp_path, tmp_path / "cut.png"]
    result = said("run", known, bad[0], good[0], bad[1], bad[2], good[1], bad[3], status=2)
    assert [line for line in result.stdout.splitlines() if line.startswith("/")] == [
        str(path) for path in good
    ]
    sentences = result.stderr.splitlines()
    assert len(sentences) == 4
    for sentence, path in zip(sentences, bad, strict=True):
        assert sentence.startswith(f"proxbit: cannot read the image {path} (")


def test_a_file_without_an_architecture_asks_for_one(place, own, tmp_path):
    for command in (["run", own, "x.png"], ["bench", own]):
        assert "give the float model as --skeleton FILE.py:FUNCTION" in refusal(*command)
        wrong = refusal(*command, "--skeleton", f"{place}/net.py:other")
        assert "and the skeleton has none" in wrong
        assert "there is no file" in refusal(*command, "--skeleton", f"{place}/none.py:net")


@pytest.mark.parametrize("options", [["run", "FILE", "x.png", "--top=0"],
                                     ["bench", "FILE", "--batch-size=0"],
                                     ["bench", "FILE", "--threads=-1"],
                                     ["bench", "FILE", "--seconds=nan"]])  # fmt: skip
def test_numbers_are_above_zero(known, options):
    given = [known if each == "FILE" else each for each in options]
    assert "must be above 0" in refusal(*given)


# bench


@pytest.mark.parametrize("option", ["--batch-size=1000000000000", "--threads=1000000"])
def test_what_no_machine_has_is_one_sentence(known, option):
    assert option.partition("=")[2] in refusal("bench", known, option).replace(",", "")


def test_bench_measures_both_networks(known):
    threads = torch.get_num_threads()
    command = ["bench", known, "--batch-size=2", "--threads=1", "--seconds=0.01"]
    found = json.loads(said(*command, "--json").stdout)
    assert found["batch_size"] == 2 and found["threads"] == 1 and found["rounds"] >= 3
    for kind in ("packed", "float32"):
        assert 0 < found[kind]["best"] <= found[kind]["median"]
        assert found[kind]["layout"] in ("contiguous", "channels last")
    assert found["ratio"] == pytest.approx(found["float32"]["median"] / found["packed"]["median"])
    assert torch.get_num_threads() == threads
    printed = said(*command).stdout
    assert "median ms" in printed and ("faster" in printed or "slower" in printed)


@pytest.mark.parametrize("name", ["known", "own"])
def test_the_float_network_of_a_file_has_the_hard_weights(place, name, request):
    file = request.getfixturevalue(name)
    skeleton = f"{place}/net.py:net" if name == "own" else None
    plain, (hard, _) = float_network(file, read(file), skeleton), load_network(place / name)
    assert not pb.binary_weights(plain) and not plain.training
    wanted = hard.state_dict()
    assert plain.state_dict().keys() == wanted.keys()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(value, wanted[key], rtol=1e-6, atol=0)
    if name == "known":  # BW: the same function, too
        x = torch.randn(4, 3, 8, 8)
        with torch.inference_mode():
            torch.testing.assert_close(plain(x), hard(x), rtol=1e-4, atol=1e-4)


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command):
    printed = said(command, "--help").stdout
    assert "Usage" in printed and len(printed.splitlines()) < 45
    assert command in said("--help").stdout


# export


@pytest.mark.slow
def test_export_writes_a_run_or_a_packed_file_with_what_a_loader_wants(place, own, tmp_path):
    onnx = pytest.importorskip("onnx")
    skeleton = f"--skeleton={place}/net.py:net"
    said("export", place / "own", "-o", tmp_path / "run.onnx")
    said("export", own, skeleton, "-o", tmp_path / "file.onnx")
    for name in ("run.onnx", "file.onnx"):
        facts = {p.key: json.loads(p.value) for p in onnx.load(tmp_path / name).metadata_props}
        assert facts["proxbit.labels"] == ["0", "1", "2"]
        assert facts["proxbit.input"]["shape"] == [3, 8, 8]
    printed = said("export", place / "own", "-o", tmp_path / "s.onnx", "--operators=standard")
    assert "opset 18, takes" in printed.stdout
    assert not any(node.domain for node in onnx.load(tmp_path / "s.onnx").graph.node)


def test_export_refuses_in_one_sentence(place, own, tmp_path):
    pytest.importorskip("onnx")
    assert "is a float one" in refusal("export", place / "float", "-o", tmp_path / "n.onnx")
    words = refusal("export", place / "own", "-o", tmp_path / "n.onnx", "--operators=tflite")
    assert "unknown operators 'tflite'" in words
    (tmp_path / "old.onnx").write_bytes(b"mine")
    assert "exists" in refusal("export", place / "own", "-o", tmp_path / "old.onnx")
    assert "there is no file" in refusal("export", tmp_path / "none", "-o", tmp_path / "n.onnx")
    assert "--skeleton" in refusal("export", own, "-o", tmp_path / "n.onnx")
    assert list(tmp_path.iterdir()) == [tmp_path / "old.onnx"]
