"""`atomo explain` on files: a model's weights, and gradients that were dumped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Generator, Tensor

from atomo.cli import main
from atomo.cli.explanation.inputs import profile_of
from atomo.cli.explanation.options import ExplainOptions
from atomo.cli.explanation.run import with_enclosing_run
from atomo.config.settings import Settings
from atomo.errors import AtomoError, ConfigError
from atomo.training.folder.kept_settings import keep_settings
from atomo.workloads import task_of

pytestmark = pytest.mark.slow

FEW = ["--repetitions", "1", "--svd-rank", "0", "--batch-size", "4"]
FC = ["--network", "FC", "--dataset", "Digits"]


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["explain", *FEW, "--json", "yes", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def state() -> dict[str, Tensor]:
    """Returns the state of the network `FC` for Digits."""
    torch.manual_seed(3)
    return dict(task_of("Digits").open("Digits", Path()).build("FC").state_dict())


def spread(entries: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a gradient in these shapes, of which few entries are large."""
    generator = Generator().manual_seed(1)
    return {name: torch.randn(one.shape, generator=generator) ** 5 for name, one in entries.items()}


def save_arrays(path: Path, tensors: dict[str, Tensor]) -> None:
    np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})


SAVE: dict[str, Callable[[Path, dict[str, Tensor]], None]] = {
    "g.npz": save_arrays,
    "g.safetensors": lambda path, tensors: save_file(tensors, path),
}


def steps_of(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["code"], one["communicator"]): one for one in found["steps"]}


@pytest.mark.parametrize("name", SAVE)
def test_codecs_are_measured_on_the_gradient_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    gradient = spread({"b": torch.empty(300, 40), "a": torch.empty(50, 40)})
    SAVE[name](tmp_path / name, gradient)
    words = ["--gradient", str(tmp_path / name), "--compute", "30ms", "--code", "topk(ratio=0.1)"]
    found = explained(capsys, *words)
    assert (found["parameters"], found["compute_s"]) == (14_000, pytest.approx(0.03))
    steps = steps_of(found)
    kept = torch.cat([one.square().flatten().topk(one.numel() // 10).values
                      for one in gradient.values()]).sum()  # fmt: skip
    whole = sum(float(one.norm()) ** 2 for one in gradient.values())
    lost = steps["topk(ratio=0.1)", "Allgather"]
    assert lost["error"] == pytest.approx(1 - float(kept) / whole, abs=0.01)
    assert steps["sgd", "Allreduce"]["error"] == 0
    assert lost["sent_bytes"] < 1400 * 8


def test_what_a_codec_sends_is_that_of_the_numbers_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, ones = [], Generator().manual_seed(1)
    for name, values in (
        ("none", torch.zeros(20_000)),
        ("all", 1 + torch.rand(20_000, generator=ones)),
    ):
        save_file({"w": values.view(200, 100)}, tmp_path / f"{name}.safetensors")
        words = ["--gradient", str(tmp_path / f"{name}.safetensors"), "--compute", "1ms"]
        steps = steps_of(explained(capsys, *words, "--code", "threshold(value=0.5)"))
        sent.append(steps["threshold(value=0.5)", "Allgather"]["sent_bytes"])
    assert 100 * sent[0] < sent[1]


@pytest.mark.slow
def test_a_models_weights_are_what_its_gradient_is_taken_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = state()
    save_file(weights, tmp_path / "m.safetensors")
    options = {"network": "FC", "dataset": "Digits", "batch_size": 4, "repetitions": 1}
    drawn = profile_of(ExplainOptions(**options))
    read = profile_of(ExplainOptions(**options, weights=str(tmp_path / "m.safetensors")))
    assert read.gradient.keys() == drawn.gradient.keys()
    assert not all(torch.equal(read.gradient[name], drawn.gradient[name]) for name in weights)
    words = [*FC, "--weights", str(tmp_path / "m.safetensors"), "--code", "topk"]
    assert 0 < steps_of(explained(capsys, *words))["topk", "Allgather"]["error"] < 1


def test_shapes_are_enough_where_it_is_said_what_passes_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"conv": torch.ones(8, 4, 3, 3), "bn.running_mean": torch.ones(8),
               "bn.num_batches_tracked": torch.tensor(3)}  # fmt: skip
    save_file(weights, tmp_path / "m.safetensors")
    words = ["--weights", str(tmp_path / "m.safetensors"), "--code", "topk"]
    found = explained(capsys, *words, "--compute", "30ms")
    assert (found["parameters"], found["compute_s"]) == (288, pytest.approx(0.03))
    assert {one["error"] for one in found["steps"]} == {None}  # of numbers that were drawn


def test_passes_that_are_said_come_in_the_place_of_those_of_this_machine() -> None:
    options = ExplainOptions(
        network="FC", dataset="Digits", batch_size=4, repetitions=1, compute="7s"
    )
    found = profile_of(options)
    assert found.forward_s + found.backward_s == pytest.approx(7)
    assert 0 < max(found.ready_s) <= found.backward_s


def test_a_file_of_a_run_is_of_its_network(tmp_path: Path) -> None:
    settings = Settings(network="FC", dataset="Digits", batch_size=6, train_dir=str(tmp_path))
    keep_settings(tmp_path, settings.resolved())
    (tmp_path / "gradients").mkdir()
    model, gradient = "step-00000005.model.safetensors", "gradients/step-00000005.safetensors"
    for name in (model, gradient):
        save_file({"w": torch.ones(3)}, tmp_path / name)
    for asked in (
        ExplainOptions(weights=str(tmp_path / model)),
        ExplainOptions(gradient=str(tmp_path / gradient)),
    ):
        found = with_enclosing_run(asked)
        assert (found.network, found.dataset, found.batch_size) == ("FC", "Digits", 6)
    told = ExplainOptions(weights=str(tmp_path / model), compute="80ms")
    assert with_enclosing_run(told) == told


def test_a_run_alone_has_no_module_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'network = "no_such_module:build"\ndataset = "Digits"\n'
    (tmp_path / "settings.toml").write_text(text)
    save_file(state(), tmp_path / "m.safetensors")
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "step_s": 1.0}\n')
    for words in (["--weights", str(tmp_path / "m.safetensors")], [str(tmp_path)]):
        assert main(["explain", *words]) != 0
        assert "a file alone cannot ask for that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("g.npz", b"no zip", "--gradient {path} is no .npz file of numbers"),
        ("g.safetensors", b"damaged", "--gradient {path} is damaged"),
        ("g.pt", b"", "must be .safetensors, or .npz with an array for each parameter"),
        ("g.safetensors", {}, "there is no tensor in it"),
        ("g.safetensors", {"w": torch.ones(3, dtype=torch.int64)}, "torch.int64 of 3, no gradient"),
        ("g.safetensors", {"w": torch.ones(0, 3)}, "torch.float32 of 0x3, no gradient"),
        ("g.npz", {"w": torch.tensor([1.0, float("nan")])}, "w holds NaN or infinity"),
        ("g.npz", {"w": np.array(["a"])}, "w is <U1, no gradient"),
        ("g.npz", {"w": np.array([{}])}, "is no .npz file of numbers"),
    ],
)
def test_what_is_no_gradient_is_refused(
    tmp_path: Path, name: str, content: bytes | dict[str, Any], said: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    else:
        save_file(content, path)
    options = ExplainOptions(gradient=str(path), compute="1ms")
    with pytest.raises(AtomoError, match=r".") as caught:
        profile_of(options)
    assert said.format(path=path) in str(caught.value)


def test_a_file_of_another_network_is_told_from_it(tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    save_file({"odd": torch.ones(3)}, path)
    given = {"network": "FC", "dataset": "Digits", "batch_size": 4, "repetitions": 1}
    with pytest.raises(ConfigError, match=r"none such in the network|missing in the file"):
        profile_of(ExplainOptions(**given, gradient=str(path)))
    with pytest.raises(
        ConfigError, match=r"the network has no odd.*give the network and data set of the file"
    ):
        profile_of(ExplainOptions(**given, weights=str(path)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", "nowhere.safetensors", "--compute", "1ms"], "nowhere.safetensors"),
        (["--gradient", "nowhere.npz", "--compute", "1ms"], "nowhere.npz: No such file"),
        (["--compute", "soon"], "--compute 'soon': give a number with one of us, ms, s"),
        (["--compute", "1ms", "--probe", "p"], "--probe p measures passes and gradients itself"),
        (["--weights", "a", "--gradient", "b"], "give one of the two"),
        (["no_such_module:build"], "--network no_such_module:build: cannot import"),
    ],
)
def test_what_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["explain", *words]) != 0
    assert said in capsys.readouterr().err


def test_of_a_file_it_must_be_said_what_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": torch.ones(3)}, path)
    assert main(["explain", str(path)]) != 0
    assert f"is a file: give --weights {path} or --gradient {path}" in capsys.readouterr().err
