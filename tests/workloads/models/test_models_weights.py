"""Weights from files: published ones of ViT and Mixer, and state dicts of any network."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from workloads.models import published_weights as google
from workloads.training import trained

from atomo.config.identity import record
from atomo.config.settings import Settings
from atomo.errors import ConfigError, DataError
from atomo.launch.resolve import resolve_settings
from atomo.workloads.models import build_model
from atomo.workloads.models.mixer import MixerSize, mixer
from atomo.workloads.models.pretrained.weights import load_weights, resize_positions
from atomo.workloads.models.vit import VitSize, vit

LAYERS, HEADS, PATCH = 2, 2, 4
IMAGE = (3, 12, 12)
BENCHMARK = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "pretrain_vit.py"))
VIT, MIXER = VitSize(8, LAYERS, HEADS, 16, PATCH), MixerSize(8, LAYERS, 6, 16, PATCH)
VIT_ARRAYS = google.drawn(google.vit_shapes(8, LAYERS, HEADS, 16, PATCH, 10, 5))
MIXER_ARRAYS = google.drawn(google.mixer_shapes(8, LAYERS, 6, 16, PATCH, 9, 5))


def small_vit(classes: int = 5, shape: tuple[int, int, int] = IMAGE) -> Module:
    torch.manual_seed(3)
    return vit(VIT, shape, classes).eval()


def images() -> Tensor:
    return torch.randn(3, *IMAGE, generator=torch.Generator().manual_seed(2))


def test_a_published_vision_transformer_scores_as_its_formula(tmp_path):
    network = small_vit()
    load_weights(network, google.save(tmp_path / "v.npz", VIT_ARRAYS))
    expected = google.vit_scores(VIT_ARRAYS, images(), LAYERS)
    torch.testing.assert_close(network(images()), expected)
    old = {f"opt/target/{key}": array for key, array in VIT_ARRAYS.items()}
    again = small_vit()
    load_weights(again, google.save(tmp_path / "old.npz", old))
    assert again(images()).equal(network(images()))


def test_a_network_of_ours_is_written_as_it_was_published(tmp_path):
    network = small_vit()
    load_weights(network, google.save(tmp_path / "v.npz", VIT_ARRAYS))
    written = BENCHMARK["as_published"](network, HEADS)
    read = {key: array for key, array in VIT_ARRAYS.items() if not key.startswith("pre_logits")}
    assert written.keys() == read.keys()
    assert all(written[key].equal(array) for key, array in read.items())


def test_a_published_mixer_scores_as_its_formula(tmp_path):
    network = mixer(MIXER, IMAGE, 5).eval()
    load_weights(network, google.save(tmp_path / "m.npz", MIXER_ARRAYS))
    expected = google.mixer_scores(MIXER_ARRAYS, images(), LAYERS)
    torch.testing.assert_close(network(images()), expected)


@pytest.mark.slow
def test_timm_reads_the_same_of_a_published_file(tmp_path):
    reason = "timm is not installed: pip install '.[timm]'"
    module = pytest.importorskip("timm.models.vision_transformer", reason=reason)
    path = google.save(tmp_path / "v.npz", VIT_ARRAYS)
    reference = module.VisionTransformer(12, PATCH, 3, 5, "token", 8, LAYERS, HEADS, 2.0).eval()
    reference.load_pretrained(str(path))
    actual = small_vit()
    load_weights(actual, path)
    assert actual.state_dict().keys() == reference.state_dict().keys()
    assert all(
        tensor.equal(reference.state_dict()[name]) for name, tensor in actual.state_dict().items()
    )
    torch.testing.assert_close(actual(images()), reference(images()))
    for zoo in ("vit_base_patch16_224", "mixer_b16_224"):
        kind = "ViT-B_16" if zoo.startswith("vit") else "Mixer-B_16"
        with torch.device("meta"):
            pair = build_model(kind, (3, 224, 224), 9), build_model(f"timm:{zoo}", (3, 224, 224), 9)
        shapes = [{name: t.shape for name, t in network.state_dict().items()} for network in pair]
        assert shapes[0] == shapes[1]


def test_another_number_of_classes_leaves_the_head_new(tmp_path):
    network = small_vit(7)
    load_weights(network, google.save(tmp_path / "v.npz", VIT_ARRAYS))
    assert not network.head.weight.any()
    assert network.norm.weight.equal(VIT_ARRAYS["Transformer/encoder_norm/scale"])
    headless = {key: array for key, array in VIT_ARRAYS.items() if not key.startswith("head/")}
    load_weights(network, google.save(tmp_path / "h.npz", headless))


@pytest.mark.parametrize("side", [5, 2, 1])
def test_positions_are_resized_as_the_published_code_does(side):
    from scipy.ndimage import zoom

    positions = torch.randn(1, 1 + 9, 4, generator=torch.Generator().manual_seed(1))
    grid = positions[0, 1:].view(3, 3, 4).numpy()
    expected = zoom(grid, (side / 3, side / 3, 1), order=1).reshape(1, side * side, 4)
    actual = resize_positions(positions, 1 + side * side)
    assert actual[:, 0].equal(positions[:, 0])
    torch.testing.assert_close(actual[:, 1:], torch.from_numpy(expected))


def test_larger_images_get_resized_positions(tmp_path):
    network = small_vit(shape=(3, 20, 20))
    load_weights(network, google.save(tmp_path / "v.npz", VIT_ARRAYS))
    published = VIT_ARRAYS["Transformer/posembed_input/pos_embedding"]
    assert network.pos_embed.shape == (1, 26, 8)
    corners = network.pos_embed[0, [1, 5, 21, 25]]
    torch.testing.assert_close(corners, published[0, [1, 3, 7, 9]])


def test_a_state_dict_of_any_network_is_read(tmp_path):
    torch.manual_seed(1)
    first, wider = build_model("ResNet20", IMAGE, 4), build_model("ResNet20", IMAGE, 6)
    halves = {n: t.half() for n, t in first.state_dict().items() if "num_batches" not in n}
    save_file(halves, tmp_path / "r.safetensors")
    before = wider.fc.weight.clone()
    load_weights(wider, tmp_path / "r.safetensors")
    body = {n: t for n, t in wider.state_dict().items() if n in halves and not n.startswith("fc.")}
    assert all(tensor.equal(halves[name].float()) for name, tensor in body.items())
    assert wider.fc.weight.equal(before)


OUT = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel"
KEY = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/key/bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({OUT: torch.zeros(2, 3, 8)}, r"attn.proj.weight is \(8, 6\) in the file and \(8, 8\)"),
        ({OUT: None}, r"it has no blocks.1.attn.proj.weight, of \(8, 8\)"),
        ({KEY: None}, r"differ: .*query.bias \(8,\), .*key.bias missing, .*value.bias \(8,\)"),
        ({"head/kernel": torch.zeros(9, 5)}, r"head.weight is \(5, 9\) in the file and \(5, 8\)"),
        ({"embedding/kernel": torch.zeros(5, 5, 3, 8)}, r"embed.proj.weight is \(8, 3, 5, 5\)"),
        (
            {"Transformer/posembed_input/pos_embedding": torch.zeros(1, 9, 8)},
            r"pos_embed is \(1, 9, 8\) in the file and \(1, 10, 8\)",
        ),
        ({"wte": torch.zeros(3)}, r"the network has no wte \(1 such tensors\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_shapes(change, message, tmp_path):
    arrays = {key: value for key, value in (VIT_ARRAYS | change).items() if value is not None}
    path = google.save(tmp_path / "v.npz", arrays)
    network = small_vit()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ConfigError, match=rf"--weights {path}.*{message}"):
        load_weights(network, path)
    assert all(tensor.equal(before[name]) for name, tensor in network.state_dict().items())


def write_objects(path: Path) -> None:
    np.savez(path, **{"head/bias": np.array([{}], dtype=object)})


def write_half(path: Path) -> None:
    google.save(path, VIT_ARRAYS)
    path.write_bytes(path.read_bytes()[:5000])


def write_nan(path: Path) -> None:
    google.save(path, VIT_ARRAYS | {"cls": torch.full((1, 1, 8), torch.nan)})


def write_words(path: Path) -> None:
    np.savez(path, **{"head/bias": np.array(["a"])})


def write_one(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def write_scalar(path: Path) -> None:
    np.savez(path, **{"head/kernel": np.float32(1)})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_objects, "is no .npz file of numbers: Object arrays cannot be loaded"),
        (write_half, "is no .npz file of numbers"),
        (write_nan, "cls_token holds NaN or infinity"),
        (write_words, "head/bias is of type <U1, not of floating point"),
        (write_one, "is one array"),
        (write_scalar, r"head/kernel is of shape \(\)"),
        (lambda path: path.write_text("words"), "is no .npz file of numbers"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_a_damaged_file_is_named(write, message, tmp_path):
    path = tmp_path / "v.npz"
    write(path)
    with pytest.raises(DataError, match=f"--weights {path}.*{message}"):
        load_weights(small_vit(), path)


def test_damaged_safetensors_and_pickles_are_refused(tmp_path):
    (tmp_path / "v.safetensors").write_bytes(b"words of no use")
    with pytest.raises(DataError, match=r"v.safetensors is damaged"):
        load_weights(small_vit(), tmp_path / "v.safetensors")
    with pytest.raises(ConfigError, match=r"v.pth: must be .npz.*unpickling"):
        load_weights(small_vit(), tmp_path / "v.pth")


def test_a_run_finds_the_file_from_anywhere_and_a_checkpoint_does_without(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = resolve_settings(Settings(network="vit-b/16", weights="v.npz", train_dir="x"))
    assert (settings.network, settings.weights) == ("ViT-B_16", str(tmp_path / "v.npz"))
    assert "weights" not in record(settings)


def bar(cell: int, label: int, generator: torch.Generator) -> Image.Image:
    """Noise with one cell of 16 that is brighter in the colour of the label."""
    pixels = torch.randint(90, (16, 16, 3), generator=generator)
    across, down = cell % 4 * 4, cell // 4 * 4
    pixels[down : down + 4, across : across + 4, label] += 150
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def draw(root: Path, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    for split, count in (("train", 48), ("test", 32)):
        for label in range(classes):
            folder = root / split / f"colour{label}"
            folder.mkdir(parents=True)
            for i in range(count):
                bar(i % 16, label, generator).save(folder / f"{i:03}.png")


@pytest.mark.slow
def test_a_vision_transformer_is_fine_tuned_in_a_few_steps_from_a_published_file(
    monkeypatch, tmp_path
):
    size, side = VitSize(24, 2, 2, 48, patch=4), (3, 12, 12)  # fine-tuned on images of 16 pixels
    module = ModuleType("mine")
    module.net = lambda num_classes, input_shape: vit(size, input_shape, num_classes, 0.0)
    monkeypatch.setitem(sys.modules, "mine", module)
    for name in ("tuned", "plain"):
        draw(tmp_path / name, 3)
    arrays = BENCHMARK["as_published"](pretrained(size, side), 2)
    weights = google.save(tmp_path / "w.npz", arrays)
    settings = {"network": "mine:net", "dataset": "Folder", "code": "sgd", "max_steps": 4,
             "batch_size": 16, "optimizer": "adam", "lr": 1e-3}  # fmt: skip
    assert trained(tmp_path / "tuned", weights=str(weights), **settings)["top1"] > 0.9
    assert trained(tmp_path / "plain", **settings)["top1"] < 0.7  # these steps are too few


def pretrained(size: VitSize, shape: tuple[int, int, int]) -> Module:
    """Returns a network that detects which of three colours a bright cell has, at any place."""
    torch.manual_seed(1)
    network = vit(size, shape, 4, 0.0)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(9)
    for _ in range(60):
        labels = torch.randint(3, (32,), generator=generator)
        batch = torch.rand(32, *shape, generator=generator) - 1.5
        cells = torch.randint(9, (32,), generator=generator)
        for i, (cell, label) in enumerate(zip(cells.tolist(), labels.tolist(), strict=True)):
            across, down = cell % 3 * 4, cell // 3 * 4
            batch[i, label, down : down + 4, across : across + 4] += 2.5
        optimizer.zero_grad()
        cross_entropy(network(batch), labels).backward()
        optimizer.step()
    return network
