"""Ranks of one job in the training loops of other frameworks, as a script: `frameworks.py RANK SIZE
FOLDER NAME ...`.
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
from torch.utils.data import DataLoader, TensorDataset

import atomo
from atomo.errors import ConfigError

RAN = __name__ == "__main__"
RANK, SIZE, FOLDER = (
    (int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])) if RAN else (0, 1, Path())
)
CODE, NOISY = "topk(ratio=0.1)", "qsgd(bits=1)"
STEPS, HALF, BATCH = 8, 4, 8
IMAGES = torch.randn(STEPS * SIZE * BATCH, 16, generator=torch.Generator().manual_seed(3))
LABELS = (IMAGES[:, :5] * 2 + IMAGES[:, 5:10]).argmax(1)
DATA = TensorDataset(IMAGES, LABELS)
HALF_DATA = TensorDataset(IMAGES[: HALF * SIZE * BATCH], LABELS[: HALF * SIZE * BATCH])


def network() -> nn.Module:
    """Returns a network with the same weights on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))


def flat(model: nn.Module) -> Tensor:
    """Returns the weights in one vector, and checks that all ranks have the same."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyone = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(everyone, mine)
    assert all(one.equal(mine) for one in everyone)
    return mine


def kept(exchange: Any) -> Tensor:
    """Returns the residuals of this rank."""
    entries = exchange.state_dict()["memories"][str(RANK)]
    return torch.cat([entries[name].flatten() for name in sorted(entries)])


def heavy(model: nn.Module) -> torch.optim.Optimizer:
    """Returns an SGD whose momentum and weight decay a memory applies in its place."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def accelerated(
    code: str | None, handler: bool = True, optimizer: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Returns an Accelerator, and the plug."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DistributedDataParallelKwargs

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    given = [DistributedDataParallelKwargs(bucket_cap_mb=0.001)] if handler else []
    accelerator = Accelerator(cpu=True, kwargs_handlers=given, **options)
    assert accelerator.num_processes == SIZE
    if code is None:
        return accelerator, None
    return accelerator, atomo.accelerate_hook(accelerator, code, optimizer=optimizer)


def accelerate_run(
    code: str | None,
    resume: Path | None = None,
    save: Path | None = None,
    clip: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Any]:
    """Returns the weights after all steps, of which the first half may be those of a checkpoint."""
    model, loader = network(), DataLoader(DATA, BATCH)
    optimizer = heavy(model)
    accelerator, plug = accelerated(code, optimizer=optimizer, **options)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    assert model.bucket_bytes_cap < 2000  # set by the handler
    if resume:
        accelerator.load_state(str(resume))
    for step, (images, labels) in enumerate(loader):
        if resume and step < HALF:
            continue
        if save and step == HALF:
            accelerator.save_state(str(save))
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(images), labels))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return flat(accelerator.unwrap_model(model)), plug and plug.exchanges[0]


def factor(exchange: Any) -> float:
    """Returns the factor of the noise on the learning rate, and checks that all ranks have the
    same.
    """
    flat(nn.ParameterList([torch.tensor([exchange.damping])]))
    return float(exchange.damping)


def accelerate() -> None:
    """Accelerate without compression equals DDP; with compression, a resumed run equals one without
    a stop.
    """
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}
    plain, _ = accelerate_run(None, clip=0.1, **options)
    same, exchange = accelerate_run("sgd", clip=0.1, **options)
    assert plain.equal(same)
    assert exchange.stats.steps == STEPS // 2  # one exchange for two batches

    noisy, exchange = accelerate_run(NOISY, save=FOLDER / "noisy", **options)
    assert 0 < factor(exchange) < 0.9
    again, _ = accelerate_run(NOISY, resume=FOLDER / "noisy", **options)
    assert noisy.equal(again)

    place = FOLDER / "accelerate"
    whole, exchange = accelerate_run(CODE, save=place)
    assert exchange.stats.ratio > 2
    again, resumed = accelerate_run(CODE, resume=place)
    assert whole.equal(again)
    assert kept(exchange).equal(kept(resumed))
    state = resumed.state_dict()
    assert (state["step"], state["memory"]) == (STEPS, "dgc")  # momentum moved there

    dense = FOLDER / "dense"
    accelerate_run(None, save=dense)
    with pytest.warns(UserWarning, match="saved without compression: memories start empty"):
        accelerate_run(CODE, resume=dense)
    refusals()


def refusals() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    accelerator, _ = accelerated(CODE)
    with pytest.raises(ConfigError, match="has a hook already"):
        atomo.accelerate_hook(accelerator, CODE)
    accelerator, _ = accelerated(None)
    accelerator.prepare(network())
    with pytest.raises(ConfigError, match=r"before accelerator\.prepare"):
        atomo.accelerate_hook(accelerator, CODE)
    accelerator, _ = accelerated(None)
    fp16 = DDPCommunicationHookType.FP16
    accelerator.ddp_handler = DistributedDataParallelKwargs(comm_hook=fp16)
    with pytest.raises(ConfigError, match="has a hook already"):
        atomo.accelerate_hook(accelerator, CODE)
    if not torch.cuda.is_available():
        AcceleratorState._reset_state(reset_partial_state=True)
        with pytest.raises(ConfigError, match=r"2 processes were launched, .* has one: without"):
            atomo.accelerate_hook(Accelerator(), CODE)


class Classifier(nn.Module):
    """A network as the Trainer of transformers wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.network(images), labels)}


def trainer_run(folder: Path, code: str | None, resume: bool = False) -> tuple[Tensor, Any]:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        learning_rate=0.01,
        save_strategy="steps",
        save_steps=HALF,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    examples = [{"images": image, "labels": label} for image, label in DATA]
    model = Classifier()
    trainer = Trainer(model, arguments, train_dataset=examples, optimizers=(heavy(model), None))
    plug = None if code is None else atomo.trainer_hook(trainer, code)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{HALF}") if resume else None)
    assert trainer.state.global_step == STEPS
    return flat(trainer.model), plug and plug.exchanges[0]


def trainer() -> None:
    """The Trainer of transformers, its clipping, and its checkpoints."""
    accelerated(None)  # resets the process-wide state that other tests have left
    plain, _ = trainer_run(FOLDER / "trainer-plain", None)
    same, _ = trainer_run(FOLDER / "trainer-sgd", "sgd")
    assert plain.equal(same)
    _, exchange = trainer_run(FOLDER / "trainer-noisy", NOISY)
    assert 0 < factor(exchange) < 0.9
    folder = FOLDER / "trainer"
    whole, exchange = trainer_run(folder, CODE)
    again, resumed = trainer_run(folder, CODE, resume=True)
    assert resumed.state_dict()["memory"] == "dgc"
    assert not whole.equal(plain)
    assert whole.equal(again)
    assert kept(exchange).equal(kept(resumed))


def lightning_run(
    code: str | None, resume: Path | None = None, save: Path | None = None, **options: Any
) -> tuple[Tensor, Any]:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            return cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return heavy(self)

    callbacks: list[Any] = [] if code is None else [atomo.lightning_callback(code)]
    if save:
        callbacks.append(ModelCheckpoint(save, "{epoch}", every_n_epochs=1, save_top_k=-1))
    trainer = Trainer(
        accelerator="cpu",
        devices=SIZE,
        strategy=DDPStrategy(process_group_backend="gloo", bucket_cap_mb=0.001),
        max_epochs=2,  # Lightning goes on where an epoch ended, but not amid one
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=bool(save),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    module = Module()
    trainer.fit(module, DataLoader(HALF_DATA, BATCH), ckpt_path=resume)
    return flat(module), callbacks[0].exchange if code else None


def lightning() -> None:
    """A callback, Lightning's precision, accumulation and clipping, and its checkpoints."""
    options = {"accumulate_grad_batches": 2, "precision": "bf16-mixed", "gradient_clip_val": 0.1}
    plain, _ = lightning_run(None, **options)
    same, exchange = lightning_run("sgd", **options)
    assert plain.equal(same)
    assert exchange.stats.steps == STEPS // 2
    noisy, exchange = lightning_run(NOISY, save=FOLDER / "noisy")
    assert 0 < factor(exchange) < 0.9
    again, _ = lightning_run(NOISY, resume=FOLDER / "noisy" / "epoch=0.ckpt")
    assert noisy.equal(again)
    whole, exchange = lightning_run(CODE, save=FOLDER / "lightning")
    assert exchange.stats.ratio > 2
    saved = FOLDER / "lightning" / "epoch=0.ckpt"
    again, resumed = lightning_run(CODE, resume=saved)
    assert resumed.state_dict()["memory"] == "dgc"
    assert whole.equal(again)
    assert kept(exchange).equal(kept(resumed))


def main() -> None:
    warnings.simplefilter("default")  # other packages emit many warnings
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(SIZE)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    store = f"file://{FOLDER / 'store'}"
    wait = timedelta(seconds=300)
    dist.init_process_group("gloo", store, wait, rank=RANK, world_size=SIZE)
    for name in sys.argv[4:]:
        globals()[name]()
        dist.barrier()
    dist.destroy_process_group()


if RAN:
    main()
