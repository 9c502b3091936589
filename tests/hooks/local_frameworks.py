"""Replicas that take local steps in the training loops of frameworks, as a script:
`local_frameworks.py RANK SIZE FOLDER NAME ...`.
"""

import logging
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import atomo
from atomo.errors import ConfigError
from atomo.hooks.local.files import path_of, read

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
CODE, EVERY, STEPS, HALF, BATCH = "topk(ratio=0.1)", 3, 11, 5, 8


def network() -> nn.Module:
    """Returns a network with buffers, the same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 5))


IMAGES = torch.randn(STEPS * SIZE * BATCH, 16, generator=torch.Generator().manual_seed(3))
LABELS = (IMAGES[:, :5] * 2 + IMAGES[:, 5:10]).argmax(1)
DATA = TensorDataset(IMAGES, LABELS)
HALF_DATA = TensorDataset(IMAGES[: HALF * SIZE * BATCH], LABELS[: HALF * SIZE * BATCH])


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns this rank's batch of a step: ranks take turns."""
    part = slice((step * SIZE + RANK) * BATCH, (step * SIZE + RANK + 1) * BATCH)
    return IMAGES[part], LABELS[part]


def inner(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: Any, steps: range = range(STEPS)) -> None:
    for step in steps:
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in model.state_dict().values()])


def same_on_all(mine: Tensor) -> bool:
    """True if all ranks have the same bits."""
    everyone = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(everyone, mine)
    return all(other.equal(mine) for other in everyone)


def ddp() -> None:
    """A script with DDP needs one line: its steps are those of the plain model, bit for bit."""
    store = dist.distributed_c10d._get_default_store()
    plain = network()
    optimizer = atomo.local_steps(plain, inner(plain), CODE, every=EVERY)
    train(plain, optimizer)
    model = DistributedDataParallel(network(), find_unused_parameters=True)
    wrapped = atomo.local_steps(model, inner(model), CODE, every=EVERY)
    if RANK == 0:  # takes the steps of a round while no other rank takes any
        train(model, wrapped, range(EVERY - 1))
        store.set("local/alone", "done")
    else:
        store.wait(["local/alone"], timedelta(seconds=500))
        train(model, wrapped, range(EVERY - 1))
    train(model, wrapped, range(EVERY - 1, STEPS))
    assert flat(model.module).equal(flat(plain))
    assert not same_on_all(flat(plain))
    with wrapped.anchor():
        assert same_on_all(flat(model.module))
    assert wrapped.exchange.stats.steps == STEPS // EVERY
    model.require_backward_grad_sync = True  # by the program: the hook keeps gradients local
    train(model, wrapped, range(1))
    train(plain, optimizer, range(1))
    assert flat(model.module).equal(flat(plain))
    with pytest.raises(ConfigError, match="already"):
        atomo.ddp_hook(model, CODE)
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(*atomo.ddp_hook(hooked, CODE))
    with pytest.raises(ConfigError, match="already"):
        atomo.local_steps(hooked, inner(hooked), CODE)


def finished(model: nn.Module, replica: Any) -> tuple[Tensor, Tensor]:
    """Returns the weights of this replica and the anchor, which all ranks have alike."""
    own = flat(model)
    with replica.anchor():
        assert same_on_all(flat(model))
        return own, flat(model)


def same(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> bool:
    return all(a.equal(b) for a, b in zip(first, second, strict=True))


def accelerate_run(
    resume: Path | None = None, save: Path | None = None, **options: Any
) -> tuple[Tensor, ...]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, **options)
    plain = network()
    model, optimizer, loader = accelerator.prepare(plain, inner(plain), DataLoader(DATA, BATCH))
    with pytest.raises(ConfigError, match="1 prepared models, and a Sequential was given"):
        atomo.accelerate_local_steps(accelerator, plain, CODE)
    local = atomo.accelerate_local_steps(accelerator, model, CODE, every=EVERY)
    if resume:
        accelerator.load_state(str(resume))
        assert local.replica.steps == HALF
    for step, (images, labels) in enumerate(loader):
        if resume and step < HALF:
            continue
        if save and step == HALF:
            accelerator.save_state(str(save))
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
    assert local.replica.steps == -(-STEPS // accelerator.gradient_accumulation_steps)
    return finished(plain, local.replica)


def accelerate() -> None:
    """Accelerate's steps are those of a plain loop; a resumed run equals one without a stop."""
    from safetensors.torch import load_file

    plain = network()
    optimizer = atomo.local_steps(plain, inner(plain), CODE, every=EVERY)
    train(plain, optimizer)
    folder = FOLDER / "accelerate"
    whole = accelerate_run(save=folder)
    assert same(whole, finished(plain, optimizer))
    assert same(whole, accelerate_run(resume=folder))
    dist.barrier()
    saved = load_file(folder / "model.safetensors")
    anchor = read(path_of(folder, 0, RANK))["anchor"]
    for name, tensor in (anchor["weights"] | anchor["buffers"]).items():
        assert saved[name].equal(tensor)
    mixed = {"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}
    assert not same(whole, accelerate_run(**mixed))


class Classifier(nn.Module):
    """A network as the Trainer of transformers wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def trainer_run(folder: Path, resume: bool = False) -> tuple[Tensor, ...]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Last(TrainerCallback):
        """Takes the weights of the replica before the end of training replaces them."""

        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if state.global_step == STEPS:
                local.hide_anchor()
                seen.extend(finished(model, local.replica))

    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, per_device_train_batch_size=BATCH,
        num_train_epochs=1, learning_rate=0.01, save_strategy="steps", save_steps=HALF,
        eval_strategy="steps", eval_steps=HALF, report_to="none", disable_tqdm=True,
        logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    examples = [{"images": image, "labels": label} for image, label in DATA]
    model, seen = Classifier(), list[Tensor]()
    trainer = Trainer(
        model, arguments, train_dataset=examples, eval_dataset=examples[:8],
        optimizers=(inner(model), None),
    )  # fmt: skip
    local = atomo.trainer_local_steps(trainer, CODE, every=EVERY)
    trainer.add_callback(Last())
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{HALF}") if resume else None)
    assert flat(model).equal(seen[1])  # the anchor
    return tuple(seen)


def trainer() -> None:
    """The Trainer evaluates and saves the anchor; a resumed run equals one without a stop."""
    from accelerate.state import AcceleratorState, GradientState
    from safetensors.torch import load_file

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    folder = FOLDER / "trainer"
    whole = trainer_run(folder)
    dist.barrier()
    place = folder / f"checkpoint-{HALF}"
    saved, state = load_file(place / "model.safetensors"), read(path_of(place, 0, RANK))
    assert state["steps"] == HALF
    anchor = state["anchor"]
    for name, tensor in (anchor["weights"] | anchor["buffers"]).items():
        assert saved[name].equal(tensor)
    assert not state["model"]["network.0.weight"].equal(anchor["weights"]["network.0.weight"])
    assert same(whole, trainer_run(folder, resume=True))
    assert not same_on_all(whole[0])


def lightning_run(resume: Path | None = None, save: Path | None = None) -> tuple[Tensor, ...]:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            return cross_entropy(self.network(batch[0]), batch[1])

        def validation_step(self, batch: list[Tensor], number: int) -> None:
            assert same_on_all(flat(self))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return inner(self)

    class Last(Callback):
        """Takes the weights of the replica before the end of the fit replaces them."""

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            seen.extend(finished(module, local.attachment.replica))

    local = atomo.lightning_local_steps(CODE, every=EVERY)
    callbacks: list[Any] = [local, Last()]
    if save:
        callbacks.append(ModelCheckpoint(save, "{epoch}", every_n_epochs=1, save_top_k=-1))
    trainer = Trainer(
        accelerator="cpu", devices=SIZE, strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=2, callbacks=callbacks, logger=False, enable_checkpointing=bool(save),
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module, seen = Module(), list[Tensor]()
    loader = DataLoader(HALF_DATA, BATCH)
    trainer.fit(module, loader, DataLoader(HALF_DATA, BATCH), ckpt_path=resume)
    assert flat(module).equal(seen[1])  # the anchor
    return tuple(seen)


def lightning() -> None:
    """Lightning validates and saves the anchor; a resumed run equals one without a stop."""
    whole = lightning_run(save=FOLDER / "lightning")
    place = FOLDER / "lightning" / "epoch=0.ckpt"
    state = torch.load(place, weights_only=False)
    anchor = state["callbacks"]["atomo-local-steps"]["anchor"]
    for name, tensor in (anchor["weights"] | anchor["buffers"]).items():
        assert state["state_dict"][name].equal(tensor)
    assert same(whole, lightning_run(resume=place))
    assert not same_on_all(whole[0])


def main() -> None:
    warnings.simplefilter("default")  # other packages emit many warnings
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(SIZE)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    store, wait = f"file://{FOLDER / 'store'}", timedelta(seconds=300)
    dist.init_process_group("gloo", store, wait, rank=RANK, world_size=SIZE)
    for name in sys.argv[4:]:
        globals()[name]()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
